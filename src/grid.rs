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
