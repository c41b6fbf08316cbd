//! A problem and its tensors as C hosts pass them.

use std::ffi::c_void;
use std::mem::offset_of;

use super::fault::Fault;
use super::structs::{self, Versioned};
use super::values::{DTYPES, MASKS, PROGRAMMATIC_LAUNCH};
use crate::launch::Pointers;
use crate::layout::Strides;
use crate::problem::Problem;
use crate::shape::{Operand, Shape};

/// `attnpack_strides`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TensorStrides {
    pub(super) batch: i64,
    pub(super) seq: i64,
    pub(super) head: i64,
}

/// `attnpack_prefill_params`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PrefillParams {
    pub(super) struct_size: usize,
    pub(super) dtype: u32,
    pub(super) mask: u32,
    pub(super) batch: u32,
    pub(super) q_len: u32,
    pub(super) kv_len: u32,
    pub(super) q_heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) scale: f32,
    pub(super) v_head_dim: u32,
    pub(super) q: *const c_void,
    pub(super) k: *const c_void,
    pub(super) v: *const c_void,
    pub(super) o: *mut c_void,
    pub(super) lse: *mut f32,
    pub(super) q_strides: TensorStrides,
    pub(super) k_strides: TensorStrides,
    pub(super) v_strides: TensorStrides,
    pub(super) o_strides: TensorStrides,
    pub(super) programmatic_launch: u32,
    pub(super) reserved: u32,
}

// SAFETY: numbers and addresses only, and `struct_size` comes first.
unsafe impl Versioned for PrefillParams {
    const NAME: &'static str = "attnpack_prefill_params";
    const FIRST_BYTES: usize = 184;
}

/// What a C host asks for, checked as far as it does not depend on the device.
pub(super) struct Request {
    pub(super) problem: Problem,
    pub(super) pointers: Pointers,
    pub(super) programmatic_launch: bool,
}

impl Request {
    /// Reads and translates the parameters.
    ///
    /// # Safety
    /// `params` is null, or can be read as far as its first field tells.
    pub(super) unsafe fn read(params: *const PrefillParams) -> Result<Self, Fault> {
        // SAFETY: the contract of this function.
        unsafe { structs::read(params, "params") }?.translate()
    }
}

impl PrefillParams {
    fn translate(&self) -> Result<Request, Fault> {
        if self.reserved != 0 {
            return Err(Fault::unknown_field(Self::NAME, offset_of!(Self, reserved)));
        }
        let dtype = DTYPES.of(self.dtype)?;
        let mask = MASKS.of(self.mask)?;
        let programmatic_launch = PROGRAMMATIC_LAUNCH.of(self.programmatic_launch)?;
        let PrefillParams { batch, q_len, kv_len, q_heads, kv_heads, head_dim, .. } = *self;
        let mut problem = Problem::prefill(dtype, Shape { batch, q_len, kv_len, q_heads, kv_heads, head_dim }).mask(mask);
        if self.v_head_dim != 0 {
            problem = problem.v_head_dim(self.v_head_dim);
        }
        if self.scale != 0.0 {
            problem = problem.scale(self.scale);
        }
        for (operand, strides) in Operand::STRIDED.into_iter().zip([&self.q_strides, &self.k_strides, &self.v_strides, &self.o_strides]) {
            if let Some(strides) = strides.translate(operand)? {
                problem = problem.strides(operand, strides);
            }
        }
        if !self.lse.is_null() {
            problem = problem.with_lse();
        }
        Ok(Request { problem: problem.build()?, pointers: self.pointers(), programmatic_launch })
    }

    fn pointers(&self) -> Pointers {
        let address = |pointer: *const c_void| pointer.addr() as u64;
        let lse = address(self.lse.cast_const().cast());
        Pointers { q: address(self.q), k: address(self.k), v: address(self.v), o: address(self.o), lse: (lse != 0).then_some(lse) }
    }
}

impl TensorStrides {
    /// Strides of a tensor; `None`: it has no gaps.
    fn translate(&self, operand: Operand) -> Result<Option<Strides>, Fault> {
        let TensorStrides { batch, seq, head } = *self;
        if (batch, seq, head) == (0, 0, 0) {
            return Ok(None);
        }
        let checked = |part, stride: i64| u64::try_from(stride).map_err(|_| Fault::negative_stride(operand, part, stride));
        Ok(Some(Strides { batch: checked("batch", batch)?, seq: checked("sequence", seq)?, head: checked("head", head)? }))
    }
}
