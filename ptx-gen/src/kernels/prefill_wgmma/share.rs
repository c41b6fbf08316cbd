//! How the blocks of a cluster merge what they found in their shares of a tile's keys.
//!
//! With the shares' references m_i, sums l_i and outputs O_i (not yet divided): m = max m_i, l = sum 2^(m_i - m) l_i and
//! O = sum 2^(m_i - m) O_i, taken in from the last block to the first, whoever merges: every run gives the same result.
//! The merging is divided by columns of O, in slices of 16: block r of n merges slices r, r + n, r + 2n and so on. Every block
//! sends each slice of its share to the block that merges it, which waits for all and then reads its own shared memory only:
//! what goes from block to block is each value once, and nobody waits for the way there and back.
//!
//! Two barriers of the cluster order this:
//! 1. In front of the sending: every block runs, and is done with Q, K and V, in whose place slices, shares, m and l are put. It
//!    orders no writes, for what was read has been used.
//! 2. Behind the sending: all shares are there, and visible. From then on no block accesses another's memory, so that each
//!    ends as soon as its slices are written.
//!
//! The producer's threads come to neither: they end, and then nobody waits for them (PTX ISA, "barrier.cluster").

use super::output::Output;
use super::{Block, consumer_threads};
use crate::ptx::builder::Kernel;
use crate::ptx::inst::Special;
use crate::ptx::types::{Ptr, Reg, Shared};
use crate::ptx::warpgroup::{Accumulator, WARPGROUP};
use crate::tile::element::F32;
use crate::tile::lanes::Lanes;
use crate::tile::operand::Chunk;
use crate::tile::rows::PerRow;
use crate::tile::stream::QueryTile;
use crate::tile::weigh::{Merged, Rows, Weight, row_of_value};
use crate::variant::Tiling;

/// Columns that a block merges at once.
pub const SLICE: Chunk = Chunk::of(16);

/// Values that a thread moves at once, their bytes, and how many of these pieces it holds of a slice.
const AT_ONCE: usize = 4;
const PIECE_BYTES: u32 = 16;
const PIECES: usize = 2;

/// Bytes of m and l of a row.
const SUMS_BYTES: u32 = 8;

/// The most blocks that a cluster can have on every GPU of an architecture.
const MOST_BLOCKS: u32 = 8;

/// Lanes of a quad: they share rows.
const QUAD: u32 = 4;

/// Sizes that a cluster can have: those for which the first block, which has the most slices, has room for all that comes to it.
pub const fn clusters(t: &Tiling) -> &'static [u32] {
    const SIZES: [&[u32]; 3] = [&[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 4, 6, 8], &[1, 2, 4, 8]];
    let mut n = 0;
    while super::sums_at(t, SIZES[n]) + sums_bytes(t) > super::shared_limit(t) {
        n += 1;
        assert!(n < SIZES.len(), "the shares of a tile exceed the shared memory of a block");
    }
    SIZES[n]
}

/// Bytes of the shares that come to the first block, in the cluster in which they are most.
pub const fn most_received_bytes(t: &Tiling, clusters: &[u32]) -> u32 {
    let (mut most, mut n) = (0, 0);
    while n < clusters.len() {
        let bytes = received_bytes(t, clusters[n]);
        most = if bytes > most { bytes } else { most };
        n += 1;
    }
    most
}

/// Bytes of the shares that come to the first block of a cluster.
const fn received_bytes(t: &Tiling, cluster: u32) -> u32 {
    (t.value_dim / SLICE.columns).div_ceil(cluster) * cluster * slice_bytes(t)
}

/// Bytes of a slice of a share: f32.
const fn slice_bytes(t: &Tiling) -> u32 {
    PIECES as u32 * PIECE_BYTES * consumer_threads(t)
}

/// Bytes of m and l of all shares of a tile.
pub const fn sums_bytes(t: &Tiling) -> u32 {
    MOST_BLOCKS * t.block_q * SUMS_BYTES
}

/// The shares of a tile, as a consumer thread sees them. In shared memory, what is merged here lies from K on,
/// `[slices][blocks][pieces][threads][4]`, and may end beyond V; m and l lie behind the most that it can be, at `sums`,
/// `[blocks][rows][2]`.
pub struct Shares<'a, 'k> {
    k: &'k Kernel,
    block: &'a Block<'a, 'k>,
    at: Lanes<'k>,
    /// The lane's first row in the tile.
    row: Reg<'k, u32>,
    /// Blocks of the cluster, and this one's place among them.
    blocks: Reg<'k, u32>,
    rank: Reg<'k, u32>,
}

impl<'a, 'k> Shares<'a, 'k> {
    /// For a thread of the warp whose rows in the tile begin at `warp_row`.
    pub fn new(block: &'a Block<'a, 'k>, warp_row: Reg<'k, u32>) -> Self {
        let k = block.k;
        let at = Lanes::new(k);
        let (blocks, rank) = (k.special(Special::ClusterSizeX), k.special(Special::ClusterRank));
        Shares { k, block, at, row: warp_row + at.quad, blocks, rank }
    }

