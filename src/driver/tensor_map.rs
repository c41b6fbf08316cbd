//! Tensor maps: how the copy engine of Hopper finds the elements of a tensor.

use std::ffi::c_uint;

use super::Driver;
use crate::error::Result;

/// A `CUtensorMap`.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct TensorMap([u64; 16]);

/// Element types of tensor maps, numbered as in cuda.h.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapElement {
    F16 = 6,
    F32 = 7,
    BF16 = 9,
}

/// What a tensor map says, innermost dimension first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorMapLayout {
    pub(crate) element: MapElement,
    /// Address of the first element.
    pub(crate) address: u64,
    /// Extents in elements.
    pub(crate) extents: [u64; 5],
    /// Strides in bytes of all dimensions but the innermost, whose elements are neighbours.
    pub(crate) strides: [u64; 4],
    /// Extents of what is copied at once. A row of it has the bytes of a swizzle span: 32, 64 or 128.
    pub(crate) copied: [u32; 5],
    /// Bytes of a swizzle span.
    pub(crate) swizzle_bytes: u32,
}

/// Numbers of cuda.h.
mod number {
    pub(super) const NOT_INTERLEAVED: u32 = 0;
    pub(super) const PROMOTE_TO_256_BYTES: u32 = 3;
    pub(super) const ZEROS_BEYOND_BOUNDS: u32 = 0;
}

impl Driver {
    /// Encodes a tensor map. A computation of the host: it touches no memory of the GPU and needs no context.
    ///
    /// # Errors
    /// [`crate::Error::Driver`] for extents, strides or an address that the copy engine cannot take.
    pub(crate) fn encode_tensor_map(&self, layout: &TensorMapLayout) -> Result<[u64; 16]> {
        let TensorMapLayout { element, address, extents, strides, copied, swizzle_bytes } = layout;
        let swizzle = swizzle_bytes.trailing_zeros().saturating_sub(4);
        let mut map = TensorMap::default();
        let element_strides: [c_uint; 5] = [1; 5];
        // SAFETY: writes one map, 128 bytes on a multiple of 64; reads five extents, boxes and element strides and four
        // strides. The address is kept, not read.
        let result = unsafe {
            (self.functions.cuTensorMapEncodeTiled)(
                &mut map,
                *element as c_uint,
                extents.len() as c_uint,
                std::ptr::without_provenance_mut(*address as usize),
                extents.as_ptr(),
                strides.as_ptr(),
                copied.as_ptr(),
                element_strides.as_ptr(),
                number::NOT_INTERLEAVED,
                swizzle,
                number::PROMOTE_TO_256_BYTES,
                number::ZEROS_BEYOND_BOUNDS,
            )
        };
        self.check("cuTensorMapEncodeTiled", result)?;
        Ok(map.0)
    }
}
