//! The tensor maps of a problem's tensors.

use crate::catalog::TensorBox;
use crate::driver::{MapElement, TensorMapLayout};
use crate::problem::Problem;
use crate::shape::{DType, Operand};

/// The copy engine's limits (CUDA driver API, "Tensor Map Object Management"): strides are multiples of 16 bytes below this.
pub(crate) const STRIDE_LIMIT: u64 = 1 << 40;
const STRIDE_UNIT: u64 = 16;

/// Whether tensor maps can express the layouts of q, k, v and o, alignment aside.
pub(crate) fn can_express(problem: &Problem) -> bool {
    largest_stride(problem).is_none()
}

/// The largest stride in bytes, if it is one that no tensor map can express.
pub(crate) fn largest_stride(problem: &Problem) -> Option<u64> {
    let strides = Operand::STRIDED.into_iter().flat_map(|operand| problem.region(operand).strides());
    strides.max().filter(|stride| *stride >= STRIDE_LIMIT)
}

/// What the map of a tensor says: `[batch, chunks of head_dim, seq, heads, columns of a chunk]`, innermost last. What a box
/// finds beyond the last token or head reads as zeros and is not written.
pub(crate) fn layout(problem: &Problem, operand: Operand, address: u64, copied: TensorBox) -> TensorMapLayout {
    let [batch, seq, heads] = problem.shape().extents(operand).map(u64::from);
    let [batch_stride, seq_stride, head_stride] = problem.region(operand).strides();
    let TensorBox { columns, heads: copied_heads, rows, chunks } = copied;
    let chunk_bytes = columns * problem.dtype().bytes();
    TensorMapLayout {
        element: match problem.dtype() {
            DType::F16 => MapElement::F16,
            DType::BF16 => MapElement::BF16,
            DType::F32 => MapElement::F32,
        },
        address,
        extents: [columns.into(), heads, seq, u64::from(problem.row_elems(operand) / columns.max(1)), batch],
        strides: [stride_of(heads, head_stride), stride_of(seq, seq_stride), chunk_bytes.into(), stride_of(batch, batch_stride)],
        copied: [columns, copied_heads, rows, chunks, 1],
        swizzle_bytes: chunk_bytes,
    }
}

/// The stride of a dimension of extent 1 counts for nothing, but the copy engine is given one that it would accept anywhere.
fn stride_of(extent: u64, stride: u64) -> u64 {
    if extent == 1 { STRIDE_UNIT } else { stride }
}
