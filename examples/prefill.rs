//! Prefill on a real model's activations: `cargo run --release --example prefill`
//!
//! The projections of SmolLM2-135M, layer 14, for 197 tokens: 9 query heads and 3 KV heads of 64 elements, packed in rows as
//! the model's matrix product leaves them. Prints which kernel ran and why, how long loading it took, the time of a launch,
//! and the error against float64 with the place where it is largest; for f32 and bf16.
//!
//! Without a GPU it prints the packaged kernels and says that nothing was executed.
//!
//! Exit code: 0 if all is as accurate as it must be, and without a GPU; 1 if something failed; 2 for bad arguments.

#[path = "../tests/reference/mod.rs"]
mod reference;
#[macro_use]
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use attnpack::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, DriverError, ValidAsZeroBits};
use attnpack::{Device, Element, Error, Mask, Operand, Problem, Shape, jit_stats};
use half::bf16;
use reference::element::round;
use reference::fixtures::Activations;
use reference::{Inputs, Output, Tensor, Verdict, judge, plain, reference as in_float64};
use support::{catalogue_table, context, describe, driver_error, launch_us};

const USAGE: &str = "\
usage: cargo run --release --example prefill
Computes attention on the activations of SmolLM2-135M, layer 14, on the first GPU, in f32 and in bf16.
Without a GPU it lists the packaged kernels.";

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("--help" | "-h") => {
            say!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some(other) => {
            eprintln!("'{other}' is not an option\n{USAGE}");
            return ExitCode::from(2);
        }
    }
    let device = match Device::new(0) {
        Ok(device) => device,
        Err(error) => {
            say!("Nothing will be executed, there is no GPU to run on: {error}\n\n{}", catalogue_table());
            say!("Nothing was executed. On a machine with an NVIDIA GPU this example runs two of these kernels and checks them.");
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

/// Whether every result is accurate enough.
fn run(device: &Device) -> Result<bool, String> {
    let activations = Activations::layer_14()?;
    let Shape { q_len, q_heads, kv_heads, head_dim, .. } = activations.shape;
    say!("device   {}", describe(device));
    say!("input    {}: {q_len} tokens, heads {q_heads}/{kv_heads}, head_dim {head_dim}, causal", activations.name);
    say!("layout   q, k and v are columns of one matrix [{q_len}, {}]", activations.columns());
    // SAFETY: one stream is used, and nothing is shared between threads. Events would get into the way of the capture.
    unsafe { context(device)?.disable_event_tracking() };
    let stream = context(device)?.new_stream().map_err(driver_error)?;
    let f32_is_right = prefill::<f32>(device, &stream, &activations)?;
    let bf16_is_right = prefill::<bf16>(device, &stream, &activations)?;
    Ok(f32_is_right && bf16_is_right)
}

/// Computes, checks and times the attention of the activations in an element type.
fn prefill<T: Number>(device: &Device, stream: &Arc<CudaStream>, activations: &Activations) -> Result<bool, String> {
    let strides = activations.strides();
    let builder = Problem::prefill(T::DTYPE, activations.shape).mask(Mask::Causal).with_lse();
    let problem = builder.q_strides(strides).k_strides(strides).v_strides(strides).build().map_err(text)?;

    let (start, compiled) = (Instant::now(), jit_stats().kernels);
    device.warm_up(&[problem]).map_err(text)?;
    let loading = start.elapsed();
    let code = if jit_stats().kernels > compiled { "PTX, through the driver's compiler" } else { "machine code" };

    let [k, v] = activations.starts();
    let qkv: Vec<T> = activations.qkv.iter().copied().map(T::new).collect();
    let qkv = stream.clone_htod(&qkv).map_err(driver_error)?;
    let (q, k, v) = (qkv.slice(..), qkv.slice(k..), qkv.slice(v..));
    let (mut o, mut lse) = (unset::<T>(stream, &problem, Operand::O)?, unset::<f32>(stream, &problem, Operand::Lse)?);
    let mut launch = || device.prefill(stream, &problem, &q, &k, &v, &mut o, Some(&mut lse.as_view_mut()));

    let launched = launch().map_err(text)?;
    say!("\n{:<8} {launched}", T::DTYPE.to_string());
    say!("loading  {:.2} ms, {code}", loading.as_secs_f64() * 1e3);
    const LAUNCHES: usize = 100;
    let us = launch_us(stream, LAUNCHES, 21, |_| launch().map(drop).map_err(text))?;
    say!("time     {us:.1} us a launch (a CUDA graph of {LAUNCHES} launches, between events, median of 21 replays)");

    let result = collect(stream, &problem, &o, &lse).map_err(driver_error)?;
    Ok(report(&problem, &verdict(&problem, activations, &result)))
}

/// Prints how accurate a result is, and returns whether it is accurate enough.
fn report(problem: &Problem, verdict: &Verdict) -> bool {
    let Verdict { error, plain_error, allowed, lse_error, worst, .. } = verdict;
    say!("error    {error:.2e} against float64; a plain {} computation has {plain_error:.2e}, allowed is {allowed:.2e}", problem.dtype());
    say!("worst    {worst}");
    say!("lse      off by {lse_error:.1e} nats at most");
    match verdict.check() {
        Ok(()) => say!("right"),
        Err(complaint) => say!("WRONG    {complaint}"),
    }
    verdict.check().is_ok()
}

fn text(error: Error) -> String {
    error.to_string()
}

/// An element type, and f32 values in it.
trait Number: Element + DeviceRepr + ValidAsZeroBits + Copy {
    fn new(value: f32) -> Self;
    fn value(self) -> f32;
}

impl Number for f32 {
    fn new(value: f32) -> Self {
        value
    }
    fn value(self) -> f32 {
        self
    }
}

impl Number for bf16 {
    fn new(value: f32) -> Self {
        bf16::from_f32(value)
    }
    fn value(self) -> f32 {
        self.to_f32()
    }
}

/// Memory for a result, full of NaN.
fn unset<T: Number>(stream: &Arc<CudaStream>, problem: &Problem, operand: Operand) -> Result<CudaSlice<T>, String> {
    stream.clone_htod(&vec![T::new(f32::NAN); problem.span_elems(operand) as usize]).map_err(driver_error)
}

/// The results on the host, in the order of the reference: the heads of o, from `[token, head]` to `[head, token]`.
fn collect<T: Number>(
    stream: &Arc<CudaStream>,
    problem: &Problem,
    o: &CudaSlice<T>,
    lse: &CudaSlice<f32>,
) -> Result<Output<f32>, DriverError> {
    let (o, lse) = (stream.clone_dtoh(o)?, stream.clone_dtoh(lse)?);
    stream.synchronize()?;
    let Shape { q_len, q_heads, head_dim, .. } = *problem.shape();
    let rows: Vec<&[T]> = o.chunks(head_dim as usize).collect();
    let order = (0..q_heads).flat_map(|head| (0..q_len).map(move |token| (token * q_heads + head) as usize));
    Ok(Output { o: order.flat_map(|row| rows[row]).map(|value| value.value()).collect(), lse })
}

/// Compares with float64 on the inputs as the kernel saw them: rounded to the element type.
fn verdict(problem: &Problem, activations: &Activations, result: &Output<f32>) -> Verdict {
    let rounded: Vec<f32> = activations.qkv.iter().map(|value| round(problem.dtype(), *value)).collect();
    let tensor = |start: usize| Tensor { elements: &rounded[start..], strides: activations.strides(), row_elems: 64 };
    let [k, v] = activations.starts();
    let inputs = Inputs { q: tensor(0), k: tensor(k), v: tensor(v) };
    judge(problem, result, &in_float64(problem, &inputs), &plain(problem, &inputs))
}
