//! What a block works on: which query rows, which keys they see, and where both lie in memory.

use std::marker::PhantomData;

use super::lanes::Lanes;
use super::rows::PerRow;
use crate::ptx::builder::Kernel;
use crate::ptx::inst::Special;
use crate::ptx::types::{Element, Global, Ptr, Reg};
use crate::variant::{Group, Mask, Tiling, Variant};

/// A tensor's head in one batch: pointer to its first token, and the strides that lead on.
pub struct HeadRows<'k, E> {
    /// Element 0 of token 0.
    pub start: Ptr<'k, Global, E>,
    /// Elements between tokens.
    pub seq_stride: Reg<'k, u64>,
    /// Elements between heads.
    pub head_stride: Reg<'k, u64>,
}

impl<'k, E: Element> HeadRows<'k, E> {
    /// Tensor `name` (q, k, v or o) at `batch` and `head`.
    pub fn new(k: &'k Kernel, name: &str, batch: Reg<'k, u32>, head: Reg<'k, u32>) -> Self {
        let stride = |axis: &str| k.param::<u64>(&format!("{name}_{axis}_stride"));
        let head_stride = stride("head");
        let offset = batch.to_u64() * stride("batch") + head.to_u64() * head_stride;
        let start = Ptr::from_address(k.param::<u64>(name)).offset(offset);
        HeadRows { start, seq_stride: stride("seq"), head_stride }
    }
}

/// The query rows of a block: tokens of one head, or (token, head) pairs of a packed group.
pub struct QueryRows<'k, E> {
    group: Group,
    /// Batch index.
    pub batch: Reg<'k, u32>,
    /// The row's query head, or the first of the packed group.
    head: Reg<'k, u32>,
    /// KV head that the rows attend to.
    pub kv_head: Reg<'k, u32>,
    /// First row of the tile.
    first: Reg<'k, u32>,
    /// Rows of the whole problem.
    total: Reg<'k, u32>,
    block_q: u32,
    element: PhantomData<E>,
}

impl<'k, E: Element> QueryRows<'k, E> {
    /// The rows of this block, from its index: (head or KV head, tile, batch). Of a batch element, the
    /// first blocks take the last tiles of all heads, which see the most keys: the longest work starts
    /// first, and K and V of one batch element are in use at a time. Where all blocks run at once, the
    /// launcher lets the second half go from the first tile up, so that long and short ones share a
    /// multiprocessor.
    pub fn of_block(k: &'k Kernel, variant: &Variant) -> Self {
        let (head_index, batch) = (k.special(Special::CtaIdX), k.special(Special::CtaIdZ));
        let q_len = k.param::<u32>("q_len");
        let (head, kv_head, total) = match variant.group {
            Group::Packed(heads) => (head_index * heads, head_index, q_len * heads),
            // Exact while heads x ratio < 2^32. A division would leave the uniform datapath, and with it put
            // every K and V address into vector registers.
            Group::Any => (head_index, (head_index.to_u64() * k.param::<u64>("group_reciprocal")).high_half(), q_len),
        };
        let (turn, longest_first) = (k.special(Special::CtaIdY), k.param::<u32>("longest_first"));
        let from_last = k.special(Special::NctaIdY) - 1 - turn;
        let tile = turn.lt(longest_first).select(from_last, turn - longest_first);
        let block_q = variant.tiling.block_q;
        QueryRows { group: variant.group, batch, head, kv_head, first: tile * block_q, total, block_q, element: PhantomData }
    }