    /// Where the thread's values of a slice lie: the `slot`th that the block merges, of the share of block `rank`.
    fn place(&self, slot: Reg<'k, u32>, rank: Reg<'k, u32>) -> Ptr<'k, Shared, F32> {
        let Block { t, shared, layout, .. } = *self.block;
        // The producer's threads come first.
        let thread = (self.at.thread - WARPGROUP).mul_add(PIECE_BYTES, shared) + layout.k.buffers;
        Ptr::from_address((slot * self.blocks + rank).mul_add(slice_bytes(t), thread))
    }

    /// Distance between the thread's pieces of a slice.
    fn stride(&self) -> u32 {
        PIECE_BYTES * consumer_threads(self.block.t)
    }

    /// Where m and l of the lane's first row lie, of the share of block `rank`.
    fn sums(&self, rank: Reg<'k, u32>) -> Ptr<'k, Shared, F32> {
        let Block { t, shared, layout, .. } = *self.block;
        Ptr::from_address(rank.mul_add(t.block_q, self.row).mul_add(SUMS_BYTES, shared) + layout.sums)
    }

    /// Sends this block's share to the blocks that merge it.
    pub fn send<E: Weight>(&self, rows: &Rows<'k, E>, o: &Accumulator<'k>) {
        let k = self.k;
        k.note("m and l to every block: the lanes of a quad divide the blocks");
        let (m, l) = rows.m_and_l();
        let sums = self.sums(self.rank);
        for first in (0..MOST_BLOCKS).step_by(QUAD as usize) {
            let to = self.at.in_quad + first;
            k.guarded(to.lt(self.blocks), || {
                let theirs = sums.in_block(to);
                theirs.store(&[m.0[0], l.0[0]], 0);
                theirs.store(&[m.0[1], l.0[1]], 8 * SUMS_BYTES);
            });
        }
        k.note("O, slice by slice in turn to the blocks; each begins with its own, so that no block gets all at once");
        let slices: Vec<_> = (0u32..).zip(o.values().chunks_exact(PIECES * AT_ONCE)).collect();
        for comes_first in [true, false] {
            let (mut to, mut slot) = (k.constant(0u32), k.constant(0u32));
            for (n, slice) in &slices {
                k.when(if comes_first { self.rank.le(*n) } else { self.rank.gt(*n) }, || {
                    let theirs = self.place(slot, self.rank).in_block(to);
                    for (piece, offset) in slice.chunks_exact(AT_ONCE).zip((0..).step_by(self.stride() as usize)) {
                        theirs.store(&[piece[0].get(), piece[1].get(), piece[2].get(), piece[3].get()], offset);
                    }
                });
                let next = to + 1;
                let was_last = next.eq(self.blocks);
                (to, slot) = (was_last.select(0u32, next), was_last.select(slot + 1, slot));
            }
        }
    }

    /// Merges this block's slices of all shares, and writes them; the first block writes the log-sum-exp.
    pub fn merge<E: Weight>(&self, output: &Output<'a, 'k>, tile: &QueryTile<Reg<'k, u32>>) {
        let k = self.k;
        let merged = Merged::new(k);
        k.each_down("share", self.blocks, k.constant(0), |rank| {
            let sums = self.sums(rank);
            let [[m0, l0], [m1, l1]] = [0, 8 * SUMS_BYTES].map(|offset| sums.load2(offset));
            merged.add(&PerRow(vec![m0, m1]), &PerRow(vec![l0, l1]));
        });
        let (factor, lse) = merged.finish();
        k.when(self.rank.eq(0u32), || output.write_lse(tile, self.at, &lse));

        let slices = k.constant(self.block.t.value_dim / SLICE.columns);
        let (mut slice, mut slot) = (k.uniform_var(self.rank), k.uniform_var(0u32));
        k.repeat("slice", |merging| {
            merging.when(slices.le(slice.get()));
            let o = Accumulator::zero(k, SLICE.columns);
            k.each_down("share", self.blocks, k.constant(0), |rank| {
                let sums = self.sums(rank);
                let m = PerRow(vec![sums.load(0), sums.load(8 * SUMS_BYTES)]);
                let (weight, place) = (merged.weight_of(&m), self.place(slot.get(), rank));
                let pieces: [[Reg<'k, f32>; AT_ONCE]; PIECES] = std::array::from_fn(|i| place.load4(i as u32 * self.stride()));
                for (i, (value, other)) in o.values().iter().zip(pieces.as_flattened()).enumerate() {
                    value.set(value.get().add_mul(*other, weight.0[row_of_value(i)]));
                }
            });
            output.write_slice::<E>(tile, self.at, slice.get(), &o, &factor);
            slice += self.blocks;
            slot += 1u32;
        });
    }
}
