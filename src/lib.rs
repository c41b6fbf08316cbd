//! Fused attention for NVIDIA GPUs, packaged ahead of time.
//!
//! The kernels were generated, assembled and embedded when this crate was built. Using them needs the NVIDIA driver (CUDA
//! 12.0 or newer, opened at run time) and nothing else: no toolkit, no C++ compiler, and no just-in-time compilation on
//! the architectures that were enabled as cargo features.
//!
//! A [`Problem`] says what is to be computed, a [`Device`] is a GPU, and [`Device::prefill`] launches the kernel that
//! [`dispatch`] picks from the [`catalog`]:
//!
//! ```no_run
//! use attnpack::{DType, Device, Mask, Problem, Shape};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::new(0)?;
//! let stream = device.context().ok_or("a device of its own has a context")?.default_stream();
//!
//! // Llama-3-8B: 512 new tokens after 1536 that are in the cache.
//! let shape = Shape { batch: 1, q_len: 512, kv_len: 2048, q_heads: 32, kv_heads: 8, head_dim: 128 };
//! let problem = Problem::prefill(DType::F32, shape).mask(Mask::Causal).build()?;
//! device.warm_up(&[problem])?;
//!
//! let q = stream.alloc_zeros::<f32>(512 * 32 * 128)?;
//! let k = stream.alloc_zeros::<f32>(2048 * 8 * 128)?;
//! let v = stream.alloc_zeros::<f32>(2048 * 8 * 128)?;
//! let mut o = stream.alloc_zeros::<f32>(512 * 32 * 128)?;
//! let launched = device.prefill(&stream, &problem, &q, &k, &v, &mut o, None)?;
//! println!("{launched}");
//! stream.synchronize()?;
//! # Ok(())
//! # }
//! ```
//!
//! - **Tensors** are `[batch, seq, heads, head_dim]` with free batch, sequence and head strides ([`Strides`], in elements)
//!   and a contiguous last dimension. Rows start on multiples of 16 bytes; some kernels take multiples of 4.
//! - **Element types** are f16, bf16 and f32 ([`DType`]); accumulation is in f32. For slices of `half::f16` and
//!   `half::bf16` enable cudarc's feature `f16`.
//! - **Launches** are asynchronous, allocate nothing once their kernel is loaded, and can be captured into graphs after
//!   [`Device::warm_up`]. Engines with their own memory use [`Device::launch`], which takes addresses. On Hopper
//!   [`Device::with_programmatic_launch`] lets kernels overlap with the end of those before them.
//! - **Errors** ([`Error`]) say what was asked, what exists and what to do. Nothing here panics for bad input, a missing
//!   driver, or a missing GPU.

#![deny(unsafe_code)]

mod arguments;
mod catalog;
mod cost;
#[allow(unsafe_code, reason = "enters contexts, and vouches for the images that are loaded into them")]
mod device;
mod dispatch;
#[allow(unsafe_code, reason = "calls the driver's library")]
mod driver;
mod error;
mod error_text;
#[cfg(feature = "capi")]
#[allow(unsafe_code, reason = "exports functions to C, and reads and writes what their callers point to")]
mod ffi;
mod functions;
mod grid;
mod jit;
#[allow(unsafe_code, reason = "hands addresses to a kernel")]
mod launch;
mod layout;
mod problem;
mod refusal;
mod shape;
mod slices;
mod tensor_map;

pub use catalog::{Arch, Boxes, Build, Cubin, Entry, Group, MaskSupport, Ptx, Schedule, TensorBox, build_info, catalog};
pub use cudarc;
pub use device::Device;
pub use dispatch::{Alignment, Capability, Choice, Code, Policy, dispatch};
pub use error::{DriverError, Error, Result, RowStart};
pub use jit::{JitStats, jit_stats};
pub use launch::{Launched, Pointers};
pub use layout::Strides;
pub use problem::{Problem, ProblemBuilder};
pub use shape::{DType, Mask, Operand, Shape};
pub use slices::{Element, Readable, Writable};
