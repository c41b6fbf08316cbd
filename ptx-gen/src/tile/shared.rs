//! Tiles in shared memory, laid out so that neither `ldmatrix` nor the copies meet bank conflicts.

use std::marker::PhantomData;

use super::element::TileElement;
use super::lanes::Lanes;
use crate::ptx::builder::Kernel;
use crate::ptx::types::{Bits32, Ptr, Reg, Shared};

/// Bytes of a chunk: what `ldmatrix` reads of a row, and the unit that the swizzle moves.
pub const CHUNK_BYTES: u32 = 16;

/// Chunks of a swizzle span: 128 bytes, all 32 banks.
const SPAN_CHUNKS: u32 = 8;

/// A row-major tile in which the same chunk of eight neighbouring rows lies in eight different groups of
/// banks: either chunk c of row r is stored as chunk `c ^ (r % 8)`, or rows are padded by one chunk.
/// The swizzle takes no memory; the padding takes no registers, since all of a lane's addresses then
/// differ in constants. [`DType::row_padding_bytes`](crate::variant::DType::row_padding_bytes) decides.
#[derive(Clone, Copy)]
pub struct SharedTile<'k, E> {
    /// The block's shared memory.
    base: Reg<'k, u32>,
    /// Distance of the tile from `base`: a constant, which instructions carry.
    offset: u32,
    /// Rows.
    pub rows: u32,
    /// Elements of a row.
    pub columns: u32,
    element: PhantomData<E>,
}

impl<'k, E: TileElement> SharedTile<'k, E> {
    /// Whether chunks are permuted; rows are padded otherwise.
    pub const IS_SWIZZLED: bool = E::DTYPE.row_padding_bytes() == 0;

    /// The tile at the start of the block's shared memory.
    pub fn first(k: &'k Kernel, rows: u32, columns: u32) -> Self {
        SharedTile { base: k.shared_base(), offset: 0, rows, columns, element: PhantomData }
    }

    /// A tile of `rows` rows just behind this one.
    pub fn followed_by(&self, rows: u32) -> Self {
        SharedTile { offset: self.offset + self.rows * self.row_bytes(), rows, ..*self }
    }

    /// Distance between rows in bytes.
    pub fn row_bytes(&self) -> u32 {
        self.columns * E::BYTES + E::DTYPE.row_padding_bytes()
    }

    /// Distance in bytes from the start of the block's shared memory.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Address of 32-bit word `word` of chunk `chunk` of `row`, less the tile's offset.
    pub fn address(&self, row: Reg<'k, u32>, chunk: Reg<'k, u32>, word: Option<Reg<'k, u32>>) -> Reg<'k, u32> {
        let stored = if Self::IS_SWIZZLED { chunk ^ (row & (SPAN_CHUNKS - 1)) } else { chunk };
        let start = stored.mul_add(CHUNK_BYTES, row.mul_add(self.row_bytes(), self.base));
        word.map_or(start, |word| word.mul_add(4u32, start))
    }

    /// Reads fragments whose rows are the rows of the operand: Q as the left operand from `first_row`,
    /// and V (transposed while reading) as the right one.
    pub fn left_fragments(&self, at: Lanes<'k>, first_row: Option<Reg<'k, u32>>) -> Fragments<'k, E> {
        // Lanes 0-15 address the rows of the left two matrices, lanes 16-31 those of the right two.
        let row = at.lane & 15;
        let row = first_row.map_or(row, |first| first + row);
        Fragments { tile: *self, lane: self.address(row, at.lane >> 4, None) }
    }

    /// Reads fragments whose rows are the columns of the operand: K as the right operand of S = Q K^T.
    pub fn right_fragments(&self, at: Lanes<'k>) -> Fragments<'k, E> {
        // Lanes 0-7 and 8-15: rows 0-7, left and right chunk. Lanes 16-31: rows 8-15.
        let row = (at.lane & 7) + ((at.lane >> 4) << 3);
        Fragments { tile: *self, lane: self.address(row, (at.lane >> 3) & 1, None) }
    }

    /// Reads single words: lane (quad, in_quad) has row 2 * in_quad and the column of its quad, within blocks of 8 x 8.
    pub fn words(&self, at: Lanes<'k>) -> Fragments<'k, E> {
        let row = at.in_quad << 1;
        Fragments { tile: *self, lane: self.address(row, at.quad >> 2, Some(at.quad & 3)) }
    }
}

/// A lane's address into a tile. What leads from there to other rows and chunks is a constant of the
/// instruction, but for an XOR with a constant where the tile is swizzled.
#[derive(Clone, Copy)]
pub struct Fragments<'k, E> {
    tile: SharedTile<'k, E>,
    lane: Reg<'k, u32>,
}

impl<'k, E: TileElement> Fragments<'k, E> {
    /// Rows of the tile.
    pub fn rows(&self) -> u32 {
        self.tile.rows
    }

    /// Elements of a row of the tile.
    pub fn columns(&self) -> u32 {
        self.tile.columns
    }

    /// Pointer and byte offset for `row`, a multiple of 8, and `chunk`.
    fn at(&self, row: u32, chunk: u32) -> (Ptr<'k, Shared, E>, u32) {
        assert!(row.is_multiple_of(8), "row {row}: the swizzle would depend on it");
        let row_offset = self.tile.offset + row * self.tile.row_bytes();
        if !SharedTile::<E>::IS_SWIZZLED {
            return (Ptr::from_address(self.lane), row_offset + chunk * CHUNK_BYTES);
        }
        // The XOR is the same for all rows of the tile.
        let (span, chunk) = (chunk / SPAN_CHUNKS, chunk % SPAN_CHUNKS);
        let address = if chunk == 0 { self.lane } else { self.lane ^ (chunk * CHUNK_BYTES) };
        (Ptr::from_address(address), row_offset + span * SPAN_CHUNKS * CHUNK_BYTES)
    }

    /// Four 8x8 matrices: rows `row` to `row` + 15, chunks `chunk` (even) and `chunk` + 1.
    pub fn load(&self, row: u32, chunk: u32, trans: bool) -> [Reg<'k, Bits32>; 4] {
        let (ptr, offset) = self.at(row, chunk);
        self.lane.kernel().load_matrices(trans, ptr, offset)
    }

    /// The word of this lane in the 8x8 block at (`row`, `chunk`), `chunk` even, and the one in the row below it.
    pub fn load_word_pair(&self, row: u32, chunk: u32) -> [Reg<'k, f32>; 2] {
        let (even, offset) = self.at(row, chunk);
        // The row below an even one has the next odd number: a swizzle differs in the lowest bit.
        let (odd, odd_offset) = if SharedTile::<E>::IS_SWIZZLED { self.at(row, chunk + 1) } else { (even, offset) };
        [even.load(offset), odd.load(odd_offset + self.tile.row_bytes())]
    }
}
