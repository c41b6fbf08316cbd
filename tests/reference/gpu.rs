//! Runs cases on kernels.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use attnpack::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError};
use attnpack::{Device, Error, Launched, Pointers};

use super::attention::{Output, plain, reference};
use super::cases::Case;
use super::compare::{Verdict, judge_with, larger};
use super::image::Image;
use super::kernels::{Kernel, serves};

/// The first GPU. Without one a line says what is skipped, once; with `ATTNPACK_REQUIRE_GPU=1` that is a failure.
///
/// # Panics
/// Under `ATTNPACK_REQUIRE_GPU=1` without a GPU.
pub fn gpu_or_skip(what: &str) -> Option<Device> {
    static TOLD: Once = Once::new();
    match Device::new(0) {
        Ok(device) => Some(device),
        Err(error) if std::env::var("ATTNPACK_REQUIRE_GPU").is_ok_and(|value| value == "1") => panic!("no GPU for {what}: {error}"),
        Err(error) => {
            TOLD.call_once(|| tell_skipped(&format!("{what}: {error}")));
            None
        }
    }
}

/// Tells what is skipped, in one line that begins so: past the capture of `println!`, and in one piece.
pub fn tell_skipped(what: &str) {
    let _ = std::io::stderr().write_all(format!("SKIPPED {what}\n").as_bytes());
}

/// A stream of its own in the device's context.
///
/// # Errors
/// The driver refused.
pub fn new_stream(device: &Device) -> Result<Arc<CudaStream>, String> {
    let context = device.context().ok_or("the device has no context of its own")?;
    context.new_stream().map_err(driver_error)
}

/// The driver's error as text: formatting cudarc's own asks the driver, which may be what is broken.
pub fn driver_error(error: DriverError) -> String {
    format!("the driver refused: {:?}", error.0)
}

/// An image on the GPU, used on one stream only.
pub struct Resident<'a> {
    image: &'a Image,
    stream: &'a Arc<CudaStream>,
    buffer: CudaSlice<u8>,
    /// Of the buffer. Taken once: cudarc would have every use wait for an event, which a captured stream cannot.
    address: u64,
}

impl<'a> Resident<'a> {
    /// Copies an image to the GPU.
    ///
    /// # Errors
    /// The driver refused.
    pub fn new(image: &'a Image, stream: &'a Arc<CudaStream>) -> Result<Self, String> {
        let buffer = stream.clone_htod(&image.bytes).map_err(driver_error)?;
        let address = buffer.device_ptr(stream).0;
        Ok(Resident { image, stream, buffer, address })
    }

    /// Copies the image to the GPU once more, over what is there.
    ///
    /// # Errors
    /// The driver refused.
    pub fn reset(&mut self) -> Result<(), String> {
        self.stream.memcpy_htod(&self.image.bytes, &mut self.buffer).map_err(driver_error)
    }

    /// Queues a kernel.
    ///
    /// # Errors
    /// Those of [`Device::launch`].
    pub fn launch(&mut self, device: &Device, with_lse: bool) -> Result<Launched, Error> {
        let placement = &self.image.placement;
        let [q, k, v, o] = placement.tensors.map(|place| self.address + place.offset as u64);
        let lse = with_lse.then_some(self.address + placement.lse as u64);
        let problem = if with_lse { &self.image.problem } else { &self.image.problem_without_lse };
        // SAFETY: the placement holds all tensors of the problem, and the buffer the placement. Both live as long as
        // `self`, which nothing else uses meanwhile; freeing the buffer is queued on the same stream.
        unsafe { device.launch(problem, Pointers { q, k, v, o, lse }, self.stream.cu_stream()) }
    }

    /// Waits, and copies the buffer from the GPU.
    ///
    /// # Errors
    /// The driver refused, or a kernel failed.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        let bytes = self.stream.clone_dtoh(&self.buffer).map_err(driver_error)?;
        self.stream.synchronize().map_err(driver_error)?;
        Ok(bytes)
    }
}

