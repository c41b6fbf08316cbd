//! How a kernel cuts a problem into blocks.

use crate::catalog::{Entry, Group};
use crate::problem::Problem;

/// The most blocks that a grid has in its second and third dimension (CUDA programming guide, "Compute capabilities").
pub(crate) const LIMIT_YZ: u32 = 65_535;

/// The blocks of one launch: a block computes one tile of query rows of one head, or of one group of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Query heads, or KV heads where a group is packed into a tile.
    heads: u32,
    /// Tiles of a head's rows.
    tiles: u32,
    batch: u32,
}

impl Grid {
    /// `None` when there are more tiles than a grid can have. A row is a query token, or a pair of token and query head
    /// where a group is packed; `Problem` keeps the number of rows within 31 bits.
    pub(crate) fn new(entry: &Entry, problem: &Problem) -> Option<Self> {
        let shape = problem.shape();
        let (rows, heads) = match entry.group {
            Group::Any => (shape.q_len, shape.q_heads),
            Group::Packed(group) => (shape.q_len.checked_mul(group)?, shape.kv_heads),
        };
        let tiles = rows.div_ceil(entry.block_q.max(1));
        (tiles <= LIMIT_YZ).then_some(Grid { heads, tiles, batch: shape.batch })
    }

    /// Blocks in x, y and z. The kernels count on heads varying fastest, then tiles.
    pub(crate) fn dims(&self) -> [u32; 3] {
        [self.heads, self.tiles, self.batch]
    }

    /// How many tiles of a head blocks take from the last one down, longest first; the others follow from the first one up.
    ///
    /// All of them, as a rule: what ends last is then short. But where a multiprocessor gets one or two blocks and no more,
    /// those that come second are to be shortest where the first are longest (16 heads of 2,048 tokens, head_dim 128: 67
    /// instead of 81 us; H200, 2026-11-30).
    pub(crate) fn longest_first(&self, multiprocessors: u32) -> u32 {
        let once = u64::from(multiprocessors);
        let one_or_two_each = self.batch == 1 && (once + 1..=2 * once).contains(&self.blocks());
        match multiprocessors / self.heads.max(1) {
            tiles_in_first_round @ 1.. if one_or_two_each => tiles_in_first_round.min(self.tiles),
            _ => self.tiles,
        }
    }

    /// How many blocks there are.
    pub(crate) fn blocks(&self) -> u64 {
        u64::from(self.heads) * u64::from(self.tiles) * u64::from(self.batch)
    }
}

impl Entry {
    /// The longest q_len that one launch takes.
    pub(crate) fn longest(&self) -> u64 {
        let heads = match self.group {
            Group::Any => 1,
            Group::Packed(group) => u64::from(group.max(1)),
        };
        u64::from(LIMIT_YZ) * u64::from(self.block_q) / heads
    }
}

#[cfg(test)]
mod tests {
    use super::Grid;

    #[test]
    fn long_blocks_meet_short_ones_where_each_multiprocessor_gets_one_or_two() {
        let longest_first = |heads, tiles, batch| Grid { heads, tiles, batch }.longest_first(132);
        assert_eq!(longest_first(16, 16, 1), 8, "128 blocks go first, 128 second");
        assert_eq!(longest_first(12, 16, 1), 11);
        assert_eq!(longest_first(200, 1, 1), 1, "a head's only tile");
        assert_eq!(longest_first(12, 11, 1), 11, "132 blocks: one each");
        assert_eq!(longest_first(8, 16, 1), 16, "128 blocks: fewer than multiprocessors");
        assert_eq!(longest_first(16, 17, 1), 17, "272 blocks: more than two each");
        assert_eq!(longest_first(16, 8, 2), 8, "batch elements follow one another");
    }
}
