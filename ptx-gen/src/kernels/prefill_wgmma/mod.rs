//! Fused prefill attention for Hopper (sm_90a): tensor copies, warpgroup multiplications, specialised warps.
//!
//! The plain algorithm, for each query row:
//! ```text
//! s[j] = scale * q . k[j]      for the keys j that the row sees
//! m    = max_j s[j]
//! p[j] = exp(s[j] - m)
//! o    = sum_j p[j] v[j] / sum_j p[j]
//! lse  = m + log(sum_j p[j])
//! ```
//! What the kernel does differently. The numbers are TFLOP/s at head_dim 128, causal, with 512 / 2k / 8k / 16k tokens (H200,
//! 2026-11), of an early form, whose warpgroups took turns at their exponentials (6). It reached 413/608/684/705 with all of these:
//! 1. A grid of as many blocks as multiprocessors, or twice as many (10), stays and claims tiles of query rows, those that see
//!    the most keys first ([`claims`](crate::tile::claims)): 268/500/586/602 with a fixed share of tiles for each block instead.
//! 2. One warp (the [`producer`]) copies tiles of Q, K and V to shared memory; two or three [`consumer`] warpgroups
//!    multiply, 64 query rows each.
//! 3. S of the next block and O += P V of the last one run on the tensor cores together, and the softmax in their
//!    shadow; across tiles too, where the output is written under the next tile's first product: without, 405/583/682/686.
//! 4. The exponentials do not wait for a block's maximum: they are measured against a reference that seldom moves
//!    ([`weigh`](crate::tile::weigh)): a running maximum gives 350/528/595/594.
//! 5. Keys run from right to left, so that only the first blocks of a tile meet the causal diagonal or the end of the
//!    keys. Where the diagonal leaves a warpgroup half of its first block, it takes that half only: without, 389/591/675/702.
//! 6. Warpgroups issue their products in [`turns`], so that one multiplies while another is at its exponentials.
//! 7. l sums the weights after rounding, per lane, and over the four lanes that share a row only at the end.
//! 8. For many keys, tiles of three warpgroups, or two blocks that work on neighbouring tiles as a [`pair`], read K and V from
//!    L2 less often. That takes power, of which the GPU is short when all its tensor cores multiply: 16 heads of 16k causal
//!    tokens 1,647 to 1,565 us in a row of launches.
//! 9. The split form is for few rows over many keys: a tile takes (token, query head) pairs, so that K and V are read once
//!    per group, and the blocks of a cluster [`share`] its keys, and then the columns of its output. 64 tokens over 4,096 keys,
//!    32 heads over 8: 15.7 us, against 33.5 in the short form.
//! 10. At head_dim 64, 96 and 128 two blocks of 64 rows, of one consumer warpgroup each, share a multiprocessor: one multiplies while
//!     the other is at its exponentials. 200 tokens of 40 heads over 8: 5.9 us, against 6.7 with one block, and 7.2 in tiles of 128
//!     rows.
//!
//! A launch may be a programmatic one, whose grid starts while the grid before it in the stream still runs (PTX ISA,
//! "griddepcontrol"; both instructions do nothing in other launches). That changes no result:
//! - The producer waits for the end of the grid before in front of its first copy. Every stage of Q, K and V is filled behind
//!   that wait, and a consumer accesses global memory for the first time when it writes a tile's O and log-sum-exp, for which it
//!   waited for such stages. So whatever the two grids read or write of each other's, all of this one comes after all of
//!   that one.
//! - In front of the wait are barriers, shared memory, parameters and the warp that joins the table of claims, which is made
//!   for grids that run at the same time.
//! - The producer lets dependents start when it finds no further tile, or has split its share: early enough to hide their
//!   start, and not so early that they sit waiting on multiprocessors that a small grid left to other streams. They see nothing
//!   of O by that: each has to wait as this grid does, until it has ended and what it wrote is visible.
//! - This grid ends after the one before, for each of its blocks waited; so who waits for this one has waited for both. And as
//!   blocks let dependents start behind their wait, no more than two such grids of a stream run at a time.

mod consumer;
mod input;
mod output;
mod pair;
mod part;
mod producer;
mod share;
mod turns;

