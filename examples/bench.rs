//! How fast is this GPU? `cargo run --release --example bench -- b=1,q=2048,kv=2048,h=32/8,d=128,causal,bf16`
//!
//! Times prefill on random normal data: several sets of tensors in turn, together larger than twice the L2 cache (or as many
//! as `--sets` says); a CUDA graph of some launches; the median over its replays, between events. FLOP are
//! 4 * q * kv * d * heads * batch, counting only the pairs of query and key that the mask leaves.
//!
//! A shape that the library refuses gets its error in the row, and the others go on.
//!
//! Exit code: 0 if the shapes were gone through; 1 without a GPU, or if a file cannot be written; 2 for bad arguments.

#[path = "bench/inputs.rs"]
mod inputs;
#[path = "../tests/reference/mod.rs"]
mod reference;
#[path = "bench/shape.rs"]
mod shape;
#[macro_use]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use attnpack::cudarc::driver::CudaStream;
use attnpack::{Code, Device, Entry, Pointers, Problem, Schedule, build_info, catalog};
use inputs::InputSet;
use reference::kernels::with_blocks;
use serde_json::{Value, json};
use shape::BenchShape;
use support::{context, describe, driver_error, driver_version, launch_us};

const USAGE: &str = "\
usage: cargo run --release --example bench -- [OPTIONS] SHAPE...
  SHAPE         b=1,q=2048,kv=2048,h=32/8,d=128,causal,bf16: batch, query and key tokens, query/KV heads, head_dim, mask, type
                q, h and d are needed; the others default to b=1, kv=q, causal and bf16; or: full, f16, f32
  --json FILE   shapes from a file: [{\"set\", \"b\", \"sq\", \"sk\", \"hq\", \"hk\", \"d\", \"causal\", \"dtype\"}, ...]
  --set NAME    of the file, only the shapes of this set
  --entry NAME  this kernel, whatever dispatch would choose
  --cluster N   with a kernel that splits the keys of a tile: among N blocks
  --together N  with a kernel whose blocks stay: N blocks for each multiprocessor
  --programmatic  launches may start while the one before still runs (programmatic dependent launch)
  --sets N      N sets of tensors in turn; without it, as many as exceed twice the L2 cache, at least 2
  --out FILE    the results as JSON, too";

#[derive(Default)]
struct Options {
    shapes: Vec<BenchShape>,
    entry: Option<&'static Entry>,
    /// Blocks of a cluster, or of a multiprocessor.
    blocks: Option<u32>,
    programmatic: bool,
    sets: Option<usize>,
    out: Option<String>,
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
    match bench(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// `None`: help is asked for.
fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let (mut options, mut set) = (Options::default(), None);
    let (mut cluster, mut together) = (None, None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--json" => options.shapes.extend(BenchShape::read_json(&value()?)?),
            "--set" => set = Some(value()?),
            "--entry" => options.entry = Some(entry(&value()?)?),
            "--cluster" => cluster = Some(value()?.parse().map_err(|_| "--cluster needs a number")?),
            "--together" => together = Some(value()?.parse().map_err(|_| "--together needs a number")?),
            "--programmatic" => options.programmatic = true,
            "--sets" => options.sets = Some(value()?.parse().ok().filter(|sets| *sets > 0).ok_or("--sets needs a number above 0")?),
            "--out" => options.out = Some(value()?),
            "--help" | "-h" => return Ok(None),
            option if option.starts_with('-') => return Err(format!("'{option}' is not an option")),
            shape => options.shapes.push(BenchShape::parse(shape)?),
        }
    }
    options.shapes.retain(|shape| set.is_none() || shape.set.is_empty() || Some(&shape.set) == set.as_ref());
    if options.shapes.is_empty() {
        return Err("there is no shape to time".to_owned());
    }
    options.blocks = blocks(options.entry.map(|entry| entry.schedule), cluster, together)?;
    Ok(Some(options))
}

fn entry(name: &str) -> Result<&'static Entry, String> {
    catalog().iter().find(|entry| entry.name == name).ok_or_else(|| format!("this build has no kernel '{name}'"))
}

/// The number of blocks that is asked for, if the kernel can have it.
fn blocks(schedule: Option<Schedule>, cluster: Option<u32>, together: Option<u32>) -> Result<Option<u32>, String> {
    let (option, blocks, numbers) = match (schedule, cluster, together) {
        (_, None, None) => return Ok(None),
        (Some(Schedule::Split { clusters, .. }), Some(blocks), None) => ("--cluster", blocks, clusters),
        (Some(Schedule::Persistent { together, .. }), None, Some(blocks)) => ("--together", blocks, together),
        (_, Some(_), _) => return Err("--cluster needs the --entry of a kernel that splits the keys of a tile".to_owned()),
        (_, None, Some(_)) => return Err("--together needs the --entry of a kernel whose blocks stay".to_owned()),
    };
    if numbers.contains(&blocks) { Ok(Some(blocks)) } else { Err(format!("{option} {blocks}: the kernel can have one of {numbers:?}")) }
}

fn bench(options: &Options) -> Result<(), String> {
    let device = Device::new(0).map_err(|error| format!("Nothing was timed, there is no GPU to run on: {error}"))?;
    // SAFETY: one stream is used, and nothing is shared between threads. Events would get into the way of the capture.
    unsafe { context(&device)?.disable_event_tracking() };
    let stream = context(&device)?.new_stream().map_err(driver_error)?;
    let device = match options.entry {
        Some(entry) => {
            let entry = options.blocks.map_or(entry, |blocks| with_blocks(entry, Box::leak(Box::new(blocks))));
            // SAFETY: the entry is a packaged one.
            unsafe { device.with_catalog(std::slice::from_ref(entry)) }
        }
        None => device,
    };
    let device = device.with_programmatic_launch(options.programmatic);
    say!("{}, attnpack {}, {}", describe(&device), env!("CARGO_PKG_VERSION"), support::ptxas_version());
    say!("{:<52} {:>10} {:>9}  kernel", "shape", "us", "TFLOP/s");
    let mut rows = Vec::new();
    for shape in &options.shapes {
        let row = time(&device, &stream, shape, options.sets);
        match &row {
            Ok(Time { us, kernel, .. }) => say!("{:<52} {us:>10.1} {:>9.1}  {kernel}", shape.to_string(), shape.flop() / us / 1e6),
            Err(error) => say!("{:<52} {error}", shape.to_string()),
        }
        rows.push(json_row(shape, row));
    }
    say!("Times: {}, on sets of tensors in turn.", support::HOW);
    options.out.as_ref().map_or(Ok(()), |out| write(out, &device, rows))
}

fn write(out: &str, device: &Device, rows: Vec<Value>) -> Result<(), String> {
    let name = context(device)?.name().map_err(driver_error)?;
    let archs: Vec<String> = build_info().archs.iter().map(ToString::to_string).collect();
    let report = json!({
        "device": name, "capability": device.capability().to_string(), "driver": driver_version(),
        "attnpack": env!("CARGO_PKG_VERSION"), "ptxas": build_info().ptxas, "archs": archs,
        "command": std::env::args().skip(1).collect::<Vec<_>>(), "method": support::HOW, "rows": rows,
    });
    std::fs::write(out, format!("{report:#}\n")).map_err(|error| format!("cannot write {out}: {error}"))
}

/// How long a launch takes, and of what.
struct Time {
    us: f64,
    sets: usize,
    launches: usize,
    kernel: String,
    code: String,
}

fn time(device: &Device, stream: &Arc<CudaStream>, shape: &BenchShape, sets: Option<usize>) -> Result<Time, String> {
    let problem = shape.problem().map_err(|error| error.to_string())?;
    let choice = device.supports(&problem).map_err(|error| error.to_string())?;
    device.warm_up(&[problem]).map_err(|error| error.to_string())?;
    let sets = InputSet::several(stream, &problem, sets)?;
    let queue = |n: usize| launch(device, stream, &problem, sets[n % sets.len()].pointers());

    // Graphs of about 2 ms, in which every set has its turn equally often.
    let once = launch_us(stream, 1, 3, queue)?;
    let launches = ((2000.0 / once) as usize).clamp(1, 20).next_multiple_of(sets.len());
    let us = launch_us(stream, launches, 15, queue)?;
    let code = match choice.code {
        Code::Cubin(cubin) => cubin.arch.to_string(),
        Code::Ptx(_) => "PTX".to_owned(),
    };
    Ok(Time { us, sets: sets.len(), launches, kernel: choice.entry.name.to_owned(), code })
}

fn launch(device: &Device, stream: &CudaStream, problem: &Problem, pointers: Pointers) -> Result<(), String> {
    // SAFETY: an input set holds all tensors of the problem and is used on this stream only. It is freed, on the same
    // stream, when the last launch was queued.
    unsafe { device.launch(problem, pointers, stream.cu_stream()) }.map(drop).map_err(|error| error.to_string())
}

fn json_row(shape: &BenchShape, row: Result<Time, String>) -> Value {
    let mut value = shape.to_json();
    match row {
        Ok(Time { us, sets, launches, kernel, code }) => {
            value["us"] = json!(us);
            value["tflops"] = json!(shape.flop() / us / 1e6);
            value["entry"] = json!(kernel);
            value["code"] = json!(code);
            value["sets"] = json!(sets);
            value["launches"] = json!(launches);
        }
        Err(error) => value["error"] = json!(error),
    }
    value
}
