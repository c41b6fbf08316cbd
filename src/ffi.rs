//! The C interface: translate, call, translate back. `include/attnpack.h` is its contract and its documentation.
//!
//! Every function that can fail runs its body through [`guarded`], which turns an error into a status and a text, and a
//! panic into `ATTNPACK_ERROR_INTERNAL`; the others return what is there already, or do nothing that can panic. Nothing here is reachable from Rust: [`crate::Device`] and [`crate::Problem`] are. That
//! the header and this module say the same is checked by `ffi/header.rs`.

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use cudarc::driver::sys::CUstream;

use crate::device::Device;
use crate::dispatch::{Alignment, Choice};
use crate::jit::jit_stats;

mod fault;
#[cfg(test)]
mod header;
mod kernels;
mod params;
mod structs;
mod values;

use fault::{Fault, Status};
use kernels::KernelInfo;
use params::{PrefillParams, Request};
use structs::{Versioned, Writing};
use values::{CODES, POLICIES};

/// `attnpack_capability`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CapabilityInfo {
    struct_size: usize,
    ordinal: u32,
    major: u32,
    minor: u32,
    shared_optin_bytes: u32,
    multiprocessors: u32,
    reserved: u32,
}

// SAFETY: integers only, and `struct_size` comes first.
unsafe impl Versioned for CapabilityInfo {
    const NAME: &'static str = "attnpack_capability";
    const FIRST_BYTES: usize = 32;
}

/// Runs the body of a call. What goes wrong in it becomes this thread's last error.
fn guarded(body: impl FnOnce() -> Result<(), Fault>) -> Status {
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(fault)) => fault,
        Err(panic) => Fault::of_panic(&*panic),
    };
    fault.remember()
}

/// Writes through a pointer that may be null.
///
/// # Safety
/// A pointer that is not null can be written.
unsafe fn write_optional<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not null, so writable by this function's contract; C may have put it anywhere.
        unsafe { place.write_unaligned(value) };
    }
}

/// The device of a handle.
///
/// # Safety
/// A handle that is not null came from [`attnpack_device_create`] and was not destroyed; it is not during `'a`.
unsafe fn device<'a>(handle: *const Device) -> Result<&'a Device, Fault> {
    // SAFETY: alive by this function's contract.
    unsafe { handle.as_ref() }.ok_or_else(|| Fault::null_argument("device"))
}

/// The kernel that a device chooses for a request.
fn choose(device: &Device, request: &Request) -> Result<Choice, Fault> {
    let Request { problem, pointers, .. } = request;
    Ok(device.choose(problem, Alignment::of(problem, pointers)).map(|(choice, _)| choice)?)
}

#[unsafe(no_mangle)]
extern "C" fn attnpack_status_string(status: u32) -> *const c_char {
    Status::text_of(status).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn attnpack_last_error() -> *const c_char {
    fault::last()
}

#[unsafe(no_mangle)]
extern "C" fn attnpack_version() -> u32 {
    const fn number(digits: &str) -> u32 {
        match u32::from_str_radix(digits, 10) {
            Ok(number) => number,
            Err(_) => panic!("Cargo's versions are numbers"),
        }
    }
    const {
        10_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
            + 100 * number(env!("CARGO_PKG_VERSION_MINOR"))
            + number(env!("CARGO_PKG_VERSION_PATCH"))
    }
}

#[unsafe(no_mangle)]
extern "C" fn attnpack_build_info() -> *const c_char {
    kernels::build_text().as_ptr()
}

/// # Safety
/// As the header says: `device` can be written, or is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn attnpack_device_create(policy: u32, device: *mut *mut Device) -> Status {
    guarded(|| {
        if device.is_null() {
            return Err(Fault::null_argument("device"));
        }
        // SAFETY: not null.
        unsafe { write_optional(device, ptr::null_mut()) };
        let policy = POLICIES.of(policy)?;
        let made = Box::new(Device::from_current_context()?.with_policy(policy));
        // SAFETY: not null.
        unsafe { write_optional(device, Box::into_raw(made)) };
        Ok(())
    })
}

/// # Safety
/// As the header says: `device` is alive and unused, or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn attnpack_device_destroy(device: *mut Device) {
    guarded(|| {
        if !device.is_null() {
            // SAFETY: made by `attnpack_device_create` from a box, and not destroyed before.
            drop(unsafe { Box::from_raw(device) });
        }
        Ok(())
    });
}