use self::pair::Pair;
use crate::params;
use crate::ptx::builder::Kernel;
use crate::ptx::inst::{Special, Target};
use crate::ptx::types::{Ptr, Reg, Shared};
use crate::ptx::warpgroup::{Role, WARPGROUP};
use crate::tile::element::{Bf16, F16, Word};
use crate::tile::operand::{Chunk, K16};
use crate::tile::ring::{BARRIER_BYTES, Handoff, Ring};
use crate::tile::stream::{NOTE_BYTES, TileNotes, TileOrder};
use crate::tile::weigh::Weight;
use crate::variant::{Boxes, DType, Family, Launch, Mask, TensorBox, Tiling, Variant};

/// The family, for the table.
pub static PREFILL_WGMMA: Family = Family {
    name: "prefill_wgmma",
    target: Target::SM_90A,
    params: &params::PREFILL_TMA,
    launch: Launch::ByMap { boxes, clusters },
    shared_bytes,
    build,
};

/// Sizes of clusters that split the keys of a tile; `None`: blocks stay and claim tiles.
fn clusters(t: &Tiling) -> Option<&'static [u32]> {
    t.form.splits_keys().then(|| share::clusters(t))
}

/// Rows of a warpgroup's products.
const WARPGROUP_ROWS: u32 = 64;

/// Rows of a warp.
const WARP_ROWS: u32 = 16;

/// Warps of a warpgroup.
const WARPS: u32 = WARPGROUP / 32;

/// Consumer warpgroups of a block; one more produces.
const fn consumers(t: &Tiling) -> u32 {
    t.block_q / WARPGROUP_ROWS
}

/// Threads of the consumer warpgroups.
const fn consumer_threads(t: &Tiling) -> u32 {
    consumers(t) * WARPGROUP
}

/// What the copy engine moves at once: a whole tile of Q, K and V, and rows of one warp of O, or a slice of a tile's
/// where its keys are split.
///
/// Where keys are split, a tile's rows are (token, head) pairs, and the launch gives the boxes of Q and O its heads and tokens;
/// a chunk at a time, for they may be fewer than the tile has rows.
fn boxes(variant: &Variant) -> Boxes {
    let t = &variant.tiling;
    let whole = |rows, columns: u32| {
        let chunk = Chunk::of(columns).columns;
        TensorBox { columns: chunk, rows, chunks: columns / chunk }
    };
    // The blocks of a pair copy some chunks each, for both.
    let part = |whole: TensorBox| TensorBox { chunks: whole.chunks / t.form.neighbours(), ..whole };
    let (k, v) = (part(whole(t.block_kv, t.head_dim)), part(whole(t.block_kv, t.value_dim)));
    let q = whole(t.block_q, t.head_dim);
    if t.form.splits_keys() {
        let slice = TensorBox { columns: share::SLICE.columns, chunks: 1, ..q };
        return Boxes { q: TensorBox { chunks: 1, ..q }, k, v, o: slice };
    }
    Boxes { q, k, v, o: TensorBox { chunks: shared_layout(t).o_chunks, ..whole(WARP_ROWS, t.value_dim) } }
}

/// Shared memory of a block.
#[derive(Clone, Copy)]
struct SharedLayout {
    q: Ring,
    k: Ring,
    v: Ring,
    /// The grid's entry in the table of claims.
    joined: u32,
    /// Descriptions of tiles.
    notes: u32,
    /// Where the blocks of a pair agree on tiles.
    pair: u32,
    /// Output on its way out: a slab a warp, or a slab a slice where keys are split.
    o: u32,
    /// Chunks of a warp's slab's rows: all, or a part, in which case O leaves in turns.
    o_chunks: u32,
    /// m and l of all shares, where keys are split.
    sums: u32,
    end: u32,
}

/// Where tiles begin: the swizzle wants 1024-byte alignment.
const FIRST_TILE: u32 = 1024;

/// With two buffers for Q and whole slabs for O if they fit, with less of both otherwise. Where keys are split, a block has
/// one tile: one buffer for Q, and what becomes of O lies where Q, K and V were.
const fn shared_layout(t: &Tiling) -> SharedLayout {
    if t.form.splits_keys() {
        let rings = layout_with(t, 1, 0);
        let sums = sums_at(t, share::clusters(t));
        let (end, tiles_end) = (sums + share::sums_bytes(t), rings.v.buffers_end());
        return SharedLayout { o: rings.q.buffers, sums, end: if end > tiles_end { end } else { tiles_end }, ..rings };
    }
    let chunks = t.value_dim / Chunk::of(t.value_dim).columns;
    let mut layout = layout_with(t, 2, chunks);
    let mut o_chunks = chunks;
    while layout.end > shared_limit(t) && o_chunks > 0 {
        if chunks.is_multiple_of(o_chunks) {
            layout = layout_with(t, 1, o_chunks);
        }
        o_chunks -= 1;
    }
    layout
}

