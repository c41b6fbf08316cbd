//! A warp's way to write its rows of O and of the log-sum-exp.

use super::share::SLICE;
use super::{Block, WARP_ROWS, consumer_threads};
use crate::ptx::builder::Kernel;
use crate::ptx::types::{Bits32, Ptr, Reg};
use crate::ptx::warpgroup::{Accumulator, TensorMap};
use crate::tile::element::{F32, Half};
use crate::tile::lanes::Lanes;
use crate::tile::operand::{Chunk, LaneRows};
use crate::tile::rows::PerRow;
use crate::tile::stream::QueryTile;

/// Named barrier of all consumers, which fill a slice's slab together; smaller numbers are the turns'.
const CONSUMERS_BARRIER: u32 = 4;

/// A warp's output: a slab of shared memory, which the copy engine empties while the warp goes on.
#[derive(Clone, Copy)]
pub struct Output<'a, 'k> {
    k: &'k Kernel,
    block: &'a Block<'a, 'k>,
    /// First row of the warp in a tile.
    warp_row: Reg<'k, u32>,
    /// One lane of the warp: the one that stores.
    elected: Reg<'k, bool>,
    map: TensorMap<'k>,
}

impl<'a, 'k> Output<'a, 'k> {
    /// The output of the warp whose first row in a tile is `warp_row`.
    pub fn new(block: &'a Block<'a, 'k>, warp_row: Reg<'k, u32>, elected: Reg<'k, bool>) -> Self {
        Output { k: block.k, block, warp_row, elected, map: block.k.tensor_map("o") }
    }

    /// Writes the rows of `tile`: O times `factor`, and the log-sum-exp if the caller wants it. Rows beyond the last one
    /// are dropped, by the tensor map's bounds.
    pub fn write<E: Half>(
        &self,
        tile: &QueryTile<Reg<'k, u32>>,
        o: &Accumulator<'k>,
        factor: &PerRow<Reg<'k, f32>>,
        lse: &PerRow<Reg<'k, f32>>,
    ) {
        let k = self.k;
        // Indices are computed anew: carried through the loops they would cost registers there.
        let at = Lanes::new(k);
        self.write_rows::<E>(tile, at, &words::<E>(k, o, factor));
        self.write_lse(tile, at, lse);
    }

