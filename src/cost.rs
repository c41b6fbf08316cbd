//! What a launch is expected to cost: how [`dispatch`](crate::dispatch()) chooses among tilings.
//!
//! The unit is the time in which a multiprocessor, kept busy with large tiles of `mma.sync`, computes one row-key pair: 0.127 ns
//! on an H200 at head_dim 128. A launch takes as long as the larger of two things: all its pairs, shared out among the
//! multiprocessors, and the block that sees the most keys, alone. Blocks start with the longest, so that little else matters:
//! where keys are split, what merging needs, and how fast keys and values arrive.

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

/// The constants of Hopper's kernels, fitted to 396 shapes of 8 to 8,192 tokens, over up to 30,000 keys, at head_dim 64, 96, 128
/// and 256, and 43 of 512 to 16,384 tokens in a row of launches at the limit of power (bf16, H200, 2026-11-30 and 12-01;
/// RESULTS.md, "The choice among forms"). On these dispatch picks what takes 0.5 % more than the fastest form and cluster on
/// average, and 12 % more at worst.
mod hopper {
    use crate::catalog::Entry;

    /// A pair where a tile's rows are two warpgroups'.
    const PAIR: f64 = 0.576;

    /// A pair in tiles of so many rows, where nothing else is computed. One warpgroup waits for its own products.
    pub(super) fn pair_alone(block_q: u32) -> f64 {
        match block_q / 64 {
            0 | 1 => PAIR * 1.61,
            2 => PAIR,
            _ => PAIR * 0.95,
        }
    }

    /// A pair where all multiprocessors compute. `neighbours`: how many blocks read K and V together, 1 if each reads its own.
    /// Three warpgroups, and neighbours, read K and V from L2 less often, which leaves more of the GPU's power to the products. At
    /// head_dim 64 and 80, where exponentials take as long as products, three warpgroups also hide one another's better. Neighbours
    /// save less where the heads of a group read the same keys anyway.
    pub(super) fn pair(entry: &Entry, neighbours: u32, group: u32) -> f64 {
        match (entry.head_dim, reads_less(entry.block_q, neighbours)) {
            (64, true) => PAIR * 0.855,
            (80, true) => PAIR * 0.88,
            (_, true) if neighbours > 1 && group > 1 => PAIR * 0.95 * 1.012,
            (_, true) => PAIR * 0.95,
            (_, false) => pair_alone(entry.block_q),
        }
    }

    fn reads_less(block_q: u32, neighbours: u32) -> bool {
        block_q / 64 > 2 || neighbours > 1
    }

    /// What going from a tile to the next costs, in keys: about a step (3,800 clocks, where a step takes 2,048), and not less than
    /// 150 where three warpgroups change tiles, or two blocks together.
    pub(super) fn tile_change(block_q: u32, block_kv: u32, neighbours: u32) -> u32 {
        if reads_less(block_q, neighbours) { block_kv.max(150) } else { block_kv }
    }

    /// How much less a pair takes where tiles follow one another, or how much more, for one warpgroup that waits at each change.
    pub(super) fn in_a_stream(block_q: u32) -> f64 {
        if block_q <= 64 { 1.08 } else { 0.98 }
    }

    /// The same for one warpgroup that shares its multiprocessor with another's: both together are faster than one, at
    /// head_dim 96 by less.
    pub(super) fn in_two_streams(head_dim: u32) -> f64 {
        if head_dim == 96 { 2.1 } else { 1.7 }
    }

    /// What a launch needs in addition, to start and to end: nothing with one warpgroup; some with two (2.5 us at head_dim 128);
    /// a little more with three, or with two blocks together.
    pub(super) fn start(block_q: u32, neighbours: u32) -> f64 {
        match (block_q / 64, neighbours) {
            (0 | 1, _) => 0.0,
            (2, 0 | 1) => 19_500.0,
            _ => 20_700.0,
        }
    }

    /// What clusters need in addition, to merge: with 64 rows, with more, and with 64 where two blocks share a multiprocessor.
    pub(super) const MERGE_SMALL: f64 = 14_000.0;
    pub(super) const MERGE_LARGE: f64 = 42_500.0;
    pub(super) const MERGE_TWO_BLOCKS: f64 = 19_000.0;

    /// How much longer a pair takes where two blocks of one warpgroup share a multiprocessor, each of which computes while the
    /// other waits.
    pub(super) const TWO_BLOCKS_SLOWDOWN: f64 = 1.37;

    /// A key and its value of one KV head on their way from memory and through L2, whatever the number of multiprocessors, as fitted:
    /// 512 bytes in 0.093 ns at head_dim 128. Where several tiles read them, half of the other reads cost as much again.
    pub(super) const COPIED: f64 = 0.73;
    pub(super) const READ_AGAIN: f64 = 0.5;

