//! The stream of tiles that a persistent block works on: their order, and how the producer tells the consumers.

use super::packing::Packing;
use crate::ptx::builder::Kernel;
use crate::ptx::inst::Special;
use crate::ptx::types::{Element, Ptr, Reg, Scalar, Shared, Var};
use crate::variant::{Mask, Variant};

/// A tile of query rows.
#[derive(Clone, Copy)]
pub struct QueryTile<T> {
    /// Number of the tile in its head.
    pub row: T,
    /// Query head; KV head where a group is packed.
    pub head: T,
    /// Batch index.
    pub batch: T,
    /// Key blocks that it works on, at least 1; 0: not a tile, the end of the stream.
    pub blocks: T,
}

impl<T: Copy> QueryTile<T> {
    /// Applies `f` to each field.
    pub fn map<U>(&self, mut f: impl FnMut(T) -> U) -> QueryTile<U> {
        QueryTile { row: f(self.row), head: f(self.head), batch: f(self.batch), blocks: f(self.blocks) }
    }
}

impl<'k, S: Scalar> QueryTile<Var<'k, S>> {
    /// The current values.
    pub fn get(&self) -> QueryTile<Reg<'k, S>> {
        self.map(|v| v.get())
    }

    /// Replaces the values.
    pub fn set(&self, tile: &QueryTile<Reg<'k, S>>) {
        let pairs = [(self.row, tile.row), (self.head, tile.head), (self.batch, tile.batch), (self.blocks, tile.blocks)];
        for (var, value) in pairs {
            var.set(value);
        }
    }
}

/// The tiles of a problem, in the order in which they are taken: heads in sections whose keys and values stay in
/// L2, and within a section the last tile of every head first, which sees the most keys under a causal mask.
#[derive(Clone, Copy)]
pub struct TileOrder<'k> {
    k: &'k Kernel,
    mask: Mask,
    /// What the rows of a tile are.
    pub packing: Packing<'k>,
    block_kv: u32,
    /// How many neighbouring tiles are one tile of the order, each for a block of a cluster.
    neighbours: u32,
    /// Tiles of the problem; neighbours that are taken together count as one.
    pub tiles: Reg<'k, u32>,
}

impl<'k> TileOrder<'k> {
    /// The order of this launch.
    pub fn new(k: &'k Kernel, variant: &Variant) -> Self {
        let packing = Packing::new(k, variant);
        TileOrder {
            k,
            mask: variant.mask,
            packing,
            block_kv: variant.tiling.block_kv,
            neighbours: variant.tiling.form.neighbours(),
            tiles: k.param("tiles"),
        }
    }

