//! Tensors whose rows lie further apart than 32 bits can count: small problems in a large allocation.

use std::sync::Arc;

use attnpack::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use attnpack::{DType, Entry, Mask, Operand, Pointers, Problem, Shape, Strides};

use super::attention::Output;
use super::cases::Case;
use super::data::Kind;
use super::gpu::driver_error;
use super::image::{Image, row_bytes, row_offsets};
use super::kernels::Kernel;
use super::layout::{Layout, Place, extents};

/// The dimension whose stride is huge.
#[derive(Clone, Copy, Debug)]
pub enum Far {
    /// Batches.
    Batch,
    /// Tokens.
    Token,
    /// Heads.
    Head,
}

/// The last row starts more than so many elements after the first.
const REACH: u64 = 1 << 32;
/// Elements for what is not far apart.
const NEAR: u64 = 1 << 22;

/// Size of the allocation for an element type.
pub fn buffer_bytes(dtype: DType) -> usize {
    ((REACH + NEAR) * u64::from(dtype.bytes())) as usize
}

/// Strides of a tensor of `[batch, seq, heads]`. Four tensors lie side by side in rows of `row` elements.
fn strides(far: Far, [batch, seq, heads]: [u32; 3], head_dim: u32, row: u64) -> Strides {
    // One row more than needed: an offset that lost its upper half does not lead back to the first row.
    let huge = |extent: u32| (REACH / u64::from(extent - 1)).next_multiple_of(row) + row;
    match far {
        Far::Batch => Strides { batch: huge(batch), seq: row, head: head_dim.into() },
        Far::Token => Strides { batch: row, seq: huge(seq), head: head_dim.into() },
        Far::Head => Strides { batch: row * u64::from(seq), seq: row, head: huge(heads) },
    }
}

/// A problem whose rows are far apart, and where its tensors lie in the allocation.
struct Spread {
    problem: Problem,
    places: [Place; 4],
    /// Of the LSE, in bytes.
    lse: usize,
}

impl Spread {
    fn new(near: &Problem, far: Far) -> Result<Self, String> {
        let (shape, dtype) = (*near.shape(), near.dtype());
        let side = u64::from(shape.q_heads * shape.head_dim);
        let places: [Place; 4] = std::array::from_fn(|n| Place {
            offset: n * (side as usize) * dtype.bytes() as usize,
            strides: strides(far, extents(&shape)[n], shape.head_dim, 4 * side),
        });
        let [q, k, v, o] = places.map(|place| place.strides);
        let builder = Problem::prefill(dtype, shape)
            .v_head_dim(near.v_head_dim())
            .mask(near.mask())
            .q_strides(q)
            .k_strides(k)
            .v_strides(v)
            .o_strides(o);
        let problem = builder.with_lse().build().map_err(|error| error.to_string())?;
        let lse = buffer_bytes(dtype) - problem.span_bytes(Operand::Lse) as usize;
        for (operand, place) in [Operand::Q, Operand::K, Operand::V, Operand::O].into_iter().zip(&places) {
            let end = place.offset + problem.span_bytes(operand) as usize;
            if problem.span_elems(operand) <= REACH || end > lse {
                return Err(format!("{far:?}: {operand} is not spread over the allocation"));
            }
        }
        Ok(Spread { problem, places, lse })
    }

    /// Offsets in bytes of each row of a tensor, in the image and in the allocation, and its size.
    fn rows(&self, near: &Image, n: usize) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let (extents, dtype) = (extents(self.problem.shape())[n], self.problem.dtype());
        let bytes = row_bytes(&self.problem, n);
        let offsets = row_offsets(&near.placement.tensors[n], extents, dtype).zip(row_offsets(&self.places[n], extents, dtype));
        offsets.map(move |(near, far)| (near, far, bytes))
    }
}

/// Puts a problem's rows far apart, runs a kernel on them, and collects the results.
///
/// # Errors
/// What is wrong, accuracy aside.
pub fn run(kernel: &Kernel, near: &Image, far: Far, buffer: &mut CudaSlice<u8>, stream: &Arc<CudaStream>) -> Result<Output<f32>, String> {
    let spread = Spread::new(&near.problem, far)?;
    // Rows of o are NaN in the image.
    for (from, to, bytes) in (0..4).flat_map(|n| spread.rows(near, n)) {
        let mut row = buffer.slice_mut(to..to + bytes);
        stream.memcpy_htod(&near.bytes[from..from + bytes], &mut row).map_err(driver_error)?;
    }
    let start = buffer.device_ptr(stream).0;
    let [q, k, v, o] = spread.places.map(|place| start + place.offset as u64);
    let pointers = Pointers { q, k, v, o, lse: Some(start + spread.lse as u64) };
    // SAFETY: `Spread::new` saw that the tensors end within the allocation, which is used on this stream only.
    unsafe { kernel.device.launch(&spread.problem, pointers, stream.cu_stream()) }.map_err(|error| error.to_string())?;

    let mut after = near.bytes.clone();
    let lse_bytes = near.problem.span_bytes(Operand::Lse) as usize;
    let rows = spread.rows(near, Operand::O as usize);
    for (to, from, bytes) in rows.chain([(near.placement.lse, spread.lse, lse_bytes)]) {
        stream.memcpy_dtoh(&buffer.slice(from..from + bytes), &mut after[to..to + bytes]).map_err(driver_error)?;
    }
    stream.synchronize().map_err(driver_error)?;
    near.results(&after)
}

/// The case that is spread out: few rows, two or more of everything.
pub fn case(entry: &Entry, group: u32, mask: Mask) -> Case {
    let Entry { dtype, head_dim, v_head_dim, .. } = *entry;
    let shape = Shape { batch: 2, q_len: 9, kv_len: 9, q_heads: 2 * group, kv_heads: 2, head_dim };
    Case { dtype, shape, v_head_dim, mask, scale: None, kind: Kind::Normal, layout: Layout::Contiguous }
}
