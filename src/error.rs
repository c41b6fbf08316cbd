//! Everything that can go wrong, each with a remedy.

use std::fmt;

use crate::catalog::Arch;
use crate::dispatch::Capability;
use crate::layout::Strides;
use crate::shape::{DType, Mask, Operand, Shape};

/// A failure of the CUDA driver. Reading it calls nothing, so it can be shown after the driver is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The `CUresult`.
    pub code: u32,
    /// Its name, such as `CUDA_ERROR_NO_DEVICE`, in the words of the driver.
    pub name: &'static str,
    /// Its meaning in the words of the driver.
    pub description: &'static str,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name, self.code, self.description)
    }
}

impl std::error::Error for DriverError {}

/// The part of a tensor's layout that decides where rows start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStart {
    /// The address of the first element.
    Address,
    /// The batch stride.
    BatchStride,
    /// The sequence stride.
    SeqStride,
    /// The head stride.
    HeadStride,
}

impl fmt::Display for RowStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RowStart::Address => "address",
            RowStart::BatchStride => "batch stride",
            RowStart::SeqStride => "sequence stride",
            RowStart::HeadStride => "head stride",
        })
    }
}

/// Why a problem, a device or a launch was refused. The text says what was asked, what exists and what to do.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A size of the problem is zero.
    ZeroSize {
        /// Which size.
        what: &'static str,
    },
    /// The KV heads do not divide the query heads.
    HeadRatio {
        /// Query heads.
        q_heads: u32,
        /// KV heads.
        kv_heads: u32,
    },
    /// A size exceeds what a grid can express, or a length 2,000,000,000.
    TooLarge {
        /// Which size.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The largest one.
        limit: u64,
    },
    /// The scale is not finite and positive.
    Scale {
        /// The scale.
        scale: f32,
    },
    /// An offset in a tensor does not fit 64 bits.
    ExtentOverflow {
        /// Which tensor.
        operand: Operand,
    },
    /// Two rows of o share an element.
    OutputOverlapsItself {
        /// Strides of o.
        strides: Strides,
        /// The problem's sizes.
        shape: Shape,
        /// Elements of a head of o.
        v_head_dim: u32,
    },

    /// The build has no kernel for this element type.
    UnsupportedDType {
        /// What was asked.
        dtype: DType,
        /// The device.
        device: Capability,
        /// What the build has.
        available: Vec<DType>,
    },
    /// The build has no kernel for this head_dim in this element type.
    UnsupportedHeadDim {
        /// What was asked.
        head_dim: u32,
        /// Element type.
        dtype: DType,
        /// The device.
        device: Capability,
        /// What the build has, ascending.
        available: Vec<u32>,
    },
    /// The build has no kernel for values of this size with this head_dim in this element type.
    UnsupportedVHeadDim {
        /// What was asked: elements of a head of v and o.
        v_head_dim: u32,
        /// Elements of a head of q and k.
        head_dim: u32,
        /// Element type.
        dtype: DType,
        /// The device.
        device: Capability,
        /// What the build has, ascending.
        available: Vec<u32>,
    },
    /// The build has no kernel for this mask with this head_dim and element type.
    UnsupportedMask {
        /// What was asked.
        mask: Mask,
        /// Elements of a head.
        head_dim: u32,
        /// Element type.
        dtype: DType,
        /// The device.
        device: Capability,
    },
    /// The build has no kernel for this ratio of query heads to KV heads.
    UnsupportedGroup {
        /// What was asked: query heads per KV head.
        group: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Element type.
        dtype: DType,
        /// The device.
        device: Capability,
        /// What the build has, ascending.
        available: Vec<u32>,
    },
    /// Rows start on addresses that no kernel of the build can copy from.
    Misaligned {
        /// Which tensor.
        operand: Operand,
        /// What decides it.
        part: RowStart,
        /// The address or the stride, in bytes.
        bytes: u64,
        /// What it must be a multiple of, in bytes.
        required: u32,
    },
    /// The build has no code that this device can run for the problem.
    UnsupportedDevice {
        /// The device.
        device: Capability,
        /// Targets of the cubins and the PTX that the build has for the problem.
        available: Vec<Arch>,
    },
    /// The kernels for the problem need more shared memory than a block of this device may use.
    SharedMemory {
        /// The device.
        device: Capability,
        /// The least that a kernel needs, in bytes.
        required: u32,
    },
    /// Only PTX serves the problem on this device, and the policy refuses just-in-time compilation.
    JitRefused {
        /// The device.
        device: Capability,
        /// Name of the kernel that would be compiled.
        kernel: &'static str,
    },

    /// A tensor has the address 0.
    NullPointer {
        /// Which tensor.
        operand: Operand,
    },
    /// A tensor would end beyond the address space.
    AddressOverflow {
        /// Which tensor.
        operand: Operand,
        /// Its address.
        address: u64,
    },
    /// A tensor that is written shares elements with another one, or interleaves with it in a way that
    /// cannot be told apart.
    Overlap {
        /// The tensor that is written.
        output: Operand,
        /// The other one.
        other: Operand,
    },
    /// The problem wants the LSE and no buffer was given, or the reverse.
    LseMismatch {
        /// Whether the problem wants it.
        wanted: bool,
    },
    /// The element type of a slice is not the problem's.
    ElementType {
        /// The problem's.
        problem: DType,
        /// The slices'.
        slices: DType,
    },
    /// A slice is shorter than the problem's tensor.
    TooShort {
        /// Which tensor.
        operand: Operand,
        /// Elements that the shape and strides span.
        required: u64,
        /// Elements of the slice.
        actual: u64,
    },
    /// A slice lives in another context than the stream.
    ForeignSlice {
        /// Which tensor.
        operand: Operand,
    },
    /// The context belongs to another device.
    WrongDevice {
        /// Ordinal of the context's device.
        context: i32,
        /// Ordinal of this [`crate::Device`].
        device: i32,
    },
    /// No context is current on the calling thread.
    NoContext,
    /// The stream is being captured and the kernel is not loaded, which a capture does not allow.
    NotLoaded {
        /// Name of the kernel.
        kernel: &'static str,
    },

    /// The driver's library cannot be opened.
    DriverMissing {
        /// The library.
        library: &'static str,
        /// In the words of the system.
        reason: String,
    },
    /// The driver lacks a function.
    DriverTooOld {
        /// Its CUDA version, such as 11.8; `None` when it does not tell.
        version: Option<(u32, u32)>,
        /// The missing function.
        function: &'static str,
    },
    /// The driver sees no GPU.
    NoDevice,
    /// There is no GPU of this ordinal.
    NoSuchDevice {
        /// What was asked.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The driver cannot load a cubin.
    Load {
        /// Name of the kernel.
        kernel: &'static str,
        /// The driver's error.
        source: DriverError,
    },
    /// The driver cannot compile a kernel's PTX.
    Jit {
        /// Name of the kernel.
        kernel: &'static str,
        /// PTX ISA version of the kernel.
        version: (u32, u32),
        /// The log of the driver's compiler.
        log: String,
        /// The driver's error.
        source: DriverError,
    },
    /// A call to the driver failed.
    Driver {
        /// The function.
        call: &'static str,
        /// Its error.
        source: DriverError,
    },
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Load { source, .. } | Error::Jit { source, .. } | Error::Driver { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
