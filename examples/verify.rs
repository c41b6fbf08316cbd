//! Does this GPU compute right? `cargo run --release --example verify`
//!
//! Runs every packaged kernel that the first GPU can run, machine code and PTX, on shapes around the edges of its tiles, all
//! memory layouts and the kinds of data that are hard, and compares each result with float64.
//!
//! Exit code: 0 if every kernel is right, 1 if one is not, 2 if there is no GPU.

#[path = "../tests/reference/mod.rs"]
mod reference;

use std::process::ExitCode;
use std::time::Instant;

use attnpack::{Device, Entry};
use indicatif::{ProgressBar, ProgressStyle};
use reference::cases::Family;
use reference::gpu::{Tally, examine_all};
use reference::{Case, Kernel};

const USAGE: &str = "usage: cargo run --release --example verify [-- --all] [-- --kernel TEXT]
  --all          every case of the test suite instead of a few of each
  --kernel TEXT  only kernels whose name contains TEXT
exit code: 0 all right, 1 a kernel is wrong, 2 no GPU or bad arguments";

struct Options {
    all: bool,
    kernel: String,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let device = match Device::new(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("nothing was verified, there is no GPU to run on: {error}");
            return ExitCode::from(2);
        }
    };
    match verify(&device, &options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options { all: false, kernel: String::new() };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--all" => options.all = true,
            "--kernel" => options.kernel = args.next().ok_or("--kernel needs a text")?,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    Ok(Some(options))
}

/// Whether every kernel is right.
fn verify(device: &Device, options: &Options) -> Result<bool, String> {
    let mut kernels = Kernel::all(device).map_err(|error| error.to_string())?;
    kernels.retain(|kernel| kernel.entry.name.contains(&options.kernel));
    if kernels.is_empty() {
        return Err(format!("no kernel of this build that {} can run contains '{}'", device.capability(), options.kernel));
    }
    let entries: Vec<&Entry> = kernels.iter().map(|kernel| kernel.entry).collect();
    let families = Family::all(&entries);
    let cases: Vec<Case> = match options.all {
        true => families.iter().flat_map(|family| [family.edges(), family.accuracy()].concat()).collect(),
        false => families.iter().flat_map(Family::quick).collect(),
    };
    let name = device.context().and_then(|context| context.name().ok()).unwrap_or_default();
    println!("{name} ({}): {} kernels, {} cases", device.capability(), kernels.len(), cases.len());

    let start = Instant::now();
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} cases, {eta} left").map_err(|error| error.to_string())?;
    let progress = ProgressBar::new(cases.len() as u64).with_style(style);
    let tallies = examine_all(&kernels, &cases, || progress.inc(1))?;
    progress.finish_and_clear();
    print(&kernels, &tallies);
    let wrong = tallies.iter().filter(|tally| !tally.failures.is_empty()).count();
    println!("{} of {} kernels are right, in {:.0} s", kernels.len() - wrong, kernels.len(), start.elapsed().as_secs_f64());
    Ok(wrong == 0)
}

fn print(kernels: &[Kernel], tallies: &[Tally]) {
    println!("{:<62} {:>6} {:>16} {:>14}", "kernel", "cases", "error / plain's", "LSE, nats");
    for (kernel, tally) in kernels.iter().zip(tallies) {
        let result = if tally.failures.is_empty() { "" } else { "  WRONG" };
        println!("{:<62} {:>6} {:>16.2} {:>14.1e}{result}", kernel.label(), tally.cases, tally.worst_ratio, tally.worst_lse);
    }
    for failure in tallies.iter().flat_map(|tally| tally.failures.iter().take(3)) {
        println!("{failure}");
    }
}
