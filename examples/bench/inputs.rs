//! Random inputs on the GPU, in several sets that do not fit the L2 cache together.

use std::sync::Arc;

use attnpack::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use attnpack::{DType, Operand, Pointers, Problem};
use half::{bf16, f16};

use super::support::driver_error;

const OPERANDS: [Operand; 4] = [Operand::Q, Operand::K, Operand::V, Operand::O];

/// More than any L2 cache.
const ROTATED_BYTES: u64 = 256 << 20;

/// q, k, v and o of a problem.
pub struct InputSet {
    _tensors: Vec<CudaSlice<u8>>,
    pointers: Pointers,
}

impl InputSet {
    /// Two to eight sets, as many as rotate through more than the L2 cache.
    ///
    /// # Errors
    /// The driver's: the GPU's memory is too small, for example.
    pub fn several(stream: &Arc<CudaStream>, problem: &Problem) -> Result<Vec<Self>, String> {
        let bytes: u64 = OPERANDS.iter().map(|operand| problem.span_bytes(*operand)).sum();
        let normal = stream.clone_htod(&normal_bytes(problem.dtype())).map_err(driver_error)?;
        let count = (ROTATED_BYTES / bytes + 1).clamp(2, 8);
        let sets = (0..count).map(|_| Self::new(stream, problem, &normal)).collect::<Result<_, _>>()?;
        stream.synchronize().map_err(driver_error)?;
        Ok(sets)
    }

    fn new(stream: &Arc<CudaStream>, problem: &Problem, normal: &CudaSlice<u8>) -> Result<Self, String> {
        let mut tensors = Vec::new();
        for operand in OPERANDS {
            let bytes = problem.span_bytes(operand) as usize;
            let mut tensor = stream.alloc_zeros::<u8>(bytes).map_err(driver_error)?;
            // Copies of one block of random numbers, one after the other: rows of a tile still differ.
            for start in (0..bytes).step_by(normal.len()) {
                let end = bytes.min(start + normal.len());
                let (from, mut to) = (normal.slice(..end - start), tensor.slice_mut(start..end));
                stream.memcpy_dtod(&from, &mut to).map_err(driver_error)?;
            }
            tensors.push(tensor);
        }
        let [q, k, v, o] = std::array::from_fn(|n| tensors[n].device_ptr(stream).0);
        Ok(InputSet { _tensors: tensors, pointers: Pointers { q, k, v, o, lse: None } })
    }

    /// Where the tensors are.
    pub fn pointers(&self) -> Pointers {
        self.pointers
    }
}

/// Some 4 million standard normal numbers (a prime number of them, so that copies do not line up with rows).
fn normal_bytes(dtype: DType) -> Vec<u8> {
    const COUNT: usize = 4_000_037;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) + 1) as f32 / (1 << 24) as f32
    };
    let mut bytes = Vec::with_capacity(COUNT * dtype.bytes() as usize);
    for _ in 0..COUNT {
        // Box and Muller.
        let value = (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos();
        match dtype {
            DType::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
            DType::F32 => bytes.extend(value.to_le_bytes()),
        }
    }
    bytes
}