    /// How many clusters of 1 to 8 blocks run at once on the 132 multiprocessors of an H200, with one block each and with two
    /// (cuOccupancyMaxActiveClusters; 7: what was seen to run). All blocks of one share a GPC, and GPCs differ.
    const CLUSTERS: [[f64; 8]; 2] = [[132.0, 66.0, 39.0, 30.0, 22.0, 17.0, 15.0, 15.0], [264.0, 132.0, 83.0, 66.0, 47.0, 39.0, 33.0, 30.0]];

    /// How many clusters of so many blocks run at once, of which `blocks_per_sm` share a multiprocessor.
    pub(super) fn clusters_at_once(multiprocessors: f64, blocks_per_sm: u32, cluster: u32) -> f64 {
        let of_h200 = CLUSTERS[blocks_per_sm.clamp(1, 2) as usize - 1][cluster.clamp(1, 8) as usize - 1];
        (multiprocessors * of_h200 / 132.0).floor().max(1.0)
    }
}

/// Shared memory that the driver keeps of each block (CUDA programming guide, "Compute capabilities"); a multiprocessor
/// has as much more than one block can have.
const RESERVED_BYTES: u32 = 1024;

/// The expected time of the launch, and of all its pairs: the second decides where the longest block hides the first.
pub(crate) fn estimate(entry: &Entry, grid: &Grid, problem: &Problem, device: Capability) -> [f64; 2] {
    match entry.schedule {
        Schedule::Grid => grid_of_blocks(entry, grid, problem, device),
        Schedule::Persistent { .. } => persistent(entry, grid, problem, device),
        Schedule::Split { .. } => split(entry, grid, problem, device),
    }
}

/// Keys that a row sees, on average.
fn keys_of_a_row(problem: &Problem) -> f64 {
    let shape = problem.shape();
    let (q_len, kv_len) = (f64::from(shape.q_len), f64::from(shape.kv_len));
    match problem.mask() {
        Mask::Full => kv_len,
        Mask::Causal if kv_len >= q_len => kv_len - (q_len - 1.0) / 2.0,
        // The first rows see nothing; the last kv_len see 1, 2, ... kv_len keys.
        Mask::Causal => kv_len * (kv_len + 1.0) / 2.0 / q_len,
    }
}

/// Keys that the last row of a tile sees, on average over the tiles of a head.
fn keys_of_a_tile(mask: Mask, [q_len, kv_len]: [u32; 2], rows: f64) -> f64 {
    let (q_len, kv_len) = (f64::from(q_len), f64::from(kv_len));
    if mask == Mask::Full {
        return kv_len;
    }
    // Tile i ends with row (i + 1) rows, the last one with the queries; it sees nothing where that is at most q_len - kv_len.
    let tiles = (q_len / rows).ceil();
    let blind = ((q_len - kv_len).max(0.0) / rows).floor().min(tiles - 1.0);
    let seeing = tiles - 1.0 - blind;
    let ends = rows * seeing * (blind + 1.0 + tiles - 1.0) / 2.0;
    (ends + seeing * (kv_len - q_len) + kv_len) / tiles
}

fn multiprocessors(device: Capability) -> f64 {
    f64::from(device.multiprocessors.max(1))
}

fn grid_of_blocks(entry: &Entry, grid: &Grid, problem: &Problem, device: Capability) -> [f64; 2] {
    let pair = if entry.block_q < LARGE_ROWS { small_tile(entry.head_dim) } else { 1.0 };
    let rows = f64::from(entry.block_q);
    let in_company = device.shared_optin_bytes.saturating_add(RESERVED_BYTES) / entry.shared_bytes.saturating_add(RESERVED_BYTES) > 1;
    let all = grid.tiles() as f64 * rows * keys_of_a_row(problem) * pair / multiprocessors(device);
    let all = if in_company { all } else { all * ALONE };
    let longest = rows * f64::from(problem.shape().kv_len) * pair * ALONE;
    [all.max(longest), all]
}

fn persistent(entry: &Entry, grid: &Grid, problem: &Problem, device: Capability) -> [f64; 2] {
    let (shape, step, neighbours) = (problem.shape(), f64::from(entry.block_kv), grid.cluster().max(1));
    let (q_len, kv_len) = (f64::from(shape.q_len), f64::from(shape.kv_len));
    let change = f64::from(hopper::tile_change(entry.block_q, entry.block_kv, neighbours));
    // A tile's rows work on the keys that its last one sees, in whole steps. Under the causal mask the first tile sees fewest.
    let rows = f64::from(entry.block_q) * f64::from(neighbours);
    let (part_of_step, fewest) = match problem.mask() {
        Mask::Causal => (step / 2.0, (kv_len - q_len + rows).clamp(0.0, kv_len)),
        Mask::Full => (0.0, kv_len),
    };
    let keys = (keys_of_a_tile(problem.mask(), [shape.q_len, shape.kv_len], rows) + part_of_step).min(kv_len + step) + change;
    let pair = hopper::pair(entry, neighbours, problem.group());
    let (tiles, multiprocessors) = (grid.tiles() as f64, multiprocessors(device));
    // No multiprocessor is shared while there is one for each tile.
    let shared = grid.together() > 1 && tiles > multiprocessors;
    let (together, in_a_stream, slowdown_of_longest) = match shared {
        true => (grid.together(), hopper::in_two_streams(entry.head_dim), hopper::TWO_BLOCKS_SLOWDOWN),
        false => (1, hopper::in_a_stream(entry.block_q), 1.0),
    };
    // Those who get no tile in the last round wait for it, and its tiles are the shortest.
    let rounds = tiles / (multiprocessors * f64::from(together) / f64::from(neighbours));
    let all = (rounds * keys + (rounds.ceil() - rounds) * keys.min(fewest + change)) * f64::from(entry.block_q) * pair * in_a_stream;
    let longest = f64::from(entry.block_q) * (kv_len + step) * hopper::pair_alone(entry.block_q) * slowdown_of_longest;
    let start = hopper::start(entry.block_q, neighbours);
    [start + all.max(longest), all]
}

