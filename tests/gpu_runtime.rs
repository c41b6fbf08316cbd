//! The runtime on a real GPU: contexts, captures, threads, compilation, and the packaged kernels through the safe API.
//!
//! Without a GPU one line says that all is skipped; `ATTNPACK_REQUIRE_GPU=1` makes that a failure.

use std::sync::Arc;
use std::time::Instant;

use attnpack::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use attnpack::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, ValidAsZeroBits};
use attnpack::{DType, Device, Element, Entry, Error, Mask, Operand, Pointers, Policy, Problem, Shape, Strides, build_info, jit_stats};

mod device_kernels;
mod foreign;
mod real_gpu;

use device_kernels::{catalog, echo, ptx};
use foreign::Foreign;
use real_gpu::{context, for_capture, gpu, values, with};

const SHAPE: Shape = Shape { batch: 2, q_len: 70, kv_len: 90, q_heads: 6, kv_heads: 2, head_dim: 64 };

/// The echo problem with o in the layout of the seed's packed rows.
fn echo_problem() -> Problem {
    let builder = Problem::prefill(DType::F32, SHAPE).mask(Mask::Causal).scale(0.5).with_lse();
    builder.o_strides(Strides::packed_rows(512, 64, 70)).build().expect("legal")
}

/// Buffers of a problem in f32.
struct Buffers {
    q: CudaSlice<f32>,
    kv: CudaSlice<f32>,
    o: CudaSlice<f32>,
    lse: CudaSlice<f32>,
    host_q: Vec<f32>,
}

impl Buffers {
    fn new(stream: &Arc<CudaStream>, problem: &Problem, seed: u64) -> Self {
        let host_q = values(problem.span_elems(Operand::Q), seed);
        let zeros = |operand| stream.alloc_zeros::<f32>(problem.span_elems(operand) as usize).expect("memory");
        let q = stream.clone_htod(&host_q).expect("copied");
        Buffers { q, kv: zeros(Operand::K), o: zeros(Operand::O), lse: zeros(Operand::Lse), host_q }
    }

    fn prefill(&mut self, device: &Device, stream: &CudaStream, problem: &Problem) -> Result<(), Error> {
        let mut lse = self.lse.as_view_mut();
        device.prefill(stream, problem, &self.q, &self.kv, &self.kv, &mut self.o, Some(&mut lse)).map(drop)
    }

    /// Checks what the echo kernel writes, and that it writes nothing else; then forgets it.
    fn check(&mut self, stream: &Arc<CudaStream>, problem: &Problem) {
        let (o, lse) = (stream.clone_dtoh(&self.o).expect("copied"), stream.clone_dtoh(&self.lse).expect("copied"));
        let scale = problem.scale() * std::f32::consts::LOG2_E;
        let mut expected = vec![0.0; o.len()];
        for (row, values) in self.host_q.chunks(64).enumerate() {
            let (token, head) = (row / 6, row % 6);
            let start = token * 512 + head * 64;
            expected[start..start + 64].copy_from_slice(&values.iter().map(|value| value * scale).collect::<Vec<_>>());
        }
        assert!(o == expected, "o is not q * scale_log2");
        let code = 70 + 1000 * 90 + 100_000 * 6 + 1_000_000_000;
        assert!(lse.iter().all(|value| value.to_bits() == code), "lse {:x?}", &lse[..4]);
        stream.memset_zeros(&mut self.o).expect("zeroed");
        stream.memset_zeros(&mut self.lse).expect("zeroed");
    }
}

#[test]
fn a_device_knows_itself() {
    let Some((device, _turn)) = gpu() else { return };
    let capability = device.capability();
    assert!(capability.major >= 5 && capability.shared_optin_bytes >= 48 << 10, "{device:?}");
    assert_eq!(device.ordinal(), 0);
    let same = Device::from_context(context(&device).clone()).expect("the same GPU");
    assert_eq!(same.capability(), capability);
    context(&device).bind_to_thread().expect("bound");
    assert_eq!(Device::from_current_context().expect("bound above").capability(), capability);
    assert!(matches!(Device::new(1000), Err(Error::NoSuchDevice { ordinal: 1000, .. })));
}

