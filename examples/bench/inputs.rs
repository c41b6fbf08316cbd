//! Tensors of random numbers on the GPU, in several sets that do not fit the L2 cache together.

use std::sync::Arc;

use attnpack::cudarc::driver::sys::CUdevice_attribute;
use attnpack::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use attnpack::{Operand, Pointers, Problem};

use super::reference::data::normal;
use super::reference::element::encode;
use super::support::driver_error;

const OPERANDS: [Operand; 4] = [Operand::Q, Operand::K, Operand::V, Operand::O];

/// q, k, v and o of a problem.
pub struct InputSet {
    /// Keeps the memory.
    _tensors: Vec<CudaSlice<u8>>,
    pointers: Pointers,
}

impl InputSet {
    /// So many sets, or as many as exceed twice the L2 cache: when a set's turn comes, nothing of it is in the cache.
    ///
    /// # Errors
    /// The driver's, when the memory of the GPU is too small for example.
    pub fn several(stream: &Arc<CudaStream>, problem: &Problem, count: Option<usize>) -> Result<Vec<Self>, String> {
        let bytes: u64 = OPERANDS.iter().map(|operand| problem.span_bytes(*operand)).sum();
        let l2 = stream.context().attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).map_err(driver_error)?;
        let enough = (2 * u64::from(l2.unsigned_abs()) / bytes + 1).clamp(2, 512) as usize;
        let numbers = stream.clone_htod(&random_bytes(problem)).map_err(driver_error)?;
        let sets = (0..count.unwrap_or(enough)).map(|_| Self::new(stream, problem, &numbers)).collect::<Result<_, _>>()?;
        stream.synchronize().map_err(driver_error)?;
        Ok(sets)
    }

    fn new(stream: &Arc<CudaStream>, problem: &Problem, numbers: &CudaSlice<u8>) -> Result<Self, String> {
        let mut tensors = Vec::new();
        for (n, operand) in OPERANDS.into_iter().enumerate() {
            let bytes = problem.span_bytes(operand) as usize;
            let mut tensor = stream.alloc_zeros::<u8>(bytes).map_err(driver_error)?;
            // A long tensor repeats the numbers, which are a prime number of elements, so that its rows differ. Every
            // tensor starts elsewhere among them, so that queries are not keys.
            let (mut start, mut from) = (0, numbers.len() / 4 / 16 * 16 * n);
            while start < bytes {
                let count = (bytes - start).min(numbers.len() - from);
                let (numbers, mut part) = (numbers.slice(from..from + count), tensor.slice_mut(start..start + count));
                stream.memcpy_dtod(&numbers, &mut part).map_err(driver_error)?;
                (start, from) = (start + count, 0);
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

fn random_bytes(problem: &Problem) -> Vec<u8> {
    const COUNT: usize = 1_000_003;
    let numbers: Vec<f32> = normal(1).take(COUNT).collect();
    let mut bytes = vec![0; COUNT * problem.dtype().bytes() as usize];
    encode(problem.dtype(), &numbers, &mut bytes);
    bytes
}