/// Clusters take one tile each. As many as fit run at once, then as many again; the last ones may have multiprocessors for
/// themselves that others had to share. All of those that run at once wait for keys and values, of which few rows need many.
fn split(entry: &Entry, grid: &Grid, problem: &Problem, device: Capability) -> [f64; 2] {
    let (rows, step, cluster) = (f64::from(entry.block_q), f64::from(entry.block_kv), grid.cluster().max(1));
    let (tiles, tiles_of_head) = (grid.tiles() as f64, f64::from(grid.tiles_of_head().max(1)));
    let fit = |blocks_per_sm| hopper::clusters_at_once(multiprocessors(device), blocks_per_sm, cluster);
    let reads_of_a_key = (1.0 + hopper::READ_AGAIN * (tiles_of_head - 1.0)) / tiles_of_head;
    // The time of `clusters` that run at once. Merging takes as long as a step.
    let turn = |clusters: f64, keys: f64| {
        let steps = (keys / step / f64::from(cluster)).ceil() + 1.0;
        let work = rows * step * steps * hopper::pair_alone(entry.block_q);
        let copies = clusters * keys * reads_of_a_key * hopper::COPIED;
        match (entry.block_q < LARGE_ROWS, clusters > fit(1)) {
            (true, true) => hopper::MERGE_TWO_BLOCKS + copies.max(work * hopper::TWO_BLOCKS_SLOWDOWN),
            (true, false) => hopper::MERGE_SMALL + copies.max(work),
            (false, _) => hopper::MERGE_LARGE + copies.max(work),
        }
    };
    let at_once = fit(entry.blocks_per_sm);
    let before = (tiles / at_once).ceil() - 1.0;
    let last = tiles - before * at_once;
    let keys = keys_of_a_row(problem);
    let all = before * turn(at_once, keys) + turn(last, keys);
    [all.max(turn(last, f64::from(problem.shape().kv_len))), all]
}

#[cfg(test)]
mod tests {
    use super::{hopper, keys_of_a_tile};
    use crate::shape::Mask;

    #[test]
    fn tiles_see_as_many_keys_as_their_last_rows() {
        for (q_len, kv_len) in [(1, 1), (64, 64), (65, 64), (200, 1000), (257, 256), (257, 257), (300, 30), (4096, 100), (1000, 1)] {
            for rows in [64, 128, 192, 256] {
                let ends = (1..=u32::div_ceil(q_len, rows)).map(|tile| (tile * rows).min(q_len));
                let seen: Vec<u32> = ends.map(|end| (kv_len + end).saturating_sub(q_len)).collect();
                let mean = f64::from(seen.iter().sum::<u32>()) / seen.len() as f64;
                let found = keys_of_a_tile(Mask::Causal, [q_len, kv_len], f64::from(rows));
                assert!((found - mean).abs() < 1e-9 * mean, "{q_len} x {kv_len}, {rows} rows: {found}, not {mean}");
                assert_eq!(keys_of_a_tile(Mask::Full, [q_len, kv_len], f64::from(rows)), f64::from(kv_len));
            }
        }
    }

    #[test]
    fn clusters_at_once_follow_the_multiprocessors() {
        let fit = |multiprocessors, together| [1, 2, 3, 4, 8].map(|cluster| hopper::clusters_at_once(multiprocessors, together, cluster));
        assert_eq!(fit(132.0, 1), [132.0, 66.0, 39.0, 30.0, 15.0]);
        assert_eq!(fit(132.0, 2), [264.0, 132.0, 83.0, 66.0, 30.0]);
        assert_eq!(fit(66.0, 2), [132.0, 66.0, 41.0, 33.0, 15.0]);
        assert_eq!(fit(1.0, 1), [1.0; 5], "never none");
        assert_eq!(hopper::clusters_at_once(90.0, 1, 5), 15.0, "22 of 132 are 15 of 90");
    }
}
