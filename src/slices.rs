//! What the safe API takes: slices and views of cudarc, with elements that attention is computed in.

use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice};
use cudarc::types::CudaTypeName;

use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::shape::{DType, Operand};

/// An element of q, k, v and o: `f32`, `half::f16` or `half::bf16`.
///
/// Any other type fails to compile. A type is recognized by the name that cudarc knows it by: the types of `half` have one
/// when cudarc's feature `f16` is on, and this crate needs no dependency of its own on `half`.
///
/// ```compile_fail
/// fn needs_element<T: attnpack::Element>() -> attnpack::DType { T::DTYPE }
/// needs_element::<u64>();
/// ```
pub trait Element: CudaTypeName {
    /// The element type.
    const DTYPE: DType;
}

impl<T: CudaTypeName> Element for T {
    const DTYPE: DType = {
        let dtype = match T::NAME.as_bytes() {
            b"float" => DType::F32,
            b"__half" => DType::F16,
            b"__nv_bfloat16" => DType::BF16,
            _ => panic!("attention is computed in f32, half::f16 and half::bf16"),
        };
        assert!(size_of::<T>() == dtype.bytes() as usize, "an element has the size of its CUDA type");
        dtype
    };
}

/// Device memory that a kernel can read: [`CudaSlice`], [`CudaView`] and [`CudaViewMut`].
///
/// Sealed, because a safe launch relies on the address and the length.
pub trait Readable<T>: DevicePtr<T> + sealed::Slice {}

/// Device memory that a kernel can write: [`CudaSlice`] and [`CudaViewMut`].
///
/// Sealed, because a safe launch relies on the address and the length.
pub trait Writable<T>: DevicePtrMut<T> + sealed::Slice {}

impl<T> Readable<T> for CudaSlice<T> {}
impl<T> Readable<T> for CudaView<'_, T> {}
impl<T> Readable<T> for CudaViewMut<'_, T> {}
impl<T> Writable<T> for CudaSlice<T> {}
impl<T> Writable<T> for CudaViewMut<'_, T> {}

mod sealed {
    use super::{CudaSlice, CudaView, CudaViewMut};

    pub trait Slice {}
    impl<T> Slice for CudaSlice<T> {}
    impl<T> Slice for CudaView<'_, T> {}
    impl<T> Slice for CudaViewMut<'_, T> {}
}

/// Checks that a slice holds a tensor of the problem and lives in the stream's context.
pub(crate) fn check_slice<T>(stream: &CudaStream, problem: &Problem, operand: Operand, slice: &impl DeviceSlice<T>) -> Result<()> {
    let (required, actual) = (problem.span_elems(operand), slice.len() as u64);
    if actual < required {
        return Err(Error::TooShort { operand, required, actual });
    }
    if slice.stream().context() != stream.context() {
        return Err(Error::ForeignSlice { operand });
    }
    Ok(())
}
