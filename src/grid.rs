//! How a kernel cuts a problem into tiles, and shares them out among blocks.

use crate::catalog::{Entry, Group, Schedule};
use crate::problem::Problem;
use crate::shape::Mask;

/// The most blocks that a grid has in its second and third dimension (CUDA programming guide, "Compute capabilities").
pub(crate) const LIMIT_YZ: u32 = 65_535;

/// The most blocks that a grid has in its first dimension.
const LIMIT_X: u64 = (1 << 31) - 1;

/// The most tiles that the blocks of a persistent grid can claim: claims are counted in 24 bits, one beyond the end each.
const LIMIT_CLAIMS: u64 = (1 << 23) - 1;

/// A section of heads keeps its keys and values in this much of L2 (H200: 50 MB), and has no more KV heads than this.
const SECTION_BYTES: u64 = 32 << 20;
const SECTION_KV_HEADS: u64 = 32;

/// The tiles of one launch: query rows of one head, or of one group of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Query heads, or KV heads where a group is packed into a tile.
    heads: u32,
    /// Tiles of a head's rows.
    tiles: u32,
    batch: u32,
    blocks: Blocks,
}

/// The blocks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocks {
    /// One for each tile.
    OnePerTile,
    /// Which stay and claim tiles: so many for each multiprocessor, in clusters of so many. The blocks of a cluster take
    /// neighbouring tiles of the kernel's, which the grid counts as one.
    Persistent { together: u32, cluster: u32 },
    /// A cluster of so many for each tile.
    Cluster(u32),
}

impl Grid {
    /// Every way in which `entry` can be launched for `problem`: none when there are more tiles than a grid can have, several
    /// where blocks split the keys of a tile, or stay and could share multiprocessors.
    pub(crate) fn all(entry: &Entry, problem: &Problem) -> impl Iterator<Item = Self> + use<> {
        let (heads, tiles, batch) = (entry.heads(problem), entry.tiles_of_head(problem), problem.shape().batch);
        let grid = move |blocks| Some(Grid { heads, tiles: tiles?, batch, blocks }).filter(Grid::fits);
        entry.blocks().filter_map(grid)
    }

    /// Whether there are no more tiles than a grid can have.
    fn fits(&self) -> bool {
        match self.blocks {
            Blocks::OnePerTile => self.tiles <= LIMIT_YZ,
            Blocks::Persistent { .. } => self.tiles() <= LIMIT_CLAIMS,
            Blocks::Cluster(blocks) => self.tiles() * u64::from(blocks) <= LIMIT_X,
        }
    }

    /// Blocks in x, y and z. The kernels that have a block for each tile count on heads varying fastest, then tiles.
    pub(crate) fn dims(&self, multiprocessors: u32) -> [u32; 3] {
        match self.blocks {
            Blocks::OnePerTile => [self.heads, self.tiles, self.batch],
            Blocks::Persistent { together, cluster } => {
                let clusters = (multiprocessors.saturating_mul(together) / cluster).max(1);
                [self.tiles().min(clusters.into()) as u32 * cluster, 1, 1]
            }
            Blocks::Cluster(blocks) => [self.tiles() as u32 * blocks, 1, 1],
        }
    }

    /// Blocks of a cluster; they split the keys of a tile, or take neighbouring ones. 1 where each takes its own.
    pub(crate) fn cluster(&self) -> u32 {
        match self.blocks {
            Blocks::OnePerTile => 1,
            Blocks::Persistent { cluster, .. } | Blocks::Cluster(cluster) => cluster,
        }
    }

    /// Blocks that stay on a multiprocessor together. 1 where blocks do not stay.
    pub(crate) fn together(&self) -> u32 {
        if let Blocks::Persistent { together, .. } = self.blocks { together } else { 1 }
    }

    /// Whether clusters of blocks of which `blocks_per_sm` fit a multiprocessor are to be spread evenly: where some have to share.
    /// As long as there is a multiprocessor for each block, they get them without being asked.
    pub(crate) fn balances_load(&self, blocks_per_sm: u32, multiprocessors: u32) -> bool {
        let shares = blocks_per_sm > 1 && self.dims(multiprocessors)[0] > multiprocessors;
        matches!(self.blocks, Blocks::Cluster(_)) && shares
    }

    /// Tiles of a head.
    pub(crate) fn tiles_of_head(&self) -> u32 {
        self.tiles
    }

    /// Query heads, or KV heads where a group is packed into a tile.
    pub(crate) fn heads(&self) -> u32 {
        self.heads
    }

    /// How many heads, counted over all batches, are worked on together; a divisor of all.
    ///
    /// Under the causal mask, as many as keep the tiles of a section well sorted and its keys and values in L2. Otherwise one:
    /// all tiles take equally long, and blocks that read the same keys find them in L2 (1,864 against 1,440 us for 2 x 8,192
    /// tokens, 16 heads of 128; H200, 2026-11-30).
    pub(crate) fn section_heads(&self, problem: &Problem) -> u32 {
        if problem.mask() == Mask::Full {
            return 1;
        }
        let heads = self.heads.saturating_mul(self.batch);
        let heads_of_kv_head = self.heads / problem.shape().kv_heads.max(1);
        let row_elems = u64::from(problem.shape().head_dim) + u64::from(problem.v_head_dim());
        let kv_head_bytes = u64::from(problem.shape().kv_len) * row_elems * u64::from(problem.dtype().bytes());
        let kv_heads = (SECTION_BYTES / kv_head_bytes).clamp(1, SECTION_KV_HEADS);
        let limit = u64::from(heads_of_kv_head) * kv_heads;
        (1..=limit.min(u64::from(heads)) as u32).rev().find(|section| heads.is_multiple_of(*section)).unwrap_or(1)
    }

