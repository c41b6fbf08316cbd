//! How the blocks of a cluster merge what they found in their shares of a tile's keys.
//!
//! With the shares' references m_i, sums l_i and outputs O_i (not yet divided): m = max m_i, l = sum 2^(m_i - m) l_i and
//! O = sum 2^(m_i - m) O_i, taken in from the last block to the first, whoever merges: every run gives the same result.
//! Every thread leaves its own values in the shared memory of its block. The merging is divided by columns of O, in slices
//! of 16: block r of n merges slices r, r + n, r + 2n and so on, and each of its threads takes in what the threads with its
//! number left in all blocks, its own among them.
//!
//! Three barriers order this:
//! 1. One of the block's consumers, before O is left where K and V were, and before slices are put where Q was: a warp that
//!    is done with them does not know that the others have read them, for a product or to rebuild their scores.
//! 2. One of the cluster, behind the shares: all are written, and visible, before any is read. No block's memory is
//!    accessed before that block runs, either.
//! 3. One of the cluster, behind the merging: the shared memory of a block that ends is gone, and others may still read. It
//!    orders no writes, for what was read has been used.
//!
//! The producer's threads come to neither barrier of the cluster: they end, and then nobody waits for them (PTX ISA,
//! "barrier.cluster").

use super::output::CONSUMERS_BARRIER;
use super::{Block, consumer_threads};
use crate::ptx::builder::Kernel;
use crate::ptx::inst::Special;
use crate::ptx::types::{ClusterShared, Ptr, Reg, Shared};
use crate::ptx::warpgroup::{Accumulator, WARPGROUP};
use crate::tile::element::F32;
use crate::tile::operand::Chunk;
use crate::tile::weigh::{Rows, Weight, row_of_value};

/// Columns that a block merges at once.
pub const SLICE: Chunk = Chunk::of(16);

/// Values that a thread moves at once, and their bytes.
const AT_ONCE: usize = 4;
pub const BYTES: u32 = 16;

/// Pieces of `AT_ONCE` values that a thread holds of a slice.
const PIECES: usize = 2;

/// Shares that are read before the first of them is taken in: the way to another block is long.
const SHARES_AT_ONCE: u32 = 4;

/// A thread's places for its values: 16 bytes of m and l, and 16 bytes of O every 16 bytes times the consumers' threads.
pub struct Shares<'a, 'k> {
    k: &'k Kernel,
    block: &'a Block<'a, 'k>,
    place: Ptr<'k, Shared, F32>,
    /// Blocks of the cluster.
    blocks: Reg<'k, u32>,
}

impl<'a, 'k> Shares<'a, 'k> {
    /// The places of this thread.
    pub fn new(block: &'a Block<'a, 'k>) -> Self {
        let k = block.k;
        // The producer's threads come first.
        let consumer = k.special(Special::TidX) - WARPGROUP;
        let place = Ptr::from_address(consumer.mul_add(BYTES, block.shared));
        Shares { k, block, place, blocks: k.special(Special::ClusterSizeX) }
    }

    /// Distance between a thread's pieces of O.
    fn stride(&self) -> u32 {
        BYTES * consumer_threads(self.block.t)
    }

    /// Leaves this block's share: m and l of the lane's two rows, and O.
    pub fn leave<E: Weight>(&self, rows: &Rows<'k, E>, o: &Accumulator<'k>) {
        let (k, layout) = (self.k, &self.block.layout);
        self.place.store(&rows.m_and_l(), layout.sums);
        k.named_barrier_wait(k.constant(CONSUMERS_BARRIER), consumer_threads(self.block.t));
        for (offset, values) in (layout.k.buffers..).step_by(self.stride() as usize).zip(o.values().chunks_exact(AT_ONCE)) {
            self.place.store(&[values[0].get(), values[1].get(), values[2].get(), values[3].get()], offset);
        }
    }

    /// Runs `body` for each slice that this block merges.
    pub fn each_slice(&self, body: impl FnOnce(Reg<'k, u32>)) {
        let slices = self.k.constant(self.block.t.value_dim / SLICE.columns);
        let mut slice = self.k.uniform_var(self.k.special(Special::ClusterRank));
        self.k.repeat("slice", |merging| {
            merging.when(slices.le(slice.get()));
            body(slice.get());
            slice += self.blocks;
        });
    }

    /// A slice of O over all shares. In `rows`, m and l over all shares.
    pub fn merge<E: Weight>(&self, rows: &Rows<'k, E>, slice: Reg<'k, u32>) -> Accumulator<'k> {
        let k = self.k;
        let o = Accumulator::zero(k, SLICE.columns);
        rows.reset();
        let rounds = (self.blocks + (SHARES_AT_ONCE - 1)) / SHARES_AT_ONCE;
        k.each_down("shares", rounds, k.constant(0), |n| {
            let ranks = (0..SHARES_AT_ONCE).rev().map(|i| n.mul_add(SHARES_AT_ONCE, k.constant(i)));
            let shares: Vec<_> = ranks.map(|rank| self.read(rank, slice)).collect();
            for (m_and_l, pieces) in shares {
                let [merged, new] = rows.merge(m_and_l);
                for (i, (value, other)) in o.values().iter().zip(pieces.as_flattened()).enumerate() {
                    let row = row_of_value(i);
                    value.set((value.get() * merged.0[row]).add_mul(*other, new.0[row]));
                }
            }
        });
        o
    }

    /// m and l of the share of block `rank`, and its part of a slice of O; of a block that does not exist: that no key was
    /// seen, and values to be ignored.
    fn read(&self, rank: Reg<'k, u32>, slice: Reg<'k, u32>) -> ([Reg<'k, f32>; 4], [[Reg<'k, f32>; AT_ONCE]; PIECES]) {
        let layout = &self.block.layout;
        let share = self.place.in_block(rank.min(self.blocks - 1));
        let [m0, m1, l0, l1] = share.load4(layout.sums);
        let pieces = Ptr::<ClusterShared, F32>::from_address(slice.mul_add(PIECES as u32 * self.stride(), share.address()));
        let o = std::array::from_fn(|i| pieces.load4(layout.k.buffers + i as u32 * self.stride()));
        let [m0, m1] = [m0, m1].map(|m| rank.lt(self.blocks).select(m, f32::NEG_INFINITY));
        ([m0, m1, l0, l1], o)
    }
}