    /// The tile of this block that needs no claim.
    pub fn first(&self) -> QueryTile<Reg<'k, u32>> {
        self.tile(self.k.special(if self.neighbours == 1 { Special::CtaIdX } else { Special::ClusterIdX }))
    }

    /// The tile of this block's cluster, if each takes one.
    pub fn of_cluster(&self) -> QueryTile<Reg<'k, u32>> {
        self.tile(self.k.special(Special::ClusterIdX))
    }

    /// This block's share of a tile of a cluster: the tile with the blocks of its share, one at least, and the number
    /// of blocks to their left. Behind the last block there are only keys that no row sees.
    pub fn share(&self, tile: QueryTile<Reg<'k, u32>>) -> (QueryTile<Reg<'k, u32>>, Reg<'k, u32>) {
        let (rank, size) = (self.k.special(Special::ClusterRank), self.k.special(Special::ClusterSizeX));
        let most = quotient(tile.blocks + size - 1, "cluster");
        let before = rank * most;
        let blocks = (tile.blocks.max(before + 1) - before).min(most);
        (QueryTile { blocks, ..tile }, before)
    }

    /// Number `index` in the order.
    pub fn tile(&self, index: Reg<'k, u32>) -> QueryTile<Reg<'k, u32>> {
        let k = self.k;
        let (q_tiles, section_heads) = (k.param::<u32>("q_tiles"), k.param::<u32>("section_heads"));
        let (section, inside) = self.divide(index, "section_tiles", section_heads * q_tiles);
        let (from_last, head_in_section) = self.divide(inside, "section_heads", section_heads);
        let (batch, head) = self.divide(section.mul_add(section_heads, head_in_section), "heads", k.param("heads"));
        let row = q_tiles - 1 - from_last;
        if self.neighbours == 1 {
            return QueryTile { row, head, batch, blocks: self.blocks(row) };
        }
        // All walk the keys that the last of them sees, to keep in step.
        let first = row * self.neighbours;
        QueryTile { row: first + k.special(Special::ClusterRank), head, batch, blocks: self.blocks(first + (self.neighbours - 1)) }
    }

    /// Blocks of keys that the rows of tile `row` see, and one even if they see none.
    fn blocks(&self, row: Reg<'k, u32>) -> Reg<'k, u32> {
        let kv_len = self.k.param::<u32>("kv_len");
        let seen = match self.mask {
            Mask::Causal => {
                let offset = kv_len.to_i32() - self.k.param::<u32>("q_len").to_i32();
                let first = self.packing.first_token(row).to_i32() + offset;
                let end = match self.packing {
                    Packing::OneHead(tokens) => first + tokens as i32,
                    Packing::Group { tokens, .. } => first + tokens.to_i32(),
                };
                end.min(kv_len.to_i32()).max(1).to_u32()
            }
            Mask::Full | Mask::Any => kv_len,
        };
        (seen + (self.block_kv - 1)) / self.block_kv
    }

    /// KV head of a tile's head.
    pub fn kv_head(&self, head: Reg<'k, u32>) -> Reg<'k, u32> {
        match self.packing {
            Packing::OneHead(_) => quotient(head, "group"),
            Packing::Group { .. } => head,
        }
    }

    fn divide(&self, n: Reg<'k, u32>, name: &str, divisor: Reg<'k, u32>) -> (Reg<'k, u32>, Reg<'k, u32>) {
        let quotient = quotient(n, name);
        (quotient, n - quotient * divisor)
    }
}

/// n / d for a divisor of the parameter block, exact for n below 2^31 and any d: with e = factor * d - 2^(31 + shift)
/// < d <= 2^shift, it is as long as n * e < 2^(31 + shift).
pub fn quotient<'k>(n: Reg<'k, u32>, divisor: &str) -> Reg<'k, u32> {
    let part = |name: &str| n.kernel().param::<u32>(&format!("{divisor}_{name}"));
    (n << 1).mul_high(part("factor")) >> part("shift")
}

/// Bytes of a tile's description.
pub const NOTE_BYTES: u32 = 16;

/// Where the producer leaves a tile's description: one place for each stage of the ring of Q, whose full barrier says
/// that it is there.
#[derive(Clone, Copy)]
pub struct TileNotes<'k> {
    k: &'k Kernel,
    shared: Reg<'k, u32>,
    offset: u32,
}

impl<'k> TileNotes<'k> {
    /// At `offset` of shared memory.
    pub fn new(k: &'k Kernel, shared: Reg<'k, u32>, offset: u32) -> Self {
        TileNotes { k, shared, offset }
    }

    fn place(&self, stage: Reg<'k, u32>) -> Ptr<'k, Shared, NoteWord> {
        Ptr::from_address(stage.mul_add(NOTE_BYTES, self.shared))
    }

    /// Writes the description; the stage is empty.
    pub fn write(&self, stage: Reg<'k, u32>, tile: &QueryTile<Reg<'k, u32>>) {
        self.place(stage).store(&[tile.row, tile.head, tile.batch, tile.blocks], self.offset);
    }

    /// Says that there is no further tile.
    pub fn write_end(&self, stage: Reg<'k, u32>) {
        let zero = self.k.constant(0u32);
        self.write(stage, &QueryTile { row: zero, head: zero, batch: zero, blocks: zero });
    }

    /// Reads the description, uniform; the stage is full.
    pub fn read(&self, stage: Reg<'k, u32>) -> QueryTile<Reg<'k, u32>> {
        let [row, head, batch, blocks] = self.place(stage).load4(self.offset);
        QueryTile { row, head, batch, blocks }.map(|value: Reg<'k, u32>| value.broadcast())
    }
}

/// A 32-bit word that threads of a block tell each other.
#[derive(Clone, Copy)]
pub struct NoteWord;

impl Element for NoteWord {
    const BYTES: u32 = 4;
}