    /// A warp's rows are tokens: it stores them by itself, through its own slab, as many chunks at once as that holds.
    fn write_rows<E: Half>(&self, tile: &QueryTile<Reg<'k, u32>>, at: Lanes<'k>, words: &[Reg<'k, Bits32>]) {
        let (k, Block { t, shared, layout, .. }) = (self.k, *self.block);
        let chunk = Chunk::of(t.value_dim);
        let slab = self.warp_row.mul_add(layout.o_chunks * chunk.row_bytes(), shared) + layout.o;
        let rows = LaneRows::left(slab, at.lane, chunk, WARP_ROWS);
        let first_row = tile.row.mul_add(t.block_q, self.warp_row);
        let words_at_once = (4 * layout.o_chunks * chunk.steps()) as usize;
        for (first_chunk, words) in (0..).step_by(layout.o_chunks as usize).zip(words.chunks_exact(words_at_once)) {
            k.note("O / l to the slab, once the previous store has read it");
            k.guarded(self.elected, || k.await_stores_read(0));
            k.warp_barrier();
            store_words::<E>(k, &rows, words);
            k.fence_shared_for_async();
            k.warp_barrier();
            let at_chunk = [k.constant(0u32), tile.head, first_row, k.constant(first_chunk), tile.batch];
            k.guarded(self.elected, || self.map.store(&at_chunk, (slab, 0)));
        }
    }

    /// Writes a slice of the columns of `tile`: O times `factor`. One warp stores it for all consumers, since rows may be
    /// (token, head) pairs, and a token's may lie in two warps. Every slice has a slab of its own, so that no store is
    /// waited for.
    pub fn write_slice<E: Half>(
        &self,
        tile: &QueryTile<Reg<'k, u32>>,
        at: Lanes<'k>,
        slice: Reg<'k, u32>,
        o: &Accumulator<'k>,
        factor: &PerRow<Reg<'k, f32>>,
    ) {
        let (k, Block { t, shared, layout, order, .. }) = (self.k, *self.block);
        let slab = slice.mul_add(t.block_q * SLICE.row_bytes(), shared) + layout.o;
        let rows = LaneRows::left(self.warp_row.mul_add(SLICE.row_bytes(), slab), at.lane, SLICE, t.block_q);
        k.note("O / l to the slice's slab");
        store_words::<E>(k, &rows, &words::<E>(k, o, factor));
        k.fence_shared_for_async();
        k.named_barrier_wait(k.constant(CONSUMERS_BARRIER), consumer_threads(t));
        let (first_head, first_token) = (order.packing.first_head(tile.head), order.packing.first_token(tile.row));
        let at_slice = [k.constant(0u32), first_head, first_token, slice, tile.batch];
        k.when(self.warp_row.eq(0u32), || k.guarded(self.elected, || self.map.store(&at_slice, (slab, 0))));
    }

    /// Writes the log-sum-exp of the rows of `tile` if the caller wants it.
    pub fn write_lse(&self, tile: &QueryTile<Reg<'k, u32>>, at: Lanes<'k>, lse: &PerRow<Reg<'k, f32>>) {
        self.k.when(self.k.param::<u64>("lse").gt(0u64), || self.store_lse(tile, at, lse));
    }

    fn store_lse(&self, tile: &QueryTile<Reg<'k, u32>>, at: Lanes<'k>, lse: &PerRow<Reg<'k, f32>>) {
        let (k, packing) = (self.k, self.block.order.packing);
        let (q_len, first_token) = (k.param::<u32>("q_len"), packing.first_token(tile.row));
        let first_head = packing.first_head(tile.batch * k.param::<u32>("heads") + tile.head);
        let out = Ptr::<_, F32>::from_address(k.param::<u64>("lse"));
        for (i, value) in (0u32..).zip(&lse.0) {
            let row = self.warp_row + at.quad + 8 * i;
            let token_in_tile = packing.token(row);
            let head = packing.head(row, token_in_tile).map_or(first_head, |head| first_head + head);
            let token = first_token + token_in_tile;
            let target = out.offset(head.to_u64() * q_len.to_u64() + token.to_u64());
            let is_somebodys = packing.rows().map_or(token.lt(q_len), |rows| token.lt(q_len).and(row.lt(rows)));
            let exists = is_somebodys.and(at.in_quad.eq(0u32));
            k.guarded(exists, || target.store(&[*value], 0));
        }
    }

    /// Waits until everything is written.
    pub fn finish(&self) {
        self.k.guarded(self.elected, || self.k.await_stores());
    }
}

/// The lane's values of O, each row times its factor, in pairs of 16-bit values.
fn words<'k, E: Half>(k: &'k Kernel, o: &Accumulator<'k>, factor: &PerRow<Reg<'k, f32>>) -> Vec<Reg<'k, Bits32>> {
    (0..o.values().len())
        .step_by(2)
        .map(|i| {
            let [lo, hi] = [i, i + 1].map(|i| o.values()[i].get() * factor.0[i / 2 % 2]);
            k.pack(E::MMA, lo, hi)
        })
        .collect()
}

/// Stores a warp's packed output to its rows of a slab.
fn store_words<'k, E: Half>(k: &'k Kernel, rows: &LaneRows<'k>, words: &[Reg<'k, Bits32>]) {
    for (step, words) in (0..).zip(words.chunks_exact(4)) {
        let (target, offset) = rows.columns16::<E>(step, 0);
        k.store_matrices([words[0], words[1], words[2], words[3]], target, offset);
    }
}