/// Where m and l of all shares lie: behind the shares that a block receives in clusters of these sizes, which begin where K was.
const fn sums_at(t: &Tiling, clusters: &[u32]) -> u32 {
    layout_with(t, 1, 0).k.buffers + share::most_received_bytes(t, clusters)
}

/// Shared memory that each of the blocks that share a multiprocessor can have. The driver keeps some of each block's for itself.
const fn shared_limit(t: &Tiling) -> u32 {
    const RESERVED: u32 = 1024;
    (t.tiles.shared_limit() + RESERVED) / t.blocks_per_sm - RESERVED
}

const fn layout_with(t: &Tiling, q_stages: u32, o_chunks: u32) -> SharedLayout {
    let (q_bytes, k_bytes, v_bytes) = (2 * t.block_q * t.head_dim, 2 * t.block_kv * t.head_dim, 2 * t.block_kv * t.value_dim);
    let slab_bytes = t.block_q * o_chunks * Chunk::of(t.value_dim).row_bytes();
    // A warp hands Q and K back when it can no longer want to rebuild its scores; V is done with when the products are.
    let warps = consumers(t) * WARPS;
    let blocks = t.form.neighbours();
    let q = Ring { barriers: 0, buffers: FIRST_TILE, stages: q_stages, stage_bytes: q_bytes, readers: warps, blocks: 1 };
    let k = Ring { barriers: q.barriers_end(), buffers: q.buffers_end(), stages: 2, stage_bytes: k_bytes, readers: warps, blocks };
    let v = Ring { barriers: k.barriers_end(), buffers: k.buffers_end(), stages: 2, stage_bytes: v_bytes, readers: consumers(t), blocks };
    let joined = v.barriers_end();
    let notes = (joined + Handoff::BYTES).next_multiple_of(2 * BARRIER_BYTES);
    let pair = notes + 2 * NOTE_BYTES;
    let end = if blocks > 1 { pair + Pair::BYTES } else { pair };
    assert!(end <= FIRST_TILE, "barriers and notes lie in front of the tiles");
    let o = v.buffers_end();
    SharedLayout { q, k, v, joined, notes, pair, o, o_chunks, sums: o, end: o + slab_bytes }
}

const fn shared_bytes(t: &Tiling, _: DType) -> u32 {
    shared_layout(t).end
}

/// Fails while the table is compiled if the kernel cannot have this tiling.
pub const fn assert_legal(t: &Tiling) {
    assert!(t.block_q.is_multiple_of(WARPGROUP_ROWS) && consumers(t) >= 1 && consumers(t) <= 3, "64 rows a consumer warpgroup");
    assert!(t.threads() == (consumers(t) + 1) * WARPGROUP, "the consumers and a producer");
    assert!(t.head_dim.is_multiple_of(K16) && t.value_dim.is_multiple_of(K16), "rows are whole steps of a product");
    assert!(t.block_kv.is_multiple_of(K16) && t.block_kv >= part::HALF, "blocks of keys are whole steps, and no less than half ones");
    let (key_chunk, value_chunk) = (Chunk::of(t.head_dim).row_bytes(), Chunk::of(t.value_dim).row_bytes());
    assert!(
        (t.block_kv * key_chunk).is_multiple_of(1024) && (t.block_kv * value_chunk).is_multiple_of(1024),
        "chunks begin where the swizzle does"
    );
    let parts = t.form.neighbours();
    assert!(
        (t.head_dim / Chunk::of(t.head_dim).columns).is_multiple_of(parts)
            && (t.value_dim / Chunk::of(t.value_dim).columns).is_multiple_of(parts),
        "neighbours copy as many chunks each"
    );
    let layout = shared_layout(t);
    assert!(!t.form.splits_keys() || t.value_dim <= t.head_dim, "the slices of O lie where Q was");
    assert!(layout.end <= shared_limit(t), "tiles exceed the shared memory of a block");
}

fn build(variant: &Variant, k: &Kernel) {
    match variant.dtype {
        DType::F16 => prefill::<F16>(k, variant),
        DType::Bf16 => prefill::<Bf16>(k, variant),
        DType::F32 => unreachable!("the tensor cores of this family multiply 16-bit types"),
    }
}

/// What both roles work with.
#[derive(Clone, Copy)]
struct Block<'a, 'k> {
    k: &'k Kernel,
    variant: &'a Variant,
    t: &'a Tiling,
    shared: Reg<'k, u32>,
    layout: SharedLayout,
    order: TileOrder<'k>,
    notes: TileNotes<'k>,
    joined: Handoff<'k>,
    /// With a neighbour.
    pair: Option<Pair<'k>>,
}

