//! How fast is this GPU? `cargo run --release --example bench -- b=1,q=2048,kv=2048,h=32/8,d=128,causal,bf16`
//!
//! Times prefill on random normal data: several input sets in turn, larger together than the L2 cache; several launches
//! captured into a graph; the median over its replays, between CUDA events. FLOP are 4 * q * kv * d * heads * batch, counting
//! only the pairs of query and key that the mask leaves.

#[path = "bench/inputs.rs"]
mod inputs;
#[path = "bench/shape.rs"]
mod shape;
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use attnpack::cudarc::driver::{CudaStream, sys};
use attnpack::{Code, Device, Pointers, Problem, build_info, catalog};
use inputs::InputSet;
use serde_json::{Value, json};
use shape::BenchShape;
use support::{driver_error, median_us};

const USAGE: &str = "usage: cargo run --release --example bench -- [OPTIONS] SHAPE...
  SHAPE         b=1,q=2048,kv=2048,h=32/8,d=128,causal,bf16 (b: 1, kv: q, h: query/KV heads, causal or full, f16, bf16 or f32)
  --json FILE   shapes from a file: [{\"set\",\"b\",\"sq\",\"sk\",\"hq\",\"hk\",\"d\",\"causal\",\"dtype\"}, ...]
  --set NAME    only those of this set
  --entry NAME  this kernel, whatever dispatch would choose
  --out FILE    the results as JSON";

#[derive(Default)]
struct Options {
    shapes: Vec<BenchShape>,
    set: Option<String>,
    entry: Option<String>,
    out: Option<String>,
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
            return ExitCode::FAILURE;
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

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--json" => options.shapes.extend(BenchShape::read_json(&value()?)?),
            "--set" => options.set = Some(value()?),
            "--entry" => options.entry = Some(value()?),
            "--out" => options.out = Some(value()?),
            "--help" | "-h" => return Ok(None),
            option if option.starts_with('-') => return Err(format!("unknown option '{option}'")),
            shape => options.shapes.push(BenchShape::parse(shape)?),
        }
    }
    if let Some(set) = &options.set {
        options.shapes.retain(|shape| shape.set == *set);
    }
    if options.shapes.is_empty() { Err("no shape to time".to_owned()) } else { Ok(Some(options)) }
}

fn bench(options: &Options) -> Result<(), String> {
    let device = Device::new(0).map_err(|error| format!("no GPU to run on: {error}"))?;
    let device = match &options.entry {
        Some(name) => only(device, name)?,
        None => device,
    };
    let context = device.context().ok_or("the device has no context of its own")?;
    let stream = context.new_stream().map_err(driver_error)?;
    let name = context.name().map_err(driver_error)?;
    let ptxas = build_info().ptxas.unwrap_or("none");
    println!("{name} ({}), ptxas {ptxas}", device.capability());
    println!("{:<52} {:>10} {:>9}  kernel", "shape", "us", "TFLOP/s");
    let mut rows = Vec::new();
    for shape in &options.shapes {
        let row = time(&device, &stream, shape);
        match &row {
            Ok(time) => println!("{:<52} {:>10.1} {:>9.1}  {}", shape.to_string(), time.us, shape.flop() / time.us / 1e6, time.kernel),
            Err(error) => println!("{:<52} {error}", shape.to_string()),
        }
        rows.push(json_row(shape, &row));
    }
    if let Some(out) = &options.out {
        let report = json!({ "device": name, "capability": device.capability().to_string(), "ptxas": ptxas, "attnpack": env!("CARGO_PKG_VERSION"), "rows": rows });
        std::fs::write(out, format!("{report:#}\n")).map_err(|error| format!("cannot write {out}: {error}"))?;
    }
    Ok(())
}

/// The device with one kernel only.
fn only(device: Device, name: &str) -> Result<Device, String> {
    let entry = catalog().iter().find(|entry| entry.name == name);
    let entry =
        entry.ok_or_else(|| format!("this build has no kernel '{name}'; the example `prefill` lists all on a machine without a GPU"))?;
    // SAFETY: the entry is a packaged one.
    Ok(unsafe { device.with_catalog(std::slice::from_ref(entry)) })
}

struct Time {
    us: f64,
    kernel: String,
}

fn time(device: &Device, stream: &Arc<CudaStream>, shape: &BenchShape) -> Result<Time, String> {
    let problem = shape.problem().map_err(|error| error.to_string())?;
    let choice = device.supports(&problem).map_err(|error| error.to_string())?;
    device.warm_up(&[problem]).map_err(|error| error.to_string())?;
    let sets = InputSet::several(stream, &problem)?;
    let launch = |n: usize| queue(device, stream, &problem, sets[n % sets.len()].pointers());

    launch(0)?;
    let once = median_us(stream, 1, 3, || launch(1))?;
    let launches = ((2000.0 / once) as usize).clamp(1, 20).next_multiple_of(sets.len());
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(driver_error)?;
    let captured = (0..launches).try_for_each(launch);
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).map_err(driver_error)?.ok_or("nothing was captured")?;
    captured?;

    let replay = || graph.launch().map_err(driver_error);
    (0..3).try_for_each(|_| replay())?;
    let us = median_us(stream, launches, 15, replay)?;
    let code = if let Code::Cubin(_) = choice.code { "" } else { " (JIT)" };
    Ok(Time { us, kernel: format!("{}{code}", choice.entry.name) })
}

fn queue(device: &Device, stream: &CudaStream, problem: &Problem, pointers: Pointers) -> Result<(), String> {
    // SAFETY: an input set holds all tensors of the problem, is used on this stream only, and outlives it.
    unsafe { device.launch(problem, pointers, stream.cu_stream()) }.map(|_| ()).map_err(|error| error.to_string())
}

fn json_row(shape: &BenchShape, row: &Result<Time, String>) -> Value {
    let mut value = shape.to_json();
    match row {
        Ok(time) => {
            value["us"] = json!(time.us);
            value["tflops"] = json!(shape.flop() / time.us / 1e6);
            value["kernel"] = json!(time.kernel);
        }
        Err(error) => value["error"] = json!(error),
    }
    value
}
