//! How the blocks of a cluster merge what they found in their shares of a tile's keys.
//!
//! With the shares' references m_i, sums l_i and outputs O_i (not yet divided): m = max m_i, l = sum 2^(m_i - m) l_i and
//! O = sum 2^(m_i - m) O_i. Every thread leaves its own values where K was, and the same thread of the cluster's first
//! block takes them from there.

use super::Block;
use super::output::WARPGROUP_BARRIER;
use crate::ptx::inst::Special;
use crate::ptx::types::{Ptr, Reg, Shared};
use crate::ptx::warpgroup::{Accumulator, WARPGROUP};
use crate::tile::element::F32;
use crate::tile::weigh::{Rows, Weight};

/// Values that a thread moves at once, and their bytes.
const AT_ONCE: usize = 4;
const BYTES: u32 = 16;

/// A thread's place for its values: 16 bytes every 16 * 128.
pub struct Shares<'k> {
    place: Ptr<'k, Shared, F32>,
    /// Blocks of the cluster.
    blocks: Reg<'k, u32>,
}

/// Distance between a thread's values.
const STRIDE: u32 = BYTES * WARPGROUP;

impl<'k> Shares<'k> {
    /// The place of this thread.
    pub fn new(block: &Block<'_, 'k>) -> Self {
        let thread = block.k.special(Special::TidX) & (WARPGROUP - 1);
        let place = Ptr::from_address(thread.mul_add(BYTES, block.shared) + block.layout.k.buffers);
        Shares { place, blocks: block.k.special(Special::ClusterSizeX) }
    }

    /// Leaves this block's share: m and l of the lane's two rows, then O. Once all warps are done with K.
    pub fn leave<E: Weight>(&self, rows: &Rows<'k, E>, o: &Accumulator<'k>) {
        let k = self.blocks.kernel();
        k.named_barrier_wait(k.constant(WARPGROUP_BARRIER), WARPGROUP);
        self.place.store(&rows.m_and_l(), 0);
        for (offset, values) in (STRIDE..).step_by(STRIDE as usize).zip(o.values().chunks_exact(AT_ONCE)) {
            self.place.store(&[values[0].get(), values[1].get(), values[2].get(), values[3].get()], offset);
        }
    }

    /// Takes in the shares of the other blocks.
    pub fn merge<E: Weight>(&self, rows: &Rows<'k, E>, o: &Accumulator<'k>) {
        let k = self.blocks.kernel();
        k.each_down("share", self.blocks, k.constant(1), |rank| {
            let share = self.place.in_block(rank);
            let [mine, theirs] = rows.merge(share.load4(0));
            for (offset, values) in (STRIDE..).step_by(STRIDE as usize).zip(o.values().chunks_exact(AT_ONCE)) {
                for (i, (value, other)) in values.iter().zip(share.load4::<f32>(offset)).enumerate() {
                    value.set((value.get() * mine.0[i / 2]).add_mul(other, theirs.0[i / 2]));
                }
            }
        });
    }
}
