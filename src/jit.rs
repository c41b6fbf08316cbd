//! A record of just-in-time compilations: they cost some hundred milliseconds each and should not pass unnoticed.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::dispatch::Capability;

static KERNELS: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// What the driver compiled for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct JitStats {
    /// Kernels loaded from PTX, counted once per context.
    pub kernels: u64,
    /// Time that loading them took. Short when the driver had them in its cache on disk.
    pub total: Duration,
}

/// What the driver compiled for this process until now; zero where every kernel came as machine code.
///
/// The first compilation also writes one line to standard error. [`crate::Policy::CubinOnly`] refuses them all.
pub fn jit_stats() -> JitStats {
    JitStats { kernels: KERNELS.load(Ordering::Relaxed), total: Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed)) }
}

/// Counts one compilation, and tells of the first.
pub(crate) fn record(kernel: &str, device: Capability, duration: Duration) {
    NANOSECONDS.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    if KERNELS.fetch_add(1, Ordering::Relaxed) == 0 {
        let remedy = device.cargo_feature().map(|feature| format!("; the cargo feature {feature} has it")).unwrap_or_default();
        // `eprintln!` panics where standard error is closed.
        let _ = writeln!(
            std::io::stderr(),
            "attnpack: this build has no machine code of {kernel} for {device}, so the driver compiled it in {} ms{remedy}. \
             Told once; the policy of machine code only refuses",
            duration.as_millis()
        );
    }
}
