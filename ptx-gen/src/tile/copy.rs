//! Asynchronous copies of row tiles from global to shared memory, shared out among a block's threads.

use super::element::TileElement;
use super::lanes::Lanes;
use super::shared::{CHUNK_BYTES, SharedTile};
use crate::ptx::builder::Kernel;
use crate::ptx::types::{Global, Ptr, Reg, Shared};

/// A thread's share in filling tiles whose rows have the same length: the same column of every
/// `rows_per_pass`-th row.
pub struct TileCopy<'k, E> {
    k: &'k Kernel,
    row_bytes: u32,
    copy_bytes: u32,
    rows_per_pass: u32,
    /// This thread's row in the first pass.
    first_row: Reg<'k, u32>,
    /// This thread's place in a row, in bytes.
    column_bytes: Reg<'k, u32>,
    /// Where the first pass writes, less the tile's offset.
    dst: Ptr<'k, Shared, E>,
}

impl<'k, E: TileElement> TileCopy<'k, E> {
    /// `threads` threads fill tiles with rows like `tile`'s, by copies of `copy_bytes` (4 or 16).
    pub fn new(k: &'k Kernel, at: Lanes<'k>, tile: &SharedTile<'k, E>, threads: u32, copy_bytes: u32) -> Self {
        let copies_per_row = tile.columns * E::BYTES / copy_bytes;
        let first_row = at.thread / copies_per_row;
        let column = at.thread % copies_per_row;
        let copies_per_chunk = CHUNK_BYTES / copy_bytes;
        let word = (copies_per_chunk > 1).then(|| column % copies_per_chunk);
        TileCopy {
            k,
            row_bytes: tile.row_bytes(),
            copy_bytes,
            rows_per_pass: threads / copies_per_row,
            first_row,
            column_bytes: column * copy_bytes,
            dst: Ptr::from_address(tile.address(first_row, column / copies_per_chunk, word)),
        }
    }

    /// Copies each row from where `source` says that it starts; rows for which the condition that comes
    /// with it is false are filled with zeros.
    pub fn rows(&self, tile: &SharedTile<'k, E>, source: impl Fn(Reg<'k, u32>) -> (Ptr<'k, Global, E>, Reg<'k, bool>)) {
        for pass in 0..tile.rows / self.rows_per_pass {
            let (row, exists) = source(self.first_row + pass * self.rows_per_pass);
            let src = row.byte_offset(self.column_bytes.to_u64());
            self.copy(tile, pass, src, Some(exists));
        }
    }

    /// Copies rows `first` and following of a tensor whose rows lie `row_stride` elements apart. With
    /// `existing`, only so many rows exist from `first` on and the rest is filled with zeros.
    pub fn strided_rows(
        &self,
        tile: &SharedTile<'k, E>,
        (start, row_stride): (Ptr<'k, Global, E>, Reg<'k, u64>),
        first: Reg<'k, u32>,
        existing: Option<Reg<'k, i32>>,
    ) {
        let row = (first + self.first_row).to_u64();
        let mut src = start.offset(row * row_stride).byte_offset(self.column_bytes.to_u64());
        let step = row_stride * u64::from(self.rows_per_pass);
        let existing = existing.map(|rows| rows - self.first_row.to_i32());
        for pass in 0..tile.rows / self.rows_per_pass {
            let exists = existing.map(|rows| rows.gt((pass * self.rows_per_pass) as i32));
            self.copy(tile, pass, src, exists);
            src = src.offset(step);
        }
    }

    fn copy(&self, tile: &SharedTile<'k, E>, pass: u32, src: Ptr<'k, Global, E>, exists: Option<Reg<'k, bool>>) {
        let row = pass * self.rows_per_pass;
        // Rows of different passes may differ in their swizzle when a pass covers fewer than 8.
        let dst = match row % 8 {
            row if row == 0 || !SharedTile::<E>::IS_SWIZZLED => self.dst,
            row => Ptr::from_address(self.dst.address() ^ (row * CHUNK_BYTES)),
        };
        let src_bytes = exists.map(|exists| exists.select(self.copy_bytes, 0u32));
        self.k.copy_async(self.copy_bytes, (dst, tile.offset() + row * self.row_bytes), src, src_bytes);
    }
}