#[test]
fn a_launch_sees_problem_and_strides() {
    let Some((device, _turn)) = gpu() else { return };
    let device = with(device, catalog([echo()]));
    let (stream, problem) = (context(&device).default_stream(), echo_problem());
    let mut buffers = Buffers::new(&stream, &problem, 1);
    buffers.prefill(&device, &stream, &problem).expect("launched");
    buffers.check(&stream, &problem);
}

#[test]
fn compilation_is_counted_and_refused() {
    let Some((device, _turn)) = gpu() else { return };
    let device = with(device, catalog([echo()]));
    let before = jit_stats().kernels;
    let refused = device.clone().with_policy(Policy::CubinOnly).warm_up(&[echo_problem()]);
    assert_eq!(refused, Err(Error::JitRefused { device: device.capability(), kernel: "echo" }));
    device.warm_up(&[echo_problem(), echo_problem()]).expect("compiled");
    device.warm_up_all().expect("it is there");
    assert_eq!(jit_stats().kernels, before + 1);
}

#[test]
fn a_failed_compilation_quotes_the_drivers_compiler() {
    let Some((device, _turn)) = gpu() else { return };
    const BAD: &str = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry echo() { frobnicate.u32 %r1; }\n";
    let broken = with(device.clone(), catalog([Entry { ptx: ptx(BAD), ..echo() }]));
    let error = broken.warm_up(&[echo_problem()]).expect_err("no such instruction");
    assert!(
        matches!(&error, Error::Jit { kernel: "echo", log, source, .. } if source.code == 218 && log.contains("frobnicate")),
        "{error}"
    );

    const FUTURE: &str = ".version 99.0\n.target sm_80\n.address_size 64\n.visible .entry echo() { ret; }\n";
    let broken = with(device.clone(), catalog([Entry { ptx: ptx(FUTURE), ..echo() }]));
    let error = broken.warm_up(&[echo_problem()]).expect_err("no such version");
    assert!(matches!(&error, Error::Jit { source, .. } if source.code == 222), "{error}");
    assert!(error.to_string().contains("the driver is older than this PTX"), "{error}");

    const OTHER: &str = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry other() { ret; }\n";
    let broken = with(device.clone(), catalog([Entry { ptx: ptx(OTHER), ..echo() }]));
    let error = broken.warm_up(&[echo_problem()]).expect_err("no such kernel");
    assert!(matches!(&error, Error::Jit { source, .. } if source.code == 500), "{error}");

    let greedy = with(device.clone(), catalog([Entry { shared_bytes: 1 << 20, ..echo() }]));
    assert!(matches!(greedy.warm_up(&[echo_problem()]), Err(Error::SharedMemory { required: 0x10_0000, .. })));
}

const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

#[test]
fn a_capture_records_warm_kernels_and_survives_cold_ones() {
    let Some((device, stream, _turn)) = for_capture(catalog([echo()])) else { return };
    let problem = echo_problem();
    let mut buffers = Buffers::new(&stream, &problem, 2);
    stream.synchronize().expect("copied");
    for mode in MODES {
        stream.begin_capture(mode).expect("begun");
        assert_eq!(buffers.prefill(&device, &stream, &problem), Err(Error::NotLoaded { kernel: "echo" }));
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        assert!(graph.is_ok(), "the refusal leaves the capture intact");
    }
    device.warm_up(&[problem]).expect("loaded");
    for mode in MODES {
        stream.begin_capture(mode).expect("begun");
        for _ in 0..3 {
            buffers.prefill(&device, &stream, &problem).expect("captured");
        }
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        let graph = graph.expect("a valid capture").expect("a graph");
        for _ in 0..2 {
            graph.launch().expect("replayed");
            buffers.check(&stream, &problem);
        }
    }
}

