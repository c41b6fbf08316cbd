//! The producer: one warp copies the tiles of Q, K and V in the order in which the consumers want them, and claims the
//! block's next tile; another joins the table of claims meanwhile. Where keys are split, there is one tile, and nothing to claim.

use super::Block;
use super::pair::Agreement;
use crate::ptx::builder::Kernel;
use crate::ptx::inst::Special;
use crate::ptx::types::{Reg, Var};
use crate::ptx::warpgroup::TensorMap;
use crate::tile::claims::Claims;
use crate::tile::operand::Chunk;
use crate::tile::ring::{Ring, Stage};
use crate::tile::stream::QueryTile;
use crate::variant::Tiling;

/// Blocks of keys still to fetch when the next tile is claimed: late, since early claims unbalance the end of the grid,
/// but early enough to hide the claim's latency.
const CLAIM_AHEAD: u32 = 2;

/// In place of a batch index: there was no tile before.
const NO_BATCH: u32 = u32::MAX;

/// Copies and claims until there is no tile left.
pub fn run(block: &Block<'_, '_>) {
    let k = block.k;
    let claims = (!block.t.form.splits_keys()).then(|| {
        let blocks = k.special(Special::NctaIdX);
        // Of a pair, one claims.
        let claimants = if block.pair.is_some() { blocks >> 1 } else { blocks };
        Claims::new(k, claimants, block.order.tiles, block.joined)
    });
    let warp = (k.special(Special::TidX) >> 5).broadcast();
    // In front of the branches: where all lanes pass, the maps' addresses are in uniform registers.
    let maps = ["q", "k", "v"].map(|name| k.tensor_map(name));
    k.when(warp.eq(0u32), || {
        k.elected(|| {
            let producer = Producer::new(block, maps);
            match (claims, block.layout.q.stages) {
                (None, _) => {
                    producer.produce_share();
                    k.launch_dependents();
                }
                (Some(claims), 1) => producer.produce(claims),
                (Some(claims), _) => producer.produce_ahead(claims),
            }
        });
    });
    if let Some(claims) = claims {
        let needed = block.pair.map_or(claims.needed(), |pair| claims.needed().and(pair.claims()));
        k.when(warp.eq(1u32).and(needed), || k.elected(|| claims.join()));
    }
}

struct Producer<'a, 'k> {
    k: &'k Kernel,
    block: &'a Block<'a, 'k>,
    q: Source<'k>,
    keys: Source<'k>,
    values: Source<'k>,
    /// With the other block of a pair.
    agreement: Option<Agreement<'k>>,
}

/// A tensor and the ring that it is copied to.
struct Source<'k> {
    map: TensorMap<'k>,
    stage: Stage<'k>,
    stage_bytes: u32,
    /// Where blocks of a pair copy a half each: this block's rank, which is the number of its half, and the chunks of a half.
    half: Option<(Reg<'k, u32>, u32)>,
}

impl<'k> Source<'k> {
    /// Copies the rows from `row` on of a head.
    fn fetch(&self, row: Reg<'k, u32>, head: Reg<'k, u32>, batch: Reg<'k, u32>) {
        let k = row.kernel();
        let zero = k.constant(0u32);
        match self.half {
            None => self.stage.fill(self.map, &[([zero, head, row, zero, batch], 0)], self.stage_bytes),
            Some((rank, chunks)) => self.stage.fill_part(self.map, &[zero, head, row, rank * chunks, batch], rank),
        }
    }
}