impl Block<'_, '_> {
    fn is_causal(&self) -> bool {
        self.variant.mask == Mask::Causal
    }

    /// Whether a warpgroup that the diagonal leaves half of its first block takes that half only: a second way through
    /// a tile, for which three warpgroups have no registers, and for which ptxas finds none for one. Most blocks of a
    /// cluster do not meet the diagonal.
    fn takes_halves(&self) -> bool {
        self.is_causal() && consumers(self.t) == 2 && self.t.block_kv > part::HALF && !self.t.form.splits_keys()
    }

    /// Whether scores are rebuilt in a loop over chunks. Unrolled, the loads take the registers of the whole kernel, and
    /// kernels for the causal mask or long rows have none to spare. But around a loop that hardly ever runs ptxas orders
    /// the kernel for the full mask worse: 489/650/709 TFLOP/s at 512/2k/8k against 554/660/712 (H200, 2026-11).
    fn rebuilds_in_a_loop(&self) -> bool {
        self.is_causal() || self.t.head_dim > 128
    }

    /// Whether a warpgroup passes over all blocks of a tile of which the diagonal leaves it nothing: where the first of the
    /// warpgroups that walk the same keys sees at least one block less than the last. Not with one buffer for Q: ptxas then moves
    /// the products' descriptors out of uniform registers (R2UR), 340 instructions a step instead of 247 at head_dim 256.
    fn passes_over_many(&self) -> bool {
        let rows_apart = self.t.block_q * self.t.form.neighbours() - WARPGROUP_ROWS;
        self.is_causal() && rows_apart >= self.t.block_kv && self.layout.q.stages == 2
    }

    /// Whether a warpgroup passes over a tile's first block, and no other, if the diagonal leaves it nothing of that.
    fn passes_over_first(&self) -> bool {
        self.is_causal() && self.t.block_kv == part::HALF && self.layout.q.stages == 1
    }
}

fn prefill<E: Weight>(k: &Kernel, variant: &Variant) {
    let t = &variant.tiling;
    let (shared, layout) = (k.shared_base(), shared_layout(t));
    let block = Block {
        k,
        variant,
        t,
        shared,
        layout,
        order: TileOrder::new(k, variant),
        notes: TileNotes::new(k, shared, layout.notes),
        joined: Handoff::new(shared, layout.joined),
        pair: (t.form.neighbours() > 1).then(|| Pair::new(k, shared, layout.pair)),
    };
    k.when(k.special(Special::TidX).eq(0u32), || {
        [layout.q, layout.k, layout.v].iter().for_each(|ring| ring.init(shared));
        if !t.form.splits_keys() {
            block.joined.init();
        }
        if let Some(pair) = block.pair {
            pair.init();
        }
    });
    if block.order.packing.rows().is_some() {
        clear(&block, layout.q);
    }
    k.publish_barriers();
    if block.pair.is_some() {
        k.note("Both blocks of the pair run, and their barriers are ready");
        k.await_cluster();
    }

    // Registers of a thread: the block's own, those at entry, are redistributed.
    let (producing, consuming) = match consumers(t) {
        1 if t.blocks_per_sm == 1 => (None, None),
        1 => (Some(40), Some(216)),
        2 if layout.q.stages == 1 => (Some(24), Some(240)),
        2 => (Some(40), Some(232)),
        _ => (Some(32), Some(160)),
    };
    k.roles(vec![
        Role { warpgroups: 1, registers: producing, body: Box::new(|_| producer::run(&block)) },
        Role { warpgroups: consumers(t), registers: consuming, body: Box::new(|warpgroup| consumer::run::<E>(&block, warpgroup)) },
    ]);
}

/// Makes a ring's buffers zero: rows that no copy brings must not hold NaN, which would look like weights that overflow. The
/// last round may reach beyond, into buffers that no copy has filled yet.
fn clear(block: &Block<'_, '_>, ring: Ring) {
    const BYTES: u32 = 16;
    let k = block.k;
    let zero = k.constant(0u32);
    let place = Ptr::<Shared, Word>::from_address(k.special(Special::TidX).mul_add(BYTES, block.shared));
    for offset in (ring.buffers..ring.buffers_end()).step_by((block.t.threads() * BYTES) as usize) {
        place.store(&[zero; 4], offset);
    }
    k.fence_shared_for_async();
}
