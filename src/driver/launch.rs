//! Launches.

use std::ffi::{c_uint, c_void};
use std::ptr;

use super::{Current, Function, Stream};
use crate::error::Result;

/// How a kernel is started.
pub(crate) struct Launch<'a> {
    pub(crate) function: Function,
    pub(crate) grid: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) attributes: &'a [LaunchAttribute],
}

/// A `CUlaunchAttribute`, aligned as the pointers in its union.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttribute {
    /// A `CUlaunchAttributeID`.
    id: c_uint,
    padding: u32,
    /// A union of 64 bytes.
    value: [u32; 16],
}

impl LaunchAttribute {
    /// Clusters of `blocks` blocks, neighbours in x.
    pub(crate) fn cluster(blocks: u32) -> Self {
        let mut value = [0; 16];
        value[..3].copy_from_slice(&[blocks, 1, 1]);
        LaunchAttribute { id: number::CLUSTER_DIMENSION, padding: 0, value }
    }

    /// The kernel may start while the kernel before it in the stream still runs, and waits for that by itself.
    pub(crate) fn programmatic() -> Self {
        let mut value = [0; 16];
        value[0] = 1;
        LaunchAttribute { id: number::PROGRAMMATIC_STREAM_SERIALIZATION, padding: 0, value }
    }
}

/// A `CUlaunchConfig`.
#[repr(C)]
pub(super) struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Stream,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

const _: () = assert!(size_of::<LaunchAttribute>() == 72 && align_of::<LaunchAttribute>() == 8);
const _: () = assert!(size_of::<LaunchConfig>() == 56 && align_of::<LaunchConfig>() == 8);

/// Numbers of cuda.h.
mod number {
    pub(super) const CLUSTER_DIMENSION: u32 = 4;
    pub(super) const PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;
}

impl Current {
    /// Starts a kernel whose only parameter lies at `params`, asynchronously.
    ///
    /// # Safety
    /// The function belongs to this context, at `params` is what its kernel takes, the addresses in it are valid for
    /// what the kernel does until it ends, and the stream is alive and belongs to this context. A kernel that is launched
    /// with [`LaunchAttribute::programmatic`] waits for the grid before it before it accesses any of them.
    pub(crate) unsafe fn launch(&self, launch: &Launch, stream: Stream, params: *const c_void) -> Result<()> {
        let config = LaunchConfig {
            grid: launch.grid,
            block: [launch.threads, 1, 1],
            shared_bytes: launch.shared_bytes,
            stream,
            attributes: launch.attributes.as_ptr(),
            attribute_count: launch.attributes.len() as c_uint,
        };
        let mut arguments = [params.cast_mut()];
        // SAFETY: by this function's contract; the driver copies configuration and parameters before it returns.
        let result = unsafe { (self.driver.functions.cuLaunchKernelEx)(&config, launch.function, arguments.as_mut_ptr(), ptr::null_mut()) };
        self.driver.check("cuLaunchKernelEx", result)
    }
}
