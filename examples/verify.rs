//! Does this GPU compute right? `cargo run --release --example verify`
//!
//! Runs every packaged kernel that the first GPU can run, machine code and PTX, whatever dispatch prefers: on lengths around
//! the edges of its tiles, in all memory layouts, and on the kinds of data that are hard. Each result is compared with float64;
//! its error may be twice that of a plain computation in the same precision.
//!
//! Exit code: 0 if every kernel is right; 1 if one is wrong or something failed; 2 if nothing was verified, because there is
//! no GPU or an argument is bad.

#[path = "../tests/reference/mod.rs"]
mod reference;
#[macro_use]
mod support;

use std::process::ExitCode;
use std::time::Instant;

use attnpack::{Device, Entry, catalog};
use indicatif::{ProgressBar, ProgressStyle};
use reference::cases::Family;
use reference::gpu::{Tally, examine_all};
use reference::{Case, Kernel};
use support::describe;

const USAGE: &str = "\
usage: cargo run --release --example verify -- [--all] [--kernel TEXT]
  --all          every case of the test suite (some 2,500) instead of a few of each kind (some 400)
  --kernel TEXT  only kernels whose name contains TEXT
Exit code: 0 all right, 1 a kernel is wrong or something failed, 2 nothing was verified (no GPU, bad arguments).";

#[derive(Default)]
struct Options {
    all: bool,
    kernel: String,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            say!("{USAGE}");
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
            say!("Nothing was verified, there is no GPU to run on: {error}");
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

/// `None`: help is asked for.
fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--all" => options.all = true,
            "--kernel" => options.kernel = args.next().ok_or("--kernel needs a text")?,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("'{other}' is not an option")),
        }
    }
    match catalog().iter().any(|entry| entry.name.contains(&options.kernel)) {
        true => Ok(Some(options)),
        false => Err(format!("no kernel of this build has '{}' in its name", options.kernel)),
    }
}

/// Whether every kernel is right.
fn verify(device: &Device, options: &Options) -> Result<bool, String> {
    let mut kernels = Kernel::all(device).map_err(|error| error.to_string())?;
    kernels.retain(|kernel| kernel.entry.name.contains(&options.kernel));
    say!("{}", describe(device));
    if kernels.is_empty() {
        return Err("This build has none of these kernels for this GPU: nothing was verified".to_owned());
    }
    let entries: Vec<&Entry> = kernels.iter().map(|kernel| kernel.entry).collect();
    let families = Family::all(&entries);
    let cases: Vec<Case> = match options.all {
        true => families.iter().flat_map(|family| [family.edges(), family.accuracy()].concat()).collect(),
        false => families.iter().flat_map(Family::quick).collect(),
    };
    say!("{} kernels, {} cases; a kernel with both machine code and PTX counts twice", kernels.len(), cases.len());

    let start = Instant::now();
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} cases, {eta} left").map_err(|error| error.to_string())?;
    let progress = ProgressBar::new(cases.len() as u64).with_style(style);
    let tallies = examine_all(&kernels, &cases, || progress.inc(1));
    progress.finish_and_clear();
    let tallies = tallies?;
    print(&kernels, &tallies);
    let wrong = tallies.iter().filter(|tally| !tally.failures.is_empty()).count();
    say!("{} of {} kernels are right; {:.1} s", kernels.len() - wrong, kernels.len(), start.elapsed().as_secs_f64());
    Ok(wrong == 0)
}

fn print(kernels: &[Kernel], tallies: &[Tally]) {
    for failure in tallies.iter().flat_map(|tally| tally.failures.iter().take(3)) {
        say!("{failure}");
    }
    say!("{:<62} {:>6} {:>15} {:>10}  result", "kernel", "cases", "error / plain's", "LSE, nats");
    for (kernel, tally) in kernels.iter().zip(tallies) {
        let result = match tally.failures.len() {
            0 => "right".to_owned(),
            failures => format!("WRONG in {failures} cases"),
        };
        say!("{:<62} {:>6} {:>15.2} {:>10.1e}  {result}", kernel.label(), tally.cases, tally.worst_ratio, tally.worst_lse);
    }
    say!("Allowed: at most 2 times plain's error, and 1e-3 nats.");
}