#[test]
fn loading_leaves_the_captures_of_others_intact() {
    for mode in MODES {
        let Some((device, stream, _turn)) = for_capture(catalog([echo()])) else { return };
        let warm = with(device.clone(), catalog([Entry { copy_bytes: 16, ..echo() }]));
        let problem = echo_problem();
        let mut buffers = Buffers::new(&stream, &problem, 3);
        warm.warm_up(&[problem]).expect("loaded");
        // A context of its own, because the cold kernel must be cold in each round.
        let foreign = Foreign::new(context(&device));
        stream.synchronize().expect("copied");
        stream.begin_capture(mode).expect("begun");
        buffers.prefill(&warm, &stream, &problem).expect("captured");
        foreign.with_current(|| {
            let cold = with(Device::from_current_context().expect("current"), device.catalog());
            cold.warm_up(&[problem]).expect("loaded during the capture");
        });
        std::thread::scope(|scope| {
            scope.spawn(|| device.warm_up(&[problem]).expect("loaded during the capture of another thread"));
        });
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        graph.expect("a valid capture").expect("a graph").launch().expect("replayed");
        buffers.check(&stream, &problem);
    }
}

#[test]
fn threads_share_a_device() {
    let Some((device, _turn)) = gpu() else { return };
    let device = with(device, catalog([echo()]));
    let before = jit_stats().kernels;
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let device = &device;
            scope.spawn(move || {
                let (stream, problem) = (context(device).new_stream().expect("a stream"), echo_problem());
                let mut buffers = Buffers::new(&stream, &problem, thread);
                for _ in 0..20 {
                    buffers.prefill(device, &stream, &problem).expect("launched");
                    buffers.check(&stream, &problem);
                }
            });
        }
    });
    assert_eq!(jit_stats().kernels, before + 1, "compiled once, by one of the threads");
}

#[test]
fn foreign_contexts_come_and_go() {
    let Some((device, _turn)) = gpu() else { return };
    let catalog = catalog([echo()]);
    let problem = echo_problem();
    let (mut addresses, mut loads) = (Vec::new(), 0);
    let before = jit_stats().kernels;
    for round in 0..4 {
        let foreign = Foreign::new(context(&device));
        loads += 1;
        addresses.push(foreign.address());
        foreign.with_current(|| {
            let device = with(Device::from_current_context().expect("current"), catalog);
            foreign.echo(&device, &problem, round);
            foreign.echo(&device, &problem, round);
        });
        assert_eq!(jit_stats().kernels, before + loads, "loaded once in each context");
    }
    addresses.sort_unstable();
    addresses.dedup();
    println!("4 contexts, {} addresses", addresses.len());
}

#[test]
fn a_launch_runs_in_its_streams_context() {
    let Some((device, _turn)) = gpu() else { return };
    let device = with(device, catalog([echo()]));
    let problem = echo_problem();
    let foreign = Foreign::new(context(&device));
    // The primary context is current, the stream is foreign.
    context(&device).bind_to_thread().expect("bound");
    foreign.echo(&device, &problem, 5);
    // The other way round, through the safe API.
    let stream = context(&device).default_stream();
    let mut buffers = Buffers::new(&stream, &problem, 6);
    foreign.with_current(|| buffers.prefill(&device, &stream, &problem).expect("launched"));
    buffers.check(&stream, &problem);
    // No context is current at all.
    std::thread::scope(|scope| {
        scope.spawn(|| foreign.echo(&device, &problem, 7));
        scope.spawn(|| {
            let pointers = Pointers { q: 4096, k: 4096, v: 4096, o: 1 << 30, lse: Some(1 << 31) };
            // SAFETY: refused before anything runs.
            let refused = unsafe { device.launch(&problem, pointers, std::ptr::null_mut()) };
            assert_eq!(refused.map(drop), Err(Error::NoContext));
        });
    });
}

#[test]
fn a_primary_context_can_be_released_and_made_again() {
    let catalog = catalog([echo()]);
    let problem = echo_problem();
    for round in 0..3 {
        let Some((device, _turn)) = gpu() else { return };
        let device = with(device, catalog);
        let stream = context(&device).default_stream();
        let mut buffers = Buffers::new(&stream, &problem, round);
        buffers.prefill(&device, &stream, &problem).expect("launched");
        buffers.check(&stream, &problem);
        // Everything is dropped here, and with it the primary context.
    }
}