    /// Tensor `name` (q or o) from the rows' first head on.
    pub fn tensor(&self, k: &'k Kernel, name: &str) -> HeadRows<'k, E> {
        HeadRows::new(k, name, self.batch, self.head)
    }

    /// The rows that a lane holds in its fragments.
    pub fn of_lane(&self, t: &Tiling, at: Lanes<'k>) -> PerRow<Reg<'k, u32>> {
        let first = self.first + self.first_of_warp(t, at) + at.quad;
        PerRow::from_fn(2 * t.fragments_per_warp() as usize, |i| first + 8 * i as u32)
    }

    /// First row of the lane's warp, within the tile.
    pub fn first_of_warp(&self, t: &Tiling, at: Lanes<'k>) -> Reg<'k, u32> {
        at.warp * (16 * t.fragments_per_warp())
    }

    /// Token of a row.
    fn token(&self, row: Reg<'k, u32>) -> Reg<'k, u32> {
        match self.group {
            Group::Packed(heads) => row / heads,
            Group::Any => row,
        }
    }

    /// Query head of a row, counted from the block's first.
    fn head_in_group(&self, row: Reg<'k, u32>) -> Option<Reg<'k, u32>> {
        match self.group {
            Group::Packed(heads) => Some(row % heads),
            Group::Any => None,
        }
    }

    /// Whether a row belongs to the problem: the last tile may reach beyond it.
    pub fn exists(&self, row: Reg<'k, u32>) -> Reg<'k, bool> {
        row.lt(self.total)
    }

    /// A row by its place in the tile.
    pub fn in_tile(&self, row: Reg<'k, u32>) -> Reg<'k, u32> {
        self.first + row
    }

    /// Where `row` starts in `tensor`.
    pub fn start_of(&self, row: Reg<'k, u32>, tensor: &HeadRows<'k, E>) -> Ptr<'k, Global, E> {
        let token = tensor.start.offset(self.token(row).to_u64() * tensor.seq_stride);
        match self.head_in_group(row) {
            Some(head) => token.offset(head.to_u64() * tensor.head_stride),
            None => token,
        }
    }

    /// Where the row's log-sum-exp is stored, in f32 `[batch, q_heads, q_len]`.
    pub fn lse_row(&self, k: &'k Kernel, row: Reg<'k, u32>) -> Ptr<'k, Global, super::element::F32> {
        let head = self.head_in_group(row).map_or(self.head, |head| self.head + head);
        let head_row = self.batch.to_u64() * k.param::<u32>("q_heads").to_u64() + head.to_u64();
        let index = head_row * k.param::<u32>("q_len").to_u64() + self.token(row).to_u64();
        Ptr::from_address(k.param::<u64>("lse")).offset(index)
    }

    /// Whether the caller wants the log-sum-exp.
    pub fn wants_lse(&self, k: &'k Kernel) -> Reg<'k, bool> {
        k.param::<u64>("lse").gt(0u64)
    }
}

/// The keys that a block's rows see, in tiles of `block_kv`.
pub struct VisibleKeys<'k> {
    kv_len: Reg<'k, i32>,
    /// Key position of query token 0: kv_len - q_len, which the causal mask aligns to the bottom right.
    offset: Reg<'k, i32>,
    /// Whether the mask is causal; `None`: always.
    causal: Option<Reg<'k, bool>>,
    block_kv: u32,
    /// Tiles that some row of the block sees.
    pub tiles: Reg<'k, u32>,
    /// Tiles, from the left, that every row sees whole.
    pub whole_tiles: Reg<'k, u32>,
}

impl<'k> VisibleKeys<'k> {
    /// The keys that the block's first and last rows see bound those of all its rows.
    pub fn of_block<E: Element>(k: &'k Kernel, variant: &Variant, rows: &QueryRows<'k, E>) -> Self {
        let kv_len = k.param::<u32>("kv_len").to_i32();
        let offset = kv_len - k.param::<u32>("q_len").to_i32();
        let causal = match variant.mask {
            Mask::Causal | Mask::Full => None,
            Mask::Any => Some(k.param::<u32>("causal").eq(1u32)),
        };
        let block_kv = variant.tiling.block_kv;
        let mut keys = VisibleKeys { kv_len, offset, causal, block_kv, tiles: rows.first, whole_tiles: rows.first };
        let last_row = (rows.first + rows.block_q).min(rows.total) - 1;
        let count = |row| keys.seen_by(rows.token(row)).max(0).to_u32();
        let (least, most) = (count(rows.first), count(last_row));
        (keys.tiles, keys.whole_tiles) = ((most + (block_kv - 1)) / block_kv, least / block_kv);
        keys
    }

    /// How many keys a query token sees: 0 or fewer if none, kv_len at most.
    fn seen_by(&self, token: Reg<'k, u32>) -> Reg<'k, i32> {
        let causal = (token.to_i32() + self.offset + 1).min(self.kv_len);
        self.causal.map_or(causal, |is_causal| is_causal.select(causal, self.kv_len))
    }

    /// How many keys each of a lane's rows sees.
    pub fn seen_by_lane<E: Element>(&self, rows: &QueryRows<'k, E>, lane_rows: &PerRow<Reg<'k, u32>>) -> PerRow<Reg<'k, i32>> {
        lane_rows.map(|row| self.seen_by(rows.token(row)))
    }

    /// How many keys exist from tile `n` on: fewer than a tile's worth in the last one.
    pub fn existing_from(&self, n: Reg<'k, u32>) -> Reg<'k, i32> {
        self.kv_len - self.first_of(n)
    }

    /// First key of tile `n`.
    pub fn first_of(&self, n: Reg<'k, u32>) -> Reg<'k, i32> {
        (n * self.block_kv).to_i32()
    }
}
