//! Every packaged kernel against float64, on a GPU: each entry as machine code and as PTX, whatever dispatch prefers.
//!
//! Without a GPU one line says that all is skipped; `ATTNPACK_REQUIRE_GPU=1` makes that a failure. A build with
//! `ATTNPACK_PTXAS=off` has the PTX of every entry, and then all of them go through the driver's compiler. Builds without
//! optimization, in which the reference is slow, run every eighth case.

mod reference;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use attnpack::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use attnpack::cudarc::driver::{CudaSlice, CudaStream};
use attnpack::{DType, Entry, Group, Schedule, Shape, catalog};

use reference::cases::Family;
use reference::distant::{self, Far};
use reference::fixtures::Activations;
use reference::gpu::{Resident, Tally, driver_error, examine_all, gpu_or_skip, new_stream, run, tell_skipped};
use reference::kernels::serves;
use reference::{Case, Image, Kernel, Kind, Layout, judge_with, plain, reference as exact};

/// All kernels that the GPU can run, for one test at a time; `None` without a GPU.
fn kernels() -> Option<(&'static [Kernel], MutexGuard<'static, ()>)> {
    static KERNELS: OnceLock<Option<Vec<Kernel>>> = OnceLock::new();
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let all = KERNELS.get_or_init(|| {
        let device = gpu_or_skip("numerics, every test of a kernel")?;
        let kernels = Kernel::all(&device).expect("every entry serves what it says");
        assert!(!kernels.is_empty(), "{} can run none of the {} entries", device.capability(), catalog().len());
        Some(kernels)
    });
    Some((all.as_ref()?, turn))
}

fn stream(kernels: &[Kernel]) -> Arc<CudaStream> {
    new_stream(&kernels[0].device).expect("a stream")
}

/// Fails with the first of some failures.
fn report(failures: Vec<String>) {
    let shown: Vec<&str> = failures.iter().take(20).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), shown.join("\n"));
}

/// What a kernel makes of an image, in words if it is not right.
fn check(kernel: &Kernel, image: &Image, what: &str, run: impl FnOnce() -> Result<reference::Output<f32>, String>) -> Option<String> {
    let judged = run().and_then(|output| {
        let expected = image.with_inputs(|inputs| (exact(&image.problem, inputs), plain(&image.problem, inputs)));
        judge_with(kernel.lse_tolerance(), &image.problem, &output, &expected.0, &expected.1).check()
    });
    judged.err().map(|reason| format!("{}\n    {what}\n    {reason}", kernel.label()))
}

fn print(kernels: &[Kernel], tallies: &[Tally]) {
    println!("{:<62} {:>6} {:>16} {:>10}", "kernel", "cases", "error / plain's", "LSE, nats");
    for (kernel, tally) in kernels.iter().zip(tallies) {
        println!("{:<62} {:>6} {:>16.2} {:>10.1e}", kernel.label(), tally.cases, tally.worst_ratio, tally.worst_lse);
    }
}

#[test]
fn every_kernel_computes_every_case() {
    let Some((kernels, _turn)) = kernels() else { return };
    let entries: Vec<&Entry> = kernels.iter().map(|kernel| kernel.entry).collect();
    let cases = Family::all(&entries).into_iter().flat_map(|family| [family.edges(), family.accuracy()].concat());
    let every = if cfg!(debug_assertions) { 8 } else { 1 };
    let cases: Vec<Case> = cases.step_by(every).collect();
    let tallies = examine_all(kernels, &cases, || {}).expect("every case is legal");
    print(kernels, &tallies);
    for (kernel, tally) in kernels.iter().zip(&tallies) {
        assert!(tally.cases >= 24 / every, "{} served only {} cases", kernel.label(), tally.cases);
    }
    report(tallies.into_iter().flat_map(|tally| tally.failures).collect());
}

#[test]
fn every_kernel_computes_a_models_activations() {
    let Some((kernels, _turn)) = kernels() else { return };
    let stream = stream(kernels);
    let mut failures = Vec::new();
    for activations in [Activations::layer_14(), Activations::layer_29()].map(|file| file.expect("intact")) {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let image = activations.image(dtype).expect("legal");
            let serving = kernels.iter().filter(|kernel| serves(kernel.entry, &image.problem, Layout::PackedRows.alignment()));
            failures.extend(serving.filter_map(|kernel| check(kernel, &image, activations.name, || run(kernel, &image, &stream))));
        }
    }
    report(failures);
}

