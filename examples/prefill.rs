//! Prefill on a real model's activations: `cargo run --release --example prefill`.
//!
//! SmolLM2-135M, layer 14, 197 tokens: 9 query heads and 3 KV heads of 64 elements, packed as the projection left them.
//! Prints the kernel that was chosen and why, how long loading took, the time of a launch, and the worst error against
//! float64. Without a GPU it prints the packaged kernels and says that nothing was executed.
//!
//! Exit code: 0 if every result is as accurate as it must be, or if there is no GPU; 1 otherwise.

#[path = "../tests/reference/mod.rs"]
mod reference;
mod support;

use std::process::ExitCode;
use std::time::Instant;

use attnpack::{Code, DType, Device, Shape, jit_stats};
use reference::fixtures::Activations;
use reference::gpu::{Resident, new_stream};
use reference::{judge, plain, reference as in_float64};
use support::{catalogue_table, median_us};

const USAGE: &str = "usage: cargo run --release --example prefill
Runs attention on the activations of SmolLM2-135M, layer 14, on the first GPU, in f32 and bf16.";

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("--help" | "-h") => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some(other) => {
            eprintln!("unknown argument '{other}'\n{USAGE}");
            return ExitCode::FAILURE;
        }
    }
    let device = match Device::new(0) {
        Ok(device) => device,
        Err(error) => {
            println!("no GPU to run on: {error}\n\n{}", catalogue_table());
            println!("Nothing was executed: kernels run on a GPU only.");
            return ExitCode::SUCCESS;
        }
    };
    match run(&device) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every result was accurate enough.
fn run(device: &Device) -> Result<bool, String> {
    let activations = Activations::layer_14()?;
    let Shape { q_len, q_heads, kv_heads, head_dim, .. } = activations.shape;
    let name = device.context().and_then(|context| context.name().ok()).unwrap_or_default();
    println!("device      {name} ({})", device.capability());
    println!(
        "activations {}: {q_len} tokens, {q_heads} query heads, {kv_heads} KV heads, head_dim {head_dim}, packed QKV",
        activations.name
    );
    let mut is_accurate = true;
    for dtype in [DType::F32, DType::BF16] {
        println!("\n{dtype}, causal");
        is_accurate &= prefill(device, &activations, dtype)?;
    }
    Ok(is_accurate)
}

fn prefill(device: &Device, activations: &Activations, dtype: DType) -> Result<bool, String> {
    let image = activations.image(dtype).map_err(|error| error.to_string())?;
    let choice = device.supports(&image.problem).map_err(|error| error.to_string())?;
    println!("  kernel    {choice}");

    let (start, compiled) = (Instant::now(), jit_stats().kernels);
    device.warm_up(&[image.problem]).map_err(|error| error.to_string())?;
    let how = if jit_stats().kernels > compiled { "compiled from PTX by the driver" } else { "loaded as machine code" };
    println!("  loading   {how} in {:.2} ms", start.elapsed().as_secs_f64() * 1e3);

    let stream = new_stream(device)?;
    let mut resident = Resident::new(&image, &stream)?;
    let start = Instant::now();
    let launched = resident.launch(device, true).map_err(|error| error.to_string())?;
    stream.synchronize().map_err(support::driver_error)?;
    println!("  first     launch to result in {:.0} us; {launched}", start.elapsed().as_secs_f64() * 1e6);

    let output = image.results(&resident.bytes()?)?;
    const LAUNCHES: usize = 100;
    let us = median_us(&stream, LAUNCHES, 21, || {
        (0..LAUNCHES).try_for_each(|_| resident.launch(device, true).map(|_| ()).map_err(|error| error.to_string()))
    })?;
    println!("  time      {us:.1} us a launch (median of 21 times {LAUNCHES} launches in a row, between CUDA events)");

    let (exact, same_precision) = image.with_inputs(|inputs| (in_float64(&image.problem, inputs), plain(&image.problem, inputs)));
    let verdict = judge(&image.problem, &output, &exact, &same_precision);
    println!(
        "  error     {:.2e} of float64's norm; a plain {dtype} computation has {:.2e}, {:.2e} are allowed",
        verdict.error, verdict.plain_error, verdict.allowed
    );
    println!("  worst     {}", verdict.worst);
    println!("  lse       off by {:.1e} nats at most", verdict.lse_error);
    if let Err(complaint) = verdict.check() {
        println!("  WRONG     {complaint}");
    }
    if let Code::Ptx(_) = choice.code {
        println!("  note      a cargo feature for this GPU and a ptxas at build time make this machine code");
    }
    Ok(verdict.check().is_ok())
}
