//! What the examples share: the catalogue as a table, the device in words, and times on the GPU.

#![allow(dead_code, reason = "each example uses a part")]

use std::sync::Arc;

use attnpack::cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use attnpack::cudarc::driver::{CudaContext, CudaEvent, CudaGraph, CudaStream, DriverError};
use attnpack::{Device, Entry, build_info, catalog};

/// `println!` that does not mind a closed standard output, as behind `| head`.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// The driver's error as text: formatting cudarc's own asks the driver, which may be what is broken.
pub fn driver_error(error: DriverError) -> String {
    format!("the driver refused: {:?}", error.0)
}

/// The context of a device that [`Device::new`] made.
///
/// # Errors
/// It has none.
pub fn context(device: &Device) -> Result<&Arc<CudaContext>, String> {
    device.context().ok_or_else(|| "the device has no context of its own".to_owned())
}

/// Name, compute capability and driver of a device.
pub fn describe(device: &Device) -> String {
    let name = device.context().and_then(|context| context.name().ok()).unwrap_or_else(|| "GPU without a name".to_owned());
    format!("{name} ({}), {}", device.capability(), driver_version())
}

/// The CUDA version of the driver and, where Linux tells it, the driver's own.
pub fn driver_version() -> String {
    let mut cuda = 0;
    // SAFETY: writes one number.
    let known = unsafe { attnpack::cudarc::driver::sys::cuDriverGetVersion(&mut cuda) }.result().is_ok();
    let cuda = if known { format!("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10) } else { "CUDA of unknown version".to_owned() };
    let module = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    match module.split_whitespace().find(is_version) {
        Some(version) => format!("driver {version} for {cuda}"),
        None => format!("driver for {cuda}"),
    }
}

/// Who assembled the packaged kernels.
pub fn ptxas_version() -> String {
    build_info().ptxas.map_or_else(|| "no ptxas: PTX only, checked by nothing".to_owned(), |version| format!("ptxas {version}"))
}

/// Every packaged kernel, one a line.
pub fn catalogue_table() -> String {
    let archs: Vec<String> = build_info().archs.iter().map(ToString::to_string).collect();
    let archs = if archs.is_empty() { "no architecture".to_owned() } else { archs.join(", ") };
    let mut table = format!("{} kernels for {archs} by {}\n", catalog().len(), ptxas_version());
    let mut line = |kernel: &str, tile: &str, shared: &str, code: &str, models: &str| {
        table.push_str(format!("  {kernel:<50} {tile:>7} {shared:>6}  {code:<14}  {models}").trim_end());
        table.push('\n');
    };
    line("kernel", "tile", "shared", "code", "made for the heads of");
    for entry in catalog() {
        let tile = format!("{}x{}", entry.block_q, entry.block_kv);
        line(entry.name, &tile, &entry.shared_bytes.to_string(), &code_of(entry), entry.models);
    }
    table
}

fn code_of(entry: &Entry) -> String {
    let cubins = entry.cubins.iter().map(|cubin| cubin.arch.to_string());
    let ptx = entry.ptx.iter().map(|_| "PTX".to_owned());
    cubins.chain(ptx).collect::<Vec<_>>().join(" ")
}

/// How a time came about, for people.
pub const HOW: &str = "CUDA graph of several launches, between CUDA events, median of its replays";

/// Microseconds of a launch: captures `launches` launches into a graph and replays it; the median over `replays`, after
/// two that do not count. `queue` puts launch number n on the stream.
///
/// # Errors
/// Those of `queue`, and the driver's.
pub fn launch_us(
    stream: &Arc<CudaStream>,
    launches: usize,
    replays: usize,
    queue: impl FnMut(usize) -> Result<(), String>,
) -> Result<f64, String> {
    let graph = capture(stream, launches, queue)?;
    let mut times = Vec::with_capacity(replays);
    for replay in 0..replays + 2 {
        let start = event(stream)?;
        graph.launch().map_err(driver_error)?;
        let end = event(stream)?;
        let ms = start.elapsed_ms(&end).map_err(driver_error)?;
        if replay >= 2 {
            times.push(f64::from(ms) * 1e3 / launches as f64);
        }
    }
    times.sort_by(f64::total_cmp);
    times.get(replays / 2).copied().ok_or_else(|| "nothing was timed".to_owned())
}

fn capture(stream: &Arc<CudaStream>, launches: usize, queue: impl FnMut(usize) -> Result<(), String>) -> Result<CudaGraph, String> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(driver_error)?;
    let queued = (0..launches).try_for_each(queue);
    let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    queued?;
    graph.map_err(driver_error)?.ok_or_else(|| "nothing was captured".to_owned())
}

/// An event that notes the time.
fn event(stream: &Arc<CudaStream>) -> Result<CudaEvent, String> {
    stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver_error)
}
