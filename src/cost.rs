//! What a launch is expected to cost: how [`dispatch`](crate::dispatch()) chooses among tilings.
//!
//! The unit is the time in which a multiprocessor, kept busy with large tiles, computes one row-key pair. A launch takes
//! as long as the larger of two things: all its pairs, shared out among the multiprocessors, and the block that sees the
//! most keys, alone. Blocks start with the longest, so that little else matters.

use crate::catalog::Entry;
use crate::dispatch::Capability;
use crate::grid::Grid;
use crate::problem::Problem;
use crate::shape::Mask;

/// Rows from which on a tile counts as large.
const LARGE_ROWS: u32 = 128;

/// Smaller tiles read K and V from shared memory more often for each row: a pair costs 1.22 to 1.26 times as much where
/// blocks of 64 and of 128 rows both fill the GPU (bf16, head_dim 64 and 128, H200, 2026-11-30). At head_dim 64 they also
/// lose more where they do not quite fill it: there the measured factor at the point where both take the same time.
fn small_tile(head_dim: u32) -> f64 {
    if head_dim <= 64 { 1.45 } else { 1.25 }
}

/// A block alone on a multiprocessor leaves it idle while it waits: it takes longer than its pairs would in company. So do
/// all blocks where shared memory has room for one at a time. Measured: at head_dim 128, 64 rows beat 128 for 192 blocks of
/// 128 (12 heads of 2,048 tokens, 57 against 63 us) and 240 (1.04 times), tie at 256 and lose from 384 on (0.9).
const ALONE: f64 = 1.2;

/// Shared memory that the driver keeps of each block (CUDA programming guide, "Compute capabilities"); a multiprocessor
/// has as much more than one block can have.
const RESERVED_BYTES: u32 = 1024;

/// The expected time of the launch, and of all its pairs: the second decides where the longest block hides the first.
pub(crate) fn estimate(entry: &Entry, grid: &Grid, problem: &Problem, device: Capability) -> [f64; 2] {
    let shape = problem.shape();
    let (q_len, kv_len) = (f64::from(shape.q_len), f64::from(shape.kv_len));
    let keys_of_a_row = match problem.mask() {
        Mask::Full => kv_len,
        Mask::Causal if kv_len >= q_len => kv_len - (q_len - 1.0) / 2.0,
        // The first rows see nothing; the last kv_len see 1, 2, ... kv_len keys.
        Mask::Causal => kv_len * (kv_len + 1.0) / 2.0 / q_len,
    };
    let pair = if entry.block_q < LARGE_ROWS { small_tile(entry.head_dim) } else { 1.0 };
    let rows = f64::from(entry.block_q);
    let in_company = (device.shared_optin_bytes + RESERVED_BYTES) / (entry.shared_bytes + RESERVED_BYTES) > 1;
    let all = grid.blocks() as f64 * rows * keys_of_a_row * pair / f64::from(device.multiprocessors.max(1));
    let all = if in_company { all } else { all * ALONE };
    let longest = rows * kv_len * pair * ALONE;
    [all.max(longest), all]
}
