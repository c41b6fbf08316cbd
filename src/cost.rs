//! What a launch is expected to cost: how [`dispatch`](crate::dispatch()) chooses among tilings.
//!
//! The unit is the time in which a multiprocessor, kept busy with large tiles, computes one row-key pair. A launch takes
//! as long as the larger of two things: all its pairs, shared out among the multiprocessors, and the block that sees the
//! most keys, alone. Blocks start with the longest, so that little else matters.

use crate::catalog::{Entry, Schedule};
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

/// A pair in kernels whose blocks stay and claim tiles, which are those for Hopper: 804 against 379 TFLOP/s where both fill the
/// GPU (bf16, head_dim 128, 8,192 tokens). They win alone too: 25 against 58 us for 192 tiles, 8.9 against 12.8 for 48, 5.2
/// against 5.3 for 32 tiles of 128 tokens (H200, 2026-11-30).
const PERSISTENT: f64 = 0.48;

/// A pair in those of them that have 64 rows, one warpgroup's: it waits for its own products. Alone in a tile it ends sooner
/// than two or three that take turns, but it leaves the tensor cores idle, the more so over many tiles. Measured, 64 rows
/// against 128 or 192: 7.1 against 9.0 us for 12 heads of 512 tokens at head_dim 128 and 5.8 against 8.7 for 14 at 64; 10.9
/// against 10.6 for 32 heads of 512 at 128, 25.4 against 24.8 for 14 heads of 2,048 at 64 (H200, 2026-11-30).
const ONE_WARPGROUP: f64 = 1.45;

/// The part of the multiprocessors that larger clusters find: all blocks of one share a GPC, and GPCs differ. Of an H200's 132,
/// 66 clusters of 2, 30 of 4 and 15 of 8 at once (cuOccupancyMaxActiveClusters).
const IN_CLUSTERS: f64 = 0.91;

/// Merging the shares of a tile takes as long as this many steps.
const MERGE_STEPS: f64 = 2.0;

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
    if let Schedule::Split { .. } = entry.schedule {
        let time = split(entry, grid, kv_len, device.multiprocessors.max(1));
        return [time, time];
    }
    // Going from a tile to the next takes a block that stays about as long as a step (3,800 against 2,048 clocks with one).
    let change = if let Schedule::Persistent(_) = entry.schedule { f64::from(entry.block_kv) } else { 0.0 };
    let pair = match entry.schedule {
        Schedule::Persistent(_) if entry.block_q < LARGE_ROWS => PERSISTENT * ONE_WARPGROUP,
        Schedule::Persistent(_) | Schedule::Split { .. } => PERSISTENT,
        Schedule::Grid if entry.block_q < LARGE_ROWS => small_tile(entry.head_dim),
        Schedule::Grid => 1.0,
    };
    let rows = f64::from(entry.block_q);
    let in_company = (device.shared_optin_bytes + RESERVED_BYTES) / (entry.shared_bytes + RESERVED_BYTES) > 1;
    let all = grid.tiles() as f64 * rows * (keys_of_a_row + change) * pair / f64::from(device.multiprocessors.max(1));
    let all = match entry.schedule {
        Schedule::Persistent(_) if entry.block_q < LARGE_ROWS => all * ALONE * ONE_WARPGROUP,
        _ if in_company => all,
        _ => all * ALONE,
    };
    let longest = rows * (kv_len + change) * pair * ALONE;
    [all.max(longest), all]
}

/// The time of clusters, each of which takes a tile: as long as the block with the most keys and the merge, and as often as
/// there are more tiles than clusters at once.
fn split(entry: &Entry, grid: &Grid, kv_len: f64, multiprocessors: u32) -> f64 {
    let (rows, cluster) = (f64::from(entry.block_q), f64::from(grid.cluster()));
    let step = f64::from(entry.block_kv);
    let keys = (kv_len / step / cluster).ceil() * step;
    let pair = if entry.block_q < LARGE_ROWS { PERSISTENT * ONE_WARPGROUP } else { PERSISTENT };
    let usable = if grid.cluster() > 2 { IN_CLUSTERS } else { 1.0 };
    let at_once = (f64::from(multiprocessors) * usable / cluster).floor().max(1.0);
    let turns = (grid.tiles() as f64 / at_once).ceil();
    turns * rows * (keys + MERGE_STEPS * step) * pair * ALONE
}
