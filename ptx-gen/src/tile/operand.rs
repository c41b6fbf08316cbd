//! Tiles in shared memory as the warpgroup multiplications read them, and as `ldmatrix` does.
//!
//! A tile of 16-bit elements is stored as chunks of columns, `[columns / chunk][rows][chunk]`, whose rows are a swizzle
//! span of the copy engine. In a span of 128 bytes, 16-byte piece c of row r lies at c ^ (r % 8); shorter spans share
//! 128 bytes, and the rows in them share the permutation.

use super::element::Half;
use super::ring::Stage;
use crate::ptx::builder::Kernel;
use crate::ptx::types::{Bits32, Ptr, Reg, Shared, Var};
use crate::ptx::warpgroup::Multiplier;

/// How a row is cut into chunks.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Columns of a chunk: 64, 32 or 16.
    pub columns: u32,
}

impl Chunk {
    /// The largest chunks that rows of `columns` elements, a multiple of 16, are made of.
    pub const fn of(columns: u32) -> Self {
        let mut chunk = 64;
        while !columns.is_multiple_of(chunk) {
            chunk /= 2;
        }
        Chunk { columns: chunk }
    }

    /// Bytes of a row of a chunk: the swizzle's span.
    pub const fn row_bytes(self) -> u32 {
        2 * self.columns
    }

    /// Multiplications across a chunk.
    pub const fn steps(self) -> u32 {
        self.columns / K16
    }

    /// The swizzle in a descriptor: 1, 2 and 3 for spans of 128, 64 and 32 bytes.
    const fn descriptor_code(self) -> u64 {
        7 - self.columns.ilog2() as u64
    }

    /// Which piece of a span holds piece `piece` of row `row`.
    fn swizzled<'k>(self, row: Reg<'k, u32>, piece: Reg<'k, u32>) -> Reg<'k, u32> {
        let rows_per_line = SWIZZLE_ROWS * UNIT / self.row_bytes();
        piece ^ ((row >> rows_per_line.ilog2()) & (self.row_bytes() / UNIT - 1))
    }
}

/// Depth of one multiplication.
pub const K16: u32 = 16;

/// Rows after which the swizzle repeats.
const SWIZZLE_ROWS: u32 = 8;

/// Descriptors count in 16 bytes.
const UNIT: u32 = 16;

/// Start of a tile in shared memory as a descriptor (PTX ISA, "Matrix Descriptor"): bits 0-13 the address, 16-29 the
/// leading and 32-45 the stride byte offset, all in units of 16 bytes; bits 62-63 the swizzle.
#[derive(Clone, Copy)]
pub struct Operand<'k> {
    base: Reg<'k, u64>,
    chunk: Chunk,
    rows: u32,
    columns: u32,
}

impl<'k> Operand<'k> {
    /// The tile of `rows` x `columns` elements whose chunks start at `address`. `chunk_rows` is how many rows its
    /// chunks are apart: more than `rows` if it is a slice of a larger tile.
    pub fn new(address: Reg<'k, u32>, chunk_rows: u32, columns: u32) -> Self {
        let chunk = Chunk::of(columns);
        let leading = u64::from(chunk_rows * chunk.row_bytes() / UNIT) << 16;
        let stride = u64::from(SWIZZLE_ROWS * chunk.row_bytes() / UNIT) << 32;
        let base = ((address & 0x3_FFFF) >> UNIT.ilog2()).to_u64() + ((chunk.descriptor_code() << 62) | stride | leading);
        Operand { base, chunk, rows: chunk_rows, columns }
    }

    /// The tile in the current stage of its ring, if this is the one in the first.
    pub fn at(&self, stage: &Stage<'k>, stage_bytes: u32) -> Self {
        let base = self.base + (stage.index() * (stage_bytes / UNIT)).to_u64();
        Operand { base, ..*self }
    }

