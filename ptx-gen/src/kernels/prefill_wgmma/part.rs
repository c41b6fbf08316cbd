//! A warpgroup's part of a tile: which keys its rows see, and in which blocks they need a mask.
//!
//! Where rows are (token, head) pairs, the heads of a token may be divided between two warpgroups.

use super::{Block, WARPGROUP_ROWS};
use crate::ptx::types::Reg;
use crate::tile::packing::Packing;
use crate::tile::rows::PerRow;
use crate::tile::stream::QueryTile;

/// Keys of the half block that the causal diagonal may leave a warpgroup.
pub const HALF: u32 = WARPGROUP_ROWS;

/// 64 rows of a tile.
#[derive(Clone, Copy)]
pub struct Part<'a, 'k> {
    block: &'a Block<'a, 'k>,
    /// The tile.
    pub tile: QueryTile<Reg<'k, u32>>,
    /// First row of the warpgroup in a tile.
    first_row: Reg<'k, u32>,
    /// Blocks to the left of the tile's, if it is a share of a tile.
    before: Option<Reg<'k, u32>>,
    /// Whether the tile's first block was passed over: nothing of it is seen.
    pub passed_over: Option<Reg<'k, bool>>,
}

impl<'a, 'k> Part<'a, 'k> {
    /// The rows from `first_row` of `tile` on.
    pub fn new(block: &'a Block<'a, 'k>, tile: QueryTile<Reg<'k, u32>>, first_row: Reg<'k, u32>) -> Self {
        Part { block, tile, first_row, before: None, passed_over: None }
    }

    fn block_kv(&self) -> u32 {
        self.block.t.block_kv
    }

    fn packing(&self) -> Packing<'k> {
        self.block.order.packing
    }

    /// Token of a row of the warpgroup, from that of the first one on.
    fn token(&self, row: Reg<'k, u32>) -> Reg<'k, u32> {
        match self.packing() {
            Packing::OneHead(_) => row,
            packing @ Packing::Group { .. } => packing.token(self.first_row + row) - packing.token(self.first_row),
        }
    }

    fn kv_len(&self) -> Reg<'k, i32> {
        self.block.k.param::<u32>("kv_len").to_i32()
    }

    /// Last key that the first row sees under the causal mask; negative if none.
    fn last_key(&self) -> Reg<'k, i32> {
        let offset = self.kv_len() - self.block.k.param::<u32>("q_len").to_i32();
        let first_token = match self.packing() {
            Packing::OneHead(tokens) => self.tile.row.mul_add(tokens, self.first_row),
            packing @ Packing::Group { tokens, .. } => self.tile.row.mul_add(tokens, packing.token(self.first_row)),
        };
        first_token.to_i32() + offset
    }

    /// Keys that the last row sees under the causal mask if there are so many; 0 or less if none.
    fn seen_by_last(&self) -> Reg<'k, i32> {
        match self.packing() {
            Packing::OneHead(_) => self.last_key() + WARPGROUP_ROWS as i32,
            Packing::Group { .. } => self.last_key() + self.token(self.block.k.constant(WARPGROUP_ROWS - 1)).to_i32() + 1,
        }
    }

    /// Keys of the tile's first (rightmost) block that the last row sees; 0 or less if none.
    fn keys_in_first(&self) -> Reg<'k, i32> {
        let kv_len = self.kv_len();
        let seen = if self.block.is_causal() { self.seen_by_last().min(kv_len) } else { kv_len };
        seen - self.first_key(self.tile.blocks - 1)
    }

    /// The rows' part of a share of a tile, with `before` blocks to its left.
    pub fn of_share(self, before: Reg<'k, u32>) -> Self {
        Part { before: Some(before), ..self }
    }

    /// First key of block `n`.
    pub fn first_key(&self, n: Reg<'k, u32>) -> Reg<'k, i32> {
        (self.before.map_or(n, |before| n + before) * self.block_kv()).to_i32()
    }

    /// The part without the tile's first block, if the rows see nothing of it and it is not the only one.
    pub fn without_unseen_block(self) -> Self {
        let unseen = self.keys_in_first().le(0).and(self.tile.blocks.gt(1u32));
        let blocks = self.tile.blocks - unseen.select(1u32, 0u32);
        Part { tile: QueryTile { blocks, ..self.tile }, passed_over: Some(unseen), ..self }
    }

    /// How many blocks, from the tile's first (rightmost) one on, the rows see nothing of. Never all: the leftmost is not
    /// counted.
    pub fn unseen_blocks(&self) -> Reg<'k, u32> {
        let unseen_keys = (self.keys_in_first() - self.block_kv() as i32).min(0);
        let unseen_keys = (self.block.k.constant(0i32) - unseen_keys).to_u32();
        (unseen_keys / self.block_kv()).min(self.tile.blocks - 1)
    }

    /// The part without so many blocks.
    pub fn without(self, unseen: Reg<'k, u32>) -> Self {
        Part { tile: QueryTile { blocks: self.tile.blocks - unseen, ..self.tile }, ..self }
    }

    /// Whether the diagonal leaves the rows the left half of the first block: its first row then sees the first key.
    pub fn takes_half(&self) -> Reg<'k, bool> {
        self.keys_in_first().eq(HALF as i32)
    }

    /// Whether the rows see the whole first block, but for the diagonal in its right half.
    pub fn takes_whole(&self) -> Reg<'k, bool> {
        match self.before {
            None => self.keys_in_first().eq(self.block_kv() as i32),
            Some(_) => self.keys_in_first().gt(self.block_kv() as i32 - 1),
        }
    }

    /// Blocks, from the left and without the first (rightmost) one, that all rows see whole, and that lie behind some
    /// key which all rows see.
    pub fn whole_blocks(&self) -> Reg<'k, u32> {
        let rest = self.tile.blocks - 1;
        if !self.block.is_causal() {
            return rest;
        }
        let whole = self.last_key().max(0).to_u32() / self.block_kv();
        self.before.map_or(whole, |before| whole.max(before) - before).min(rest)
    }

    /// How many keys each of a lane's rows sees, less the lane's first column. `lane_row` is the lane's first row in
    /// the warpgroup.
    pub fn seen(&self, lane_row: Reg<'k, u32>, lane_column: Reg<'k, u32>) -> PerRow<Reg<'k, i32>> {
        let (kv_len, column) = (self.kv_len(), lane_column.to_i32());
        if !self.block.is_causal() {
            return PerRow::from_fn(2, |_| kv_len - column);
        }
        let token = |i: u32| self.token(lane_row + 8 * i).to_i32();
        PerRow::from_fn(2, |i| (self.last_key() + token(i as u32) + 1).min(kv_len) - column)
    }
}
