//! Elements of q, k, v and o, as types: pointers and tiles carry them.

use crate::ptx::inst::MmaType;
use crate::ptx::types::Element;
use crate::variant::DType;

/// IEEE half precision.
#[derive(Clone, Copy, Debug)]
pub struct F16;

/// bfloat16.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

/// IEEE single precision.
#[derive(Clone, Copy, Debug)]
pub struct F32;

/// A 64-bit word that blocks share.
#[derive(Clone, Copy, Debug)]
pub struct Word;

impl Element for Word {
    const BYTES: u32 = 8;
}

impl Element for F16 {
    const BYTES: u32 = 2;
}

impl Element for Bf16 {
    const BYTES: u32 = 2;
}

impl Element for F32 {
    const BYTES: u32 = 4;
}

/// An element of tiles in shared memory.
pub trait TileElement: Element {
    /// The variant's name for it.
    const DTYPE: DType;
}

impl TileElement for F16 {
    const DTYPE: DType = DType::F16;
}

impl TileElement for Bf16 {
    const DTYPE: DType = DType::Bf16;
}

impl TileElement for F32 {
    const DTYPE: DType = DType::F32;
}

/// A 16-bit element that tensor cores multiply directly.
pub trait Half: TileElement {
    /// Operand type of the instruction.
    const MMA: MmaType;
}

impl Half for F16 {
    const MMA: MmaType = MmaType::F16;
}

impl Half for Bf16 {
    const MMA: MmaType = MmaType::Bf16;
}
