//! Elements of tensors as f32 values, rounded to what the element type can hold.

use attnpack::DType;
use half::{bf16, f16};

/// The nearest value of the element type.
pub fn round(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::BF16 => bf16::from_f32(value).to_f32(),
        DType::F32 => value,
    }
}

/// Values as they lie in memory.
pub fn encode(dtype: DType, values: &[f32], bytes: &mut [u8]) {
    for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(dtype.bytes() as usize)) {
        match dtype {
            DType::F16 => bytes.copy_from_slice(&f16::from_f32(*value).to_le_bytes()),
            DType::BF16 => bytes.copy_from_slice(&bf16::from_f32(*value).to_le_bytes()),
            DType::F32 => bytes.copy_from_slice(&value.to_le_bytes()),
        }
    }
}

/// The values in memory.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    match dtype {
        DType::F16 => pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
        DType::BF16 => pairs().map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
        DType::F32 => bytes.chunks_exact(4).map(|quad| f32::from_le_bytes([quad[0], quad[1], quad[2], quad[3]])).collect(),
    }
}