#[test]
fn a_host_whose_gpus_are_hidden_has_none() {
    const MARK: &str = "ATTNPACK_TEST_HIDDEN_GPUS";
    if std::env::var(MARK).is_ok() {
        assert_eq!(Device::new(0).map(drop), Err(Error::NoDevice));
        return;
    }
    let Some((_device, _turn)) = gpu() else { return };
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
    child.args(["a_host_whose_gpus_are_hidden_has_none", "--exact"]).env(MARK, "1").env("CUDA_VISIBLE_DEVICES", "");
    let output = child.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Host time of a launch beyond that of `cuLaunchKernel`.
#[test]
fn a_launch_costs_little_host_time() {
    let Some((device, stream, _turn)) = for_capture(catalog([echo()])) else { return };
    let problem = Problem::prefill(DType::F32, Shape { q_len: 1, batch: 1, ..SHAPE }).with_lse().build().expect("legal");
    let mut buffers = Buffers::new(&stream, &problem, 8);
    let foreign = Foreign::new(context(&device));
    device.warm_up(&[problem]).expect("loaded");
    context(&device).bind_to_thread().expect("bound");
    let address = |slice: &CudaSlice<f32>| slice.device_ptr(&stream).0;
    let (q, kv, o, lse) = (address(&buffers.q), address(&buffers.kv), address(&buffers.o), address(&buffers.lse));
    let pointers = Pointers { q, k: kv, v: kv, o, lse: Some(lse) };
    let mut launches: [Box<dyn FnMut()>; 3] = [
        Box::new(|| foreign.bare_launch(stream.cu_stream())),
        Box::new(|| {
            // SAFETY: the buffers are alive, and of the stream's context.
            unsafe { device.launch(&problem, pointers, stream.cu_stream()) }.expect("launched");
        }),
        Box::new(|| buffers.prefill(&device, &stream, &problem).expect("launched")),
    ];
    let mut best = [f64::MAX; 3];
    for _ in 0..50 {
        for (launch, best) in launches.iter_mut().zip(&mut best) {
            let start = Instant::now();
            (0..100).for_each(|_| launch());
            *best = best.min(start.elapsed().as_secs_f64() * 1e9 / 100.0);
            stream.synchronize().expect("done");
        }
    }
    let [bare, raw, safe] = best;
    println!("host time of a launch: cuLaunchKernel {bare:.0} ns, Device::launch {raw:.0} ns, Device::prefill {safe:.0} ns");
    // The limit is 2 us; builds without optimization get ten times that.
    let limit = if cfg!(debug_assertions) { 20_000.0 } else { 2_000.0 };
    assert!(raw - bare < limit && safe - bare < limit, "{bare:.0} {raw:.0} {safe:.0}");
}

/// O and LSE in f64, one query after the other.
fn reference(problem: &Problem, [q, k, v]: [&[f32]; 3]) -> (Vec<f64>, Vec<f64>) {
    let Shape { batch, q_len, kv_len, q_heads, kv_heads, head_dim } = *problem.shape();
    let [batch, q_len, kv_len, q_heads, kv_heads, d] = [batch, q_len, kv_len, q_heads, kv_heads, head_dim].map(|size| size as usize);
    let (mut o, mut lse) = (vec![0.0; batch * q_len * q_heads * d], vec![f64::NEG_INFINITY; batch * q_heads * q_len]);
    for (b, i, h) in (0..batch).flat_map(|b| (0..q_len).flat_map(move |i| (0..q_heads).map(move |h| (b, i, h)))) {
        let keys = if problem.mask() == Mask::Causal { (i + kv_len + 1).saturating_sub(q_len) } else { kv_len };
        let of = |tensor: &[f32], j: usize, c: usize| f64::from(tensor[((b * kv_len + j) * kv_heads + h / (q_heads / kv_heads)) * d + c]);
        let row = ((b * q_len + i) * q_heads + h) * d;
        let score = |j| f64::from(problem.scale()) * (0..d).map(|c| f64::from(q[row + c]) * of(k, j, c)).sum::<f64>();
        let scores: Vec<f64> = (0..keys).map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
        if keys > 0 {
            lse[(b * q_heads + h) * q_len + i] = largest + sum.ln();
        }
        for c in 0..d {
            o[row + c] = scores.iter().enumerate().map(|(j, score)| (score - largest).exp() / sum * of(v, j, c)).sum();
        }
    }
    (o, lse)
}

fn check_packaged<T>(device: &Device, from: fn(f32) -> T, to: fn(T) -> f32, tolerance: f64)
where
    T: Element + DeviceRepr + ValidAsZeroBits + Copy + Default,
{
    let stream = context(device).default_stream();
    // Some kernels sum weights that are rounded to the type of the tensors.
    let lse_tolerance = if T::DTYPE == DType::BF16 { 5.5e-3 } else { 1e-3 };
    let head_dims: std::collections::BTreeSet<u32> =
        device.catalog().iter().filter(|entry| entry.dtype == T::DTYPE).map(|entry| entry.head_dim).collect();
    for (head_dim, mask, q_len) in
        head_dims.into_iter().flat_map(|d| [(d, Mask::Causal, 16), (d, Mask::Causal, 70), (d, Mask::Full, 70), (d, Mask::Causal, 100)])
    {
        let shape = Shape { batch: 2, q_len, kv_len: 90, q_heads: 8, kv_heads: 2, head_dim };
        let problem = Problem::prefill(T::DTYPE, shape).mask(mask).with_lse().build().expect("legal");
        let host = [Operand::Q, Operand::K, Operand::V].map(|operand| values(problem.span_elems(operand), operand as u64 + 1));
        let [q, k, v] = host.each_ref().map(|host| {
            let elements: Vec<T> = host.iter().map(|&value| from(value)).collect();
            stream.clone_htod(&elements).expect("copied")
        });
        let mut o = stream.alloc_zeros::<T>(problem.span_elems(Operand::O) as usize).expect("memory");
        let mut lse = stream.alloc_zeros::<f32>(problem.span_elems(Operand::Lse) as usize).expect("memory");
        let launched = device.prefill(&stream, &problem, &q, &k, &v, &mut o, Some(&mut lse.as_view_mut())).expect("launched");
        let [q, k, v] = host.each_ref().map(|host| host.as_slice());
        let (expected_o, expected_lse) = reference(&problem, [q, k, v]);
        let o = stream.clone_dtoh(&o).expect("copied");
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let error =
            norm(&mut o.iter().zip(&expected_o).map(|(&o, expected)| f64::from(to(o)) - expected)) / norm(&mut expected_o.iter().copied());
        assert!(error < tolerance, "{launched}: {mask} {q_len}: error {error:.2e}");
        let lse = stream.clone_dtoh(&lse).expect("copied");
        for (&lse, &expected) in lse.iter().zip(&expected_lse) {
            assert!(
                f64::from(lse) == expected || (f64::from(lse) - expected).abs() < lse_tolerance,
                "{launched}: {mask} {q_len}: lse {lse} for {expected}"
            );
        }
    }
}

/// A glance at each head_dim and element type; the full examination of the kernels is elsewhere.
#[test]
fn packaged_kernels_compute_attention() {
    let Some((device, _turn)) = gpu() else { return };
    check_packaged(&device, |value| value, |value| value, 1e-5);
    check_packaged(&device, half::f16::from_f32, half::f16::to_f32, 1e-3);
    check_packaged(&device, half::bf16::from_f32, half::bf16::to_f32, 8e-3);
}

#[test]
fn packaged_kernels_all_load() {
    let Some((device, _turn)) = gpu() else { return };
    let before = jit_stats().kernels;
    device.warm_up_all().expect("loaded");
    let feature = device.capability().cargo_feature();
    let has_machine_code = build_info().ptxas.is_some() && build_info().archs.iter().any(|arch| Some(&*arch.to_string()) == feature);
    if has_machine_code {
        assert_eq!(jit_stats().kernels, before, "a GPU whose architecture is enabled compiles nothing");
        device.with_policy(Policy::CubinOnly).warm_up_all().expect("loaded");
    }
}