    /// How many tiles of a head blocks take from the last one down, longest first; the others follow from the first one up.
    ///
    /// All of them, as a rule: what ends last is then short. But where a multiprocessor gets one or two blocks and no more,
    /// those that come second are to be shortest where the first are longest (16 heads of 2,048 tokens, head_dim 128: 67
    /// instead of 81 us; H200, 2026-11-30).
    pub(crate) fn longest_first(&self, multiprocessors: u32) -> u32 {
        let once = u64::from(multiprocessors);
        let one_or_two_each = self.batch == 1 && (once + 1..=2 * once).contains(&self.tiles());
        match multiprocessors / self.heads.max(1) {
            tiles_in_first_round @ 1.. if one_or_two_each => tiles_in_first_round.min(self.tiles),
            _ => self.tiles,
        }
    }

    /// How many tiles there are.
    pub(crate) fn tiles(&self) -> u64 {
        u64::from(self.heads) * u64::from(self.tiles) * u64::from(self.batch)
    }
}

/// Tokens of a tile that has the rows of all heads of a group.
pub(crate) fn packed_tokens(block_q: u32, group: u32) -> u32 {
    (block_q / group.max(1)).max(1)
}

impl Entry {
    /// The ways to share tiles out among blocks.
    fn blocks(&self) -> impl Iterator<Item = Blocks> + use<> {
        let schedule = self.schedule;
        let numbers = match schedule {
            Schedule::Grid => &[1],
            Schedule::Persistent { together, .. } => together,
            Schedule::Split { clusters, .. } => clusters,
        };
        numbers.iter().map(move |&blocks| match schedule {
            Schedule::Grid => Blocks::OnePerTile,
            Schedule::Persistent { cluster, .. } => Blocks::Persistent { together: blocks, cluster: cluster.max(1) },
            Schedule::Split { .. } => Blocks::Cluster(blocks),
        })
    }

    /// Query heads, or KV heads where a group is packed into a tile.
    fn heads(&self, problem: &Problem) -> u32 {
        match (self.schedule, self.group) {
            (Schedule::Split { .. }, _) | (_, Group::Packed(_)) => problem.shape().kv_heads,
            (Schedule::Grid | Schedule::Persistent { .. }, Group::Any) => problem.shape().q_heads,
        }
    }

    /// Tiles of each of them; `None`: more than 32 bits count.
    fn tiles_of_head(&self, problem: &Problem) -> Option<u32> {
        let (q_len, block_q) = (problem.shape().q_len, self.block_q.max(1));
        match (self.schedule, self.group) {
            (Schedule::Split { .. }, _) => Some(q_len.div_ceil(packed_tokens(block_q, problem.group()))),
            // A row is a pair of token and query head, and a token's rows may be of two tiles.
            (_, Group::Packed(group)) => q_len.checked_mul(group).map(|rows| rows.div_ceil(block_q)),
            (_, Group::Any) => Some(q_len.div_ceil(block_q * self.neighbours())),
        }
    }

    /// Neighbouring tiles that are one of the grid's.
    fn neighbours(&self) -> u32 {
        if let Schedule::Persistent { cluster, .. } = self.schedule { cluster.max(1) } else { 1 }
    }

    /// Tiles of the problem.
    pub(crate) fn tiles(&self, problem: &Problem) -> u64 {
        let of_head = self.tiles_of_head(problem).unwrap_or(u32::MAX);
        u64::from(of_head) * u64::from(self.heads(problem)) * u64::from(problem.shape().batch)
    }

    /// The most tiles that one launch takes, where tiles are all in one dimension of the grid.
    pub(crate) fn most_tiles(&self) -> Option<u64> {
        match self.schedule {
            Schedule::Grid => None,
            Schedule::Persistent { .. } => Some(LIMIT_CLAIMS),
            Schedule::Split { clusters, .. } => clusters.iter().map(|blocks| LIMIT_X / u64::from((*blocks).max(1))).max(),
        }
    }

    /// The longest q_len that one launch takes.
    pub(crate) fn longest(&self) -> u64 {
        let rows = u64::from(self.block_q) * u64::from(self.neighbours());
        match (self.schedule, self.group) {
            (Schedule::Persistent { .. }, _) => LIMIT_CLAIMS * rows,
            (Schedule::Split { .. }, _) => LIMIT_X,
            (Schedule::Grid, Group::Any) => u64::from(LIMIT_YZ) * rows,
            (Schedule::Grid, Group::Packed(group)) => u64::from(LIMIT_YZ) * rows / u64::from(group.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Blocks, Grid};

    #[test]
    fn long_blocks_meet_short_ones_where_each_multiprocessor_gets_one_or_two() {
        let longest_first = |heads, tiles, batch| Grid { heads, tiles, batch, blocks: Blocks::OnePerTile }.longest_first(132);
        assert_eq!(longest_first(16, 16, 1), 8, "128 blocks go first, 128 second");
        assert_eq!(longest_first(12, 16, 1), 11);
        assert_eq!(longest_first(200, 1, 1), 1, "a head's only tile");
        assert_eq!(longest_first(12, 11, 1), 11, "132 blocks: one each");
        assert_eq!(longest_first(8, 16, 1), 16, "128 blocks: fewer than multiprocessors");
        assert_eq!(longest_first(16, 17, 1), 17, "272 blocks: more than two each");
        assert_eq!(longest_first(16, 8, 2), 8, "batch elements follow one another");
    }
}