/// # Safety
/// As the header says: `handle` is alive or null, `capability` can be written as far as its first field tells, or is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn attnpack_device_capability(handle: *const Device, capability: *mut CapabilityInfo) -> Status {
    guarded(|| {
        // SAFETY: alive or null.
        let device = unsafe { device(handle) }?;
        // SAFETY: writable as far as it says, or null.
        let place = unsafe { Writing::begin(capability, "capability") }?;
        let has = device.capability();
        place.finish(CapabilityInfo {
            struct_size: place.struct_size(),
            ordinal: device.ordinal() as u32,
            major: has.major,
            minor: has.minor,
            shared_optin_bytes: has.shared_optin_bytes,
            multiprocessors: has.multiprocessors,
            reserved: 0,
        });
        Ok(())
    })
}

/// # Safety
/// As the header says: `handle` is alive or null, `params` can be read as far as its first field tells, or is null;
/// the contract of [`Device::launch`] for the stream and the tensors.
#[unsafe(no_mangle)]
unsafe extern "C" fn attnpack_prefill(handle: *const Device, params: *const PrefillParams, stream: CUstream) -> Status {
    guarded(|| {
        // SAFETY: alive or null.
        let device = unsafe { device(handle) }?;
        // SAFETY: readable as far as it says, or null.
        let Request { problem, pointers, programmatic_launch } = unsafe { Request::read(params) }?;
        let device = device.clone().with_programmatic_launch(programmatic_launch);
        // SAFETY: the caller's promise about stream and tensors is that of `launch`.
        unsafe { device.launch(&problem, pointers, stream) }?;
        Ok(())
    })
}

/// # Safety
/// As the header says: `handle` is alive or null, `params` can be read as far as its first field tells, or is null,
/// `kernel` and `code` can be written, or are null.
#[unsafe(no_mangle)]
unsafe extern "C" fn attnpack_supports(handle: *const Device, params: *const PrefillParams, kernel: *mut usize, code: *mut u32) -> Status {
    guarded(|| {
        // SAFETY: alive or null.
        let device = unsafe { device(handle) }?;
        // SAFETY: readable as far as it says, or null.
        let choice = choose(device, &unsafe { Request::read(params) }?)?;
        // SAFETY: writable or null.
        unsafe { write_optional(kernel, choice.index) };
        // SAFETY: writable or null.
        unsafe { write_optional(code, CODES.number(choice.code.into())) };
        Ok(())
    })
}

/// # Safety
/// As the header says: `handle` is alive or null, `params` can be read as far as its first field tells, or is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn attnpack_warm_up(handle: *const Device, params: *const PrefillParams) -> Status {
    guarded(|| {
        // SAFETY: alive or null.
        let device = unsafe { device(handle) }?;
        // SAFETY: readable as far as it says, or null.
        let choice = choose(device, &unsafe { Request::read(params) }?)?;
        Ok(device.load_all([choice].into_iter())?)
    })
}

/// # Safety
/// As the header says: `handle` is alive or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn attnpack_warm_up_all(handle: *const Device) -> Status {
    guarded(|| {
        // SAFETY: alive or null.
        Ok(unsafe { device(handle) }?.warm_up_all()?)
    })
}

/// # Safety
/// As the header says: both can be written, or are null.
#[unsafe(no_mangle)]
unsafe extern "C" fn attnpack_jit_stats(kernels: *mut u64, nanoseconds: *mut u64) {
    let stats = jit_stats();
    // SAFETY: writable or null.
    unsafe { write_optional(kernels, stats.kernels) };
    // SAFETY: writable or null.
    unsafe { write_optional(nanoseconds, u64::try_from(stats.total.as_nanos()).unwrap_or(u64::MAX)) };
}

#[unsafe(no_mangle)]
extern "C" fn attnpack_kernel_count() -> usize {
    kernels::all().len()
}

/// # Safety
/// As the header says: `info` can be written as far as its first field tells, or is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn attnpack_kernel_at(index: usize, info: *mut KernelInfo) -> Status {
    guarded(|| {
        // SAFETY: writable as far as it says, or null.
        let place = unsafe { Writing::begin(info, "info") }?;
        let kernel = kernels::all().get(index).ok_or_else(|| Fault::kernel_index(index, kernels::all().len()))?;
        place.finish(kernel.info(place.struct_size()));
        Ok(())
    })
}
