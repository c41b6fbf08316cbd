//! Launches.

use std::ffi::{c_uint, c_void};
use std::ptr;

use super::{Current, Function, Stream};
use crate::error::Result;

/// How a kernel is started.
pub(crate) struct Launch {
    pub(crate) function: Function,
    pub(crate) grid: [u32; 3],
    /// Blocks of a cluster, neighbours in x.
    pub(crate) cluster: u32,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    /// Whether clusters are to be spread evenly over multiprocessors that they share: more of them then run at once.
    pub(crate) balances_load: bool,
    /// Whether the kernel may start while the kernel before it in the stream still runs; it waits for that by itself.
    pub(crate) programmatic: bool,
}

/// A `CUlaunchAttribute`, aligned as the pointers in its union.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct LaunchAttribute {
    /// A `CUlaunchAttributeID`.
    id: c_uint,
    padding: u32,
    /// A union of 64 bytes.
    value: [u32; 16],
}

impl LaunchAttribute {
    fn new(id: c_uint, words: &[u32]) -> Self {
        let mut value = [0; 16];
        value.iter_mut().zip(words).for_each(|(value, word)| *value = *word);
        LaunchAttribute { id, padding: 0, value }
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
    pub(super) const CLUSTER_SCHEDULING_POLICY_PREFERENCE: u32 = 5;
    pub(super) const CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING: u32 = 2;
    pub(super) const PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;
}

impl Current {
    /// Starts a kernel whose only parameter lies at `params`, asynchronously.
    ///
    /// # Safety
    /// The function belongs to this context, at `params` is what its kernel takes, the addresses in it are valid for
    /// what the kernel does until it ends, and the stream is alive and belongs to this context. A kernel that is launched
    /// programmatically waits for the grid before it before it accesses any of them.
    pub(crate) unsafe fn launch(&self, launch: &Launch, stream: Stream, params: *const c_void) -> Result<()> {
        let attribute = LaunchAttribute::new;
        let wanted = [
            (launch.cluster > 1, attribute(number::CLUSTER_DIMENSION, &[launch.cluster, 1, 1])),
            (
                launch.cluster > 1 && launch.balances_load,
                attribute(number::CLUSTER_SCHEDULING_POLICY_PREFERENCE, &[number::CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING]),
            ),
            (launch.programmatic, attribute(number::PROGRAMMATIC_STREAM_SERIALIZATION, &[1])),
        ];
        let (mut attributes, mut attribute_count) = (wanted.map(|(_, attribute)| attribute), 0);
        for (_, attribute) in wanted.iter().filter(|(is_wanted, _)| *is_wanted) {
            attributes[attribute_count as usize] = *attribute;
            attribute_count += 1;
        }
        let config = LaunchConfig {
            grid: launch.grid,
            block: [launch.threads, 1, 1],
            shared_bytes: launch.shared_bytes,
            stream,
            attributes: attributes.as_ptr(),
            attribute_count,
        };
        let mut arguments = [params.cast_mut()];
        // SAFETY: by this function's contract; the driver copies configuration and parameters before it returns.
        let result = unsafe { (self.driver.functions.cuLaunchKernelEx)(&config, launch.function, arguments.as_mut_ptr(), ptr::null_mut()) };
        self.driver.check("cuLaunchKernelEx", result)
    }
}