impl<'a, 'k> Producer<'a, 'k> {
    fn new(block: &'a Block<'a, 'k>, [q, keys, values]: [TensorMap<'k>; 3]) -> Self {
        let Block { k, shared, layout, .. } = *block;
        let source = |map, ring: Ring, columns: u32| {
            let halves = block.pair.filter(|_| ring.blocks > 1);
            let half = halves.map(|pair| (pair.rank, columns / Chunk::of(columns).columns / ring.blocks));
            Source { map, stage: ring.producer(k, shared), stage_bytes: ring.stage_bytes, half }
        };
        let Tiling { head_dim, value_dim, .. } = *block.t;
        let agreement = block.pair.map(Agreement::new);
        Producer {
            k,
            block,
            q: source(q, layout.q, head_dim),
            keys: source(keys, layout.k, head_dim),
            values: source(values, layout.v, value_dim),
            agreement,
        }
    }

    /// This block's share of its cluster's tile.
    fn produce_share(&self) {
        let (k, order) = (self.k, &self.block.order);
        let tile = order.of_cluster();
        self.announce_first(&tile);
        let (share, before) = order.share(tile);
        let (kv_head, last) = (order.kv_head(tile.head), share.blocks - 1);
        self.fetch_keys(last + before, kv_head, tile.batch);
        k.each_down("block", last, k.constant(0), |n| {
            self.fetch_keys(n + before, kv_head, tile.batch);
            self.fetch_values(n + before + 1, kv_head, tile.batch);
        });
        self.fetch_values(before, kv_head, tile.batch);
    }

    /// With one buffer for Q: the first K of the next tile runs ahead of its Q, which has to wait for the last scores of
    /// this tile; they need this tile's last V to be on its way.
    fn produce(&self, claims: Claims<'k>) {
        let (k, order) = (self.k, &self.block.order);
        let first = order.first();
        self.announce_first(&first);
        let tile = first.map(|value| k.var(value));
        let claimed = k.var(claims.no_claim());
        self.fetch_keys(first.blocks - 1, order.kv_head(first.head), first.batch);
        k.repeat("tile", |stream| {
            let QueryTile { head, batch, blocks, .. } = tile.get();
            let kv_head = order.kv_head(head);
            let last = blocks - 1;
            let claim_at = last.min(CLAIM_AHEAD);
            let next_block = |n| {
                self.fetch_keys(n, kv_head, batch);
                self.fetch_values(n + 1, kv_head, batch);
            };
            k.each_down("block", last, claim_at, next_block);
            self.claim(&claims, claimed);
            k.each_down("block", claim_at, k.constant(0), next_block);
            self.fetch_values(k.constant(0), kv_head, batch);
            let number = self.agree(claims.tile(claimed.get()));
            k.either(number.lt(order.tiles), || {
                let next = order.tile(number);
                self.fetch_keys(next.blocks - 1, order.kv_head(next.head), next.batch);
                self.announce(&next);
                tile.set(&next);
            })
            .otherwise(|| self.announce_end());
            stream.when(order.tiles.le(number));
        });
    }

    /// With two buffers for Q: K runs one block ahead of V, across the change of tiles too, since a block's scores come
    /// before its output.
    fn produce_ahead(&self, claims: Claims<'k>) {
        let (k, order) = (self.k, &self.block.order);
        let first = order.first();
        self.announce_first(&first);
        let tile = first.map(|value| k.var(value));
        let claimed = k.var(claims.no_claim());
        let (kv_head_before, batch_before) = (k.var(0u32), k.var(NO_BATCH));

        k.repeat("tile", |stream| {
            let QueryTile { head, batch, blocks, .. } = tile.get();
            let kv_head = order.kv_head(head);
            let last = blocks - 1;
            let is_short = last.le(CLAIM_AHEAD);
            k.when(is_short, || self.claim(&claims, claimed));
            self.fetch_keys(last, kv_head, batch);
            k.when(batch_before.get().ne(NO_BATCH), || self.fetch_values(k.constant(0), kv_head_before.get(), batch_before.get()));

            let next_block = |n| {
                self.fetch_keys(n, kv_head, batch);
                self.fetch_values(n + 1, kv_head, batch);
            };
            k.each_down("block", last, k.constant(CLAIM_AHEAD), next_block);
            k.when(last.gt(CLAIM_AHEAD), || self.claim(&claims, claimed));
            let before_q = last.min(CLAIM_AHEAD);
            let after_q = before_q.max(1) - 1;
            k.each_down("block", before_q, after_q, next_block);

            let number = self.agree(claims.tile(claimed.get()));
            k.either(number.lt(order.tiles), || {
                let next = order.tile(number);
                self.announce(&next);
                tile.set(&next);
            })
            .otherwise(|| self.announce_end());
            k.each_down("block", after_q, k.constant(0), next_block);
            kv_head_before.set(kv_head);
            batch_before.set(batch);
            stream.when(order.tiles.le(number));
        });
        k.note("V of the very last block");
        self.fetch_values(k.constant(0), kv_head_before.get(), batch_before.get());
    }

    /// Claims the next tile, if it is this block that claims.
    fn claim(&self, claims: &Claims<'k>, claimed: Var<'k, u32>) {
        match self.block.pair {
            None => claims.claim(claimed),
            Some(pair) => self.k.when(pair.claims(), || claims.claim(claimed)),
        }
    }

    /// The number of the next tile: that of this block's claim, or of the first block's where two work as a pair.
    fn agree(&self, number: Reg<'k, u32>) -> Reg<'k, u32> {
        self.agreement.as_ref().map_or(number, |agreement| agreement.agree(number, self.block.order.tiles))
    }

    fn fetch_keys(&self, n: Reg<'k, u32>, kv_head: Reg<'k, u32>, batch: Reg<'k, u32>) {
        self.keys.stage.await_empty();
        self.keys.fetch(n * self.block.t.block_kv, kv_head, batch);
    }

    fn fetch_values(&self, n: Reg<'k, u32>, kv_head: Reg<'k, u32>, batch: Reg<'k, u32>) {
        self.values.stage.await_empty();
        self.values.fetch(n * self.block.t.block_kv, kv_head, batch);
    }

    /// Announces the block's first tile, once the grid before this one has ended: until then no tensor is touched.
    ///
    /// The wait stands where ptxas writes the same consumers as without it. A line up or down, or without the wait for a stage
    /// that is empty anyway, it orders those of f16 with head_dim 64 anew, or serialises another kernel's products (C7511).
    fn announce_first(&self, tile: &QueryTile<Reg<'k, u32>>) {
        let stage = self.q.stage.index();
        self.k.await_prerequisites();
        self.q.stage.await_empty();
        self.describe(stage, tile);
    }

    /// Announces a tile, once its stage is empty.
    fn announce(&self, tile: &QueryTile<Reg<'k, u32>>) {
        self.q.stage.await_empty();
        self.describe(self.q.stage.index(), tile);
    }

    /// Describes a tile to the consumers and copies its queries.
    fn describe(&self, stage: Reg<'k, u32>, tile: &QueryTile<Reg<'k, u32>>) {
        self.block.notes.write(stage, tile);
        let packing = self.block.order.packing;
        let (head, row) = (packing.first_head(tile.head), packing.first_token(tile.row));
        match packing.rows() {
            None => self.q.fetch(row, head, tile.batch),
            Some(rows) => self.fetch_packed(rows, row, head, tile.batch),
        }
    }

    /// Copies `rows` rows of a packed tile of Q. They may be fewer than a tile has room for, and chunks begin where the swizzle
    /// does: so they are copied chunk by chunk.
    fn fetch_packed(&self, rows: Reg<'k, u32>, token: Reg<'k, u32>, head: Reg<'k, u32>, batch: Reg<'k, u32>) {
        let (k, t) = (self.k, self.block.t);
        let (chunk, column) = (Chunk::of(t.head_dim), k.constant(0u32));
        let offsets = (0..).step_by((t.block_q * chunk.row_bytes()) as usize);
        let chunks = (0..t.head_dim / chunk.columns).zip(offsets);
        let boxes: Vec<_> = chunks.map(|(c, offset)| ([column, head, token, k.constant(c), batch], offset)).collect();
        self.q.stage.fill(self.q.map, &boxes, rows * (2 * t.head_dim));
    }

    /// Tells the consumers that there is no further tile, after the grids that depend on this one, which may start.
    fn announce_end(&self) {
        self.k.launch_dependents();
        self.q.stage.await_empty();
        self.block.notes.write_end(self.q.stage.index());
        self.q.stage.full().arrive();
    }
}