#[test]
fn every_kernel_reaches_beyond_32_bits() {
    let Some((kernels, _turn)) = kernels() else { return };
    let stream = stream(kernels);
    let mut failures = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        let bytes = distant::buffer_bytes(dtype);
        let (free, _) = stream.context().mem_get_info().expect("the driver tells");
        if free < bytes + (1 << 30) {
            tell_skipped(&format!("numerics, strides beyond 32 bits for {dtype}: {free} bytes of memory are free, {bytes} are needed"));
            continue;
        }
        // SAFETY: what the kernels read of it is written before.
        let mut buffer = unsafe { stream.alloc::<u8>(bytes) }.expect("memory");
        for kernel in kernels.iter().filter(|kernel| kernel.entry.dtype.bytes() == dtype.bytes()) {
            failures.extend(check_distant(kernel, &mut buffer, &stream));
        }
    }
    report(failures);
}

fn check_distant(kernel: &Kernel, buffer: &mut CudaSlice<u8>, stream: &Arc<CudaStream>) -> Vec<String> {
    let group = if let Group::Packed(group) = kernel.entry.group { group } else { 3 };
    let image = distant::case(kernel.entry, group, kernel.mask()).image().expect("legal");
    let check_one = |far| check(kernel, &image, &format!("{far:?} far apart"), || distant::run(kernel, &image, far, buffer, stream));
    [Far::Batch, Far::Token, Far::Head].into_iter().filter_map(check_one).collect()
}

/// A case of several tiles and many blocks for a kernel; where blocks stay and claim tiles, of several tiles for each.
fn busy_image(kernel: &Kernel) -> Image {
    let Entry { dtype, head_dim, v_head_dim, group, schedule, .. } = *kernel.entry;
    let group = if let Group::Packed(group) = group { group } else { 3 };
    let claims = matches!(schedule, Schedule::Persistent { .. });
    let [q_len, kv_len, kv_heads] = if claims { [900, 1000, 6] } else { [200, 300, 2] };
    let shape = Shape { batch: 2, q_len, kv_len, q_heads: kv_heads * group, kv_heads, head_dim };
    let case = Case { dtype, shape, v_head_dim, mask: kernel.mask(), scale: None, kind: Kind::Normal, layout: Layout::PackedRows };
    case.image().expect("legal")
}

/// The buffer after one launch, alone.
fn bytes_alone(kernel: &Kernel, image: &Image, stream: &Arc<CudaStream>) -> Vec<u8> {
    let mut resident = Resident::new(image, stream).expect("copied");
    resident.launch(&kernel.device, true).expect("launched");
    resident.bytes().expect("computed")
}

#[test]
fn streams_at_once_give_the_same_bits() {
    let Some((kernels, _turn)) = kernels() else { return };
    for kernel in kernels {
        let image = busy_image(kernel);
        let expected = bytes_alone(kernel, &image, &stream(kernels));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (image, expected) = (&image, &expected);
                scope.spawn(move || {
                    let stream = stream(kernels);
                    let mut resident = Resident::new(image, &stream).expect("copied");
                    for round in 0..2 {
                        resident.reset().expect("copied");
                        // Several behind one copy, so that the grids of the streams meet.
                        for _ in 0..8 {
                            resident.launch(&kernel.device, true).expect("launched");
                        }
                        let same = resident.bytes().expect("computed") == *expected;
                        assert!(same, "{}: other bits in thread {thread}, round {round}", kernel.label());
                    }
                });
            }
        });
    }
}

#[test]
fn a_captured_launch_gives_the_same_bits() {
    let Some((kernels, _turn)) = kernels() else { return };
    let stream = stream(kernels);
    for kernel in kernels {
        let image = busy_image(kernel);
        let expected = bytes_alone(kernel, &image, &stream);
        let mut resident = Resident::new(&image, &stream).expect("copied");
        stream.synchronize().expect("copied");
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begun");
        let launched = resident.launch(&kernel.device, true);
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        launched.unwrap_or_else(|error| panic!("{}: {error}", kernel.label()));
        let graph = graph.map_err(driver_error).expect("a valid capture").expect("a graph");
        for replay in 0..2 {
            resident.reset().expect("copied");
            graph.launch().expect("replayed");
            let same = resident.bytes().expect("computed") == expected;
            assert!(same, "{}: other bits in replay {replay}", kernel.label());
        }
    }
}
