//! What the consumers read: tiles of Q, K and V in their rings.

use super::Block;
use crate::ptx::inst::Special;
use crate::ptx::types::Reg;
use crate::tile::element::Half;
use crate::tile::operand::{Chunk, K16, LaneRows, Operand};
use crate::tile::product::{N8, Scores};
use crate::tile::ring::{Ring, Stage};

/// Tiles of Q, K or V in a ring, as the products read them.
#[derive(Clone, Copy)]
pub struct Input<'k> {
    ring: Ring,
    /// The consumers' place in the ring.
    pub stage: Stage<'k>,
    operand: Operand<'k>,
}

impl<'k> Input<'k> {
    /// Tiles of `rows` x `columns` elements, of which the products read those from `offset_bytes` on.
    pub fn new(block: &Block<'_, 'k>, ring: Ring, (rows, columns): (u32, u32), offset_bytes: Reg<'k, u32>) -> Self {
        let operand = Operand::new(block.shared + offset_bytes + ring.buffers, rows, columns);
        Input { ring, stage: ring.consumer(block.k, block.shared, block.pair.map(|pair| pair.other)), operand }
    }

    /// The current tile.
    pub fn current(&self) -> Operand<'k> {
        self.operand.at(&self.stage, self.ring.stage_bytes)
    }

    /// Hands the stage back and goes on to the next.
    pub fn release(&self, by: Reg<'k, bool>) {
        self.stage.release(by);
        self.stage.advance();
    }
}

/// S of the first `columns` keys of the current block once more, for one warp alone, whose rows of a tile begin at
/// `warp_row`: by `mma.sync`, whose fragments hold the same values in the same lanes.
pub fn rebuild_scores<'k, E: Half>(
    block: &Block<'_, 'k>,
    warp_row: Reg<'k, u32>,
    q: &Input<'k>,
    keys: &Input<'k>,
    columns: u32,
) -> Scores<'k> {
    let Block { k, t, shared, layout, .. } = *block;
    let lane = k.special(Special::LaneId);
    let chunk = Chunk::of(t.head_dim);
    let first_row = warp_row.mul_add(chunk.row_bytes(), shared) + layout.q.buffers;
    let q = LaneRows::left(first_row, lane, chunk, t.block_q).at(&q.stage);
    let key_rows = LaneRows::right(shared + layout.k.buffers, lane, chunk, t.block_kv).at(&keys.stage);
    let s: Vec<[_; 4]> = (0..columns / N8).map(|_| std::array::from_fn(|_| k.var(0.0f32))).collect();
    let add_chunk = |q: &LaneRows<'k>, key_rows: &LaneRows<'k>| {
        for step in 0..chunk.steps() {
            let a = q.load::<E>(k, step, 0);
            for (row, s) in (0..).step_by(K16 as usize).zip(s.chunks_exact(2)) {
                let [b0, b1, b2, b3] = key_rows.load::<E>(k, step, row);
                k.mma_into(E::MMA, s[0], a, [b0, b1]);
                k.mma_into(E::MMA, s[1], a, [b2, b3]);
            }
        }
    };
    let chunks = t.head_dim / chunk.columns;
    if block.rebuilds_in_a_loop() {
        k.each_down("chunk", k.constant(chunks), k.constant(0), |n| add_chunk(&q.chunk(n), &key_rows.chunk(n)));
    } else {
        (0..chunks).map(|n| k.constant(n)).for_each(|n| add_chunk(&q.chunk(n), &key_rows.chunk(n)));
    }
    Scores(vec![s.iter().map(|s| s.map(|s| s.get())).collect()])
}
