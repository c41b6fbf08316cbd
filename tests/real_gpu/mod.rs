//! A GPU, for tests that need one.
//!
//! Without a GPU one line says that all tests of a program are skipped; `ATTNPACK_REQUIRE_GPU=1` makes that a failure.

#![allow(dead_code, reason = "each test program uses a part")]

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use attnpack::cudarc::driver::{CudaContext, CudaStream};
use attnpack::{Device, Entry};

/// A GPU, alone: captures in one test would disturb others. `None`, and one line for all tests, without a GPU.
pub fn gpu() -> Option<(Device, MutexGuard<'static, ()>)> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    static TOLD: Once = Once::new();
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match Device::new(0) {
        Ok(device) => Some((device, turn)),
        Err(error) if std::env::var("ATTNPACK_REQUIRE_GPU").is_ok_and(|value| value == "1") => panic!("no GPU: {error}"),
        Err(error) => {
            // Past the capture of `println!`, so that it shows.
            TOLD.call_once(|| drop(writeln!(std::io::stderr(), "SKIPPED {}, all of it: {error}", env!("CARGO_CRATE_NAME"))));
            None
        }
    }
}

/// The device with other kernels: packaged ones, or those of `device_kernels`.
pub fn with(device: Device, catalog: &'static [Entry]) -> Device {
    // SAFETY: the packaged entries are as they say; the others are PTX, and their kernel is a part of an attention kernel, as far
    // as memory goes.
    unsafe { device.with_catalog(catalog) }
}

pub fn context(device: &Device) -> &Arc<CudaContext> {
    device.context().expect("of Device::new")
}

/// Different values, exact in 16 bits as well.
pub fn values(count: u64, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) % 255) as f32 / 64.0 - 2.0
    };
    (0..count).map(|_| next()).collect()
}

/// A device whose slices wait for no events, as a capture needs, and a stream of it.
pub fn for_capture(catalog: &'static [Entry]) -> Option<(Device, Arc<CudaStream>, MutexGuard<'static, ()>)> {
    let (device, turn) = gpu()?;
    let device = with(device, catalog);
    // SAFETY: each of these tests uses its slices on one stream.
    unsafe { context(&device).disable_event_tracking() };
    let stream = context(&device).new_stream().expect("a stream");
    Some((device, stream, turn))
}