    /// Descriptor of 16 columns for a product over columns (Q and K in S = Q K^T).
    fn columns16(&self, step: u32) -> Reg<'k, u64> {
        let (chunk, inside) = (step / self.chunk.steps(), step % self.chunk.steps());
        self.base + u64::from((chunk * self.rows * self.chunk.row_bytes() + inside * 2 * K16) / UNIT)
    }

    /// Descriptor of 16 rows for a product over rows (V in O = P V); the leading offset leads to the next chunk.
    fn rows16(&self, step: u32) -> Reg<'k, u64> {
        self.base + u64::from(step * K16 * self.chunk.row_bytes() / UNIT)
    }

    /// (+)= the product with the rows of `keys`: S = Q K^T.
    pub fn mul_t<E: Half>(&self, m: &Multiplier<'_, 'k>, keys: &Operand<'k>, first: Reg<'k, bool>, then: Reg<'k, bool>) {
        for step in 0..self.columns / K16 {
            let accumulate = if step == 0 { first } else { then };
            m.shared(E::MMA, self.columns16(step), keys.columns16(step), accumulate);
        }
    }

    /// (+)= the product of packed weights with this tile's rows: O += P V.
    pub fn weighted_sum<E: Half>(&self, m: &Multiplier<'_, 'k>, p: &[Var<'k, Bits32>], first: Reg<'k, bool>, then: Reg<'k, bool>) {
        for (step, p) in (0u32..).zip(p.chunks_exact(4)) {
            let accumulate = if step == 0 { first } else { then };
            m.registers(E::MMA, [p[0], p[1], p[2], p[3]], self.rows16(step), accumulate);
        }
    }
}

/// A lane's address for `ldmatrix` into 16 rows of a swizzled tile.
#[derive(Clone, Copy)]
pub struct LaneRows<'k> {
    address: Reg<'k, u32>,
    chunk: Chunk,
    rows: u32,
}

impl<'k> LaneRows<'k> {
    /// Rows as rows of a left operand, in chunks of `rows` rows, from `address`, the start of its first row: lanes 0-15 address the left two
    /// matrices, 16-31 the right two.
    pub fn left(address: Reg<'k, u32>, lane: Reg<'k, u32>, chunk: Chunk, rows: u32) -> Self {
        Self::new(address, lane & 15, lane >> 4, chunk, rows)
    }

    /// Rows as columns of a right operand: lanes 0-7 and 8-15 address the left and right piece of rows 0-7, 16-31 of
    /// rows 8-15.
    pub fn right(address: Reg<'k, u32>, lane: Reg<'k, u32>, chunk: Chunk, rows: u32) -> Self {
        Self::new(address, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1, chunk, rows)
    }

    fn new(address: Reg<'k, u32>, row: Reg<'k, u32>, piece: Reg<'k, u32>, chunk: Chunk, rows: u32) -> Self {
        let swizzled = chunk.swizzled(row, piece) << UNIT.ilog2();
        LaneRows { address: row.mul_add(chunk.row_bytes(), address) + swizzled, chunk, rows }
    }

    /// The same rows in the current stage of their ring.
    pub fn at(&self, stage: &Stage<'k>) -> Self {
        LaneRows { address: stage.offset_from(self.address), ..*self }
    }

    /// The same rows from chunk `n` on.
    pub fn chunk(&self, n: Reg<'k, u32>) -> Self {
        LaneRows { address: n.mul_add(self.rows * self.chunk.row_bytes(), self.address), ..*self }
    }

    /// Pointer and byte offset of columns 16 * `step` and following, 16-byte piece `half` of the two, `row` rows on.
    pub fn columns16<E: Half>(&self, step: u32, row: u32) -> (Ptr<'k, Shared, E>, u32) {
        let (chunk, inside) = (step / self.chunk.steps(), step % self.chunk.steps());
        let address = if inside == 0 { self.address } else { self.address ^ (inside * 2 * UNIT) };
        (Ptr::from_address(address), (chunk * self.rows + row) * self.chunk.row_bytes())
    }

    /// Four 8x8 matrices.
    pub fn load<E: Half>(&self, k: &'k Kernel, step: u32, row: u32) -> [Reg<'k, Bits32>; 4] {
        let (rows, offset) = self.columns16::<E>(step, row);
        k.load_matrices(false, rows, offset)
    }
}
