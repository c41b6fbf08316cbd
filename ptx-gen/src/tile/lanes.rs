//! Where a thread stands: its warp, its lane, and its place in the fragments of `mma.sync`.

use crate::ptx::builder::Kernel;
use crate::ptx::inst::Special;
use crate::ptx::types::Reg;

/// A thread's position. Made once, before any loop.
///
/// In an m16n8 accumulator a lane holds two neighbouring columns of two rows:
/// ```text
///          columns 0 1   2 3   4 5   6 7
/// row g      lane 4g   4g+1  4g+2  4g+3      values 0, 1     g = lane / 4 = `quad`
/// row g + 8  lane 4g   4g+1  4g+2  4g+3      values 2, 3     lane % 4 = `in_quad`
/// ```
#[derive(Clone, Copy)]
pub struct Lanes<'k> {
    /// Thread index in the block.
    pub thread: Reg<'k, u32>,
    /// Warp index in the block, uniform.
    pub warp: Reg<'k, u32>,
    /// Lane in the warp.
    pub lane: Reg<'k, u32>,
    /// Index of the group of four lanes that share rows.
    pub quad: Reg<'k, u32>,
    /// Lane within that group.
    pub in_quad: Reg<'k, u32>,
}

impl<'k> Lanes<'k> {
    /// Reads the thread's indices.
    pub fn new(k: &'k Kernel) -> Self {
        let thread = k.special(Special::TidX);
        let lane = thread & 31;
        Lanes { thread, warp: (thread >> 5).broadcast(), lane, quad: lane >> 2, in_quad: lane & 3 }
    }
}
