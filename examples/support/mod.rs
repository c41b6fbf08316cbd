//! What the examples share: the catalogue as a table, and times on the GPU.

#![allow(dead_code, reason = "each example uses a part")]

use std::sync::Arc;

use attnpack::cudarc::driver::{CudaEvent, CudaStream, DriverError, sys};
use attnpack::{Entry, build_info, catalog};

/// The driver's error as text: formatting cudarc's own asks the driver, which may be what is broken.
pub fn driver_error(error: DriverError) -> String {
    format!("the driver refused: {:?}", error.0)
}

/// Every packaged kernel, one a line.
pub fn catalogue_table() -> String {
    let build = build_info();
    let archs: Vec<String> = build.archs.iter().map(ToString::to_string).collect();
    let checker = build.ptxas.map_or("no ptxas: PTX only, checked by nothing".to_owned(), |version| format!("ptxas {version}"));
    let mut table = format!("{} kernels, built for {} with {checker}\n", catalog().len(), archs.join(", "));
    table.push_str(&format!("  {:<50} {:>9} {:>9}  {:<24} models\n", "kernel", "tile", "shared", "code"));
    for entry in catalog() {
        let tile = format!("{}x{}", entry.block_q, entry.block_kv);
        table.push_str(&format!("  {:<50} {tile:>9} {:>9}  {:<24} {}\n", entry.name, entry.shared_bytes, code_of(entry), entry.models));
    }
    table
}

fn code_of(entry: &Entry) -> String {
    let cubins = entry.cubins.iter().map(|cubin| cubin.arch.to_string());
    let ptx = entry.ptx.iter().map(|ptx| format!("PTX {}.{}", ptx.version.0, ptx.version.1));
    cubins.chain(ptx).collect::<Vec<_>>().join(" ")
}

/// An event that notes the time.
fn timed_event(stream: &Arc<CudaStream>) -> Result<CudaEvent, String> {
    stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver_error)
}

/// The median time in microseconds of one of `launches` launches that `queue` puts on the stream, over `repeats` times.
///
/// # Errors
/// Those of `queue`, and the driver's.
pub fn median_us(
    stream: &Arc<CudaStream>,
    launches: usize,
    repeats: usize,
    mut queue: impl FnMut() -> Result<(), String>,
) -> Result<f64, String> {
    let mut times = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let start = timed_event(stream)?;
        queue()?;
        let end = timed_event(stream)?;
        end.synchronize().map_err(driver_error)?;
        times.push(f64::from(start.elapsed_ms(&end).map_err(driver_error)?) * 1e3 / launches as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