/// Runs a kernel twice, the second time without LSE: the whole buffer must be the same to the bit.
///
/// # Errors
/// What is wrong, accuracy aside.
pub fn run(kernel: &Kernel, image: &Image, stream: &Arc<CudaStream>) -> Result<Output<f32>, String> {
    let mut resident = Resident::new(image, stream)?;
    let launched = resident.launch(&kernel.device, true).map_err(|error| error.to_string())?;
    if !std::ptr::eq(launched.choice.entry, kernel.entry) {
        return Err(format!("{} was launched", launched.choice.entry.name));
    }
    let first = resident.bytes()?;
    let output = image.results(&first)?;
    resident.launch(&kernel.device, false).map_err(|error| error.to_string())?;
    if resident.bytes()? != first {
        return Err("a second run, without LSE, gives other bits".to_owned());
    }
    Ok(output)
}

/// What a kernel made of a case.
pub struct Outcome {
    /// Number of the kernel.
    pub kernel: usize,
    /// The judgement, or what is wrong beside accuracy.
    pub verdict: Result<Verdict, String>,
}

/// Runs a case on every kernel that serves it.
///
/// # Errors
/// The case itself is illegal.
pub fn examine(case: &Case, kernels: &[Kernel], stream: &Arc<CudaStream>) -> Result<Vec<Outcome>, String> {
    let image = case.image().map_err(|error| format!("{case}: {error}"))?;
    let (exact, same_precision) = image.with_inputs(|inputs| (reference(&image.problem, inputs), plain(&image.problem, inputs)));
    let judged =
        |kernel: &Kernel, output: Output<f32>| judge_with(kernel.lse_tolerance(), &image.problem, &output, &exact, &same_precision);
    let serving = kernels.iter().enumerate().filter(|(_, kernel)| serves(kernel.entry, &image.problem, case.layout.alignment()));
    let outcome = |(number, kernel): (usize, &Kernel)| Outcome {
        kernel: number,
        verdict: run(kernel, &image, stream).map(|output| judged(kernel, output)),
    };
    Ok(serving.map(outcome).collect())
}

/// How a kernel did in all cases.
#[derive(Clone, Default)]
pub struct Tally {
    /// Cases that it served.
    pub cases: usize,
    /// The largest error in terms of plain's.
    pub worst_ratio: f64,
    /// The largest error of the LSE in nats.
    pub worst_lse: f64,
    /// What failed: kernel, case, reason.
    pub failures: Vec<String>,
}

impl Tally {
    fn count(&mut self, label: &str, case: &Case, verdict: &Result<Verdict, String>) {
        self.cases += 1;
        if let Ok(verdict) = verdict {
            self.worst_ratio = larger(self.worst_ratio, verdict.ratio());
            self.worst_lse = larger(self.worst_lse, verdict.lse_error);
        }
        let check = verdict.as_ref().map_err(String::clone).and_then(Verdict::check);
        self.failures.extend(check.err().map(|reason| format!("{label}\n    {case}\n    {reason}")));
    }
}

/// Runs all cases, several at a time, each on a stream of its own. Calls `done` after each case.
///
/// # Errors
/// A case is illegal, or a stream cannot be made.
pub fn examine_all(kernels: &[Kernel], cases: &[Case], done: impl Fn() + Sync) -> Result<Vec<Tally>, String> {
    let tallies = Mutex::new(vec![Tally::default(); kernels.len()]);
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), String> {
        let Some(kernel) = kernels.first() else { return Ok(()) };
        let stream = new_stream(&kernel.device)?;
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcomes = examine(case, kernels, &stream)?;
            let mut tallies = tallies.lock().unwrap_or_else(PoisonError::into_inner);
            for Outcome { kernel, verdict } in outcomes {
                tallies[kernel].count(&kernels[kernel].label(), case, &verdict);
            }
            drop(tallies);
            done();
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        // References take longer than kernels.
        let workers = std::thread::available_parallelism().map_or(4, |cores| cores.get().clamp(4, 16));
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err("a worker panicked".to_owned())))
    })?;
    Ok(tallies.into_inner().unwrap_or_else(PoisonError::into_inner))
}
