//! What the rows of a tile are: query tokens of one head, or of all heads of a group, which then share K and V.

use super::stream::quotient;
use crate::ptx::builder::Kernel;
use crate::ptx::types::Reg;
use crate::variant::Variant;

/// How the rows of a tile are divided into tokens and heads.
#[derive(Clone, Copy)]
pub enum Packing<'k> {
    /// So many tokens of one head.
    OneHead(u32),
    /// (token, head) pairs, tokens first, as launch parameters say. The last rows of a tile may be nobody's.
    Group {
        /// Query heads per KV head.
        heads: Reg<'k, u32>,
        /// Tokens of a tile.
        tokens: Reg<'k, u32>,
    },
}

impl<'k> Packing<'k> {
    /// Where keys are split there are few tokens, and heads fill the rows of a tile.
    pub fn new(k: &'k Kernel, variant: &Variant) -> Self {
        if variant.tiling.form.splits_keys() {
            Packing::Group { heads: k.param("packed_heads"), tokens: k.param("tile_tokens") }
        } else {
            Packing::OneHead(variant.tiling.block_q)
        }
    }

    /// First token of tile number `row` of a head.
    pub fn first_token(&self, row: Reg<'k, u32>) -> Reg<'k, u32> {
        match *self {
            Packing::OneHead(tokens) => row * tokens,
            Packing::Group { tokens, .. } => row * tokens,
        }
    }

    /// First query head of a tile's head, which is a KV head where a group is packed.
    pub fn first_head(&self, head: Reg<'k, u32>) -> Reg<'k, u32> {
        match *self {
            Packing::OneHead(_) => head,
            Packing::Group { heads, .. } => head * heads,
        }
    }

    /// Token of a row, from the tile's first one on.
    pub fn token(&self, row: Reg<'k, u32>) -> Reg<'k, u32> {
        match self {
            Packing::OneHead(_) => row,
            Packing::Group { .. } => quotient(row, "group"),
        }
    }

    /// Query head of a row whose token is `token`, from the tile's first one on; `None`: the first one.
    pub fn head(&self, row: Reg<'k, u32>, token: Reg<'k, u32>) -> Option<Reg<'k, u32>> {
        match *self {
            Packing::OneHead(_) => None,
            Packing::Group { heads, .. } => Some(row - token * heads),
        }
    }

    /// Rows that are somebody's; `None`: all.
    pub fn rows(&self) -> Option<Reg<'k, u32>> {
        match *self {
            Packing::OneHead(_) => None,
            Packing::Group { heads, tokens } => Some(heads * tokens),
        }
    }
}
