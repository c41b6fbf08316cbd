//! What a `Device` does with contexts, captures, kernels and parameters, seen from a driver that records its calls.

#![cfg(target_os = "linux")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use attnpack::{
    DType, Device, Entry, Error, Group, Mask, MaskSupport, Operand, Pointers, Policy, Problem, RowStart, Shape, Strides, build_info,
    jit_stats,
};

mod device_kernels;
mod fake_driver;
mod fake_kernels;

use device_kernels::PrefillParams;
use fake_driver::{Fake, Launch, with_driver};
use fake_kernels::{PACKED, POINTERS, SHAPE, STREAM, launch, ptx};

static CATALOG: [Entry; 5] = [
    PACKED,
    Entry { name: "any", group: Group::Any, mask: MaskSupport::Any, block_q: 64, threads: 128, shared_bytes: 40_000, ..PACKED },
    // Never needed where "any" has machine code.
    Entry { name: "covered", group: Group::Any, mask: MaskSupport::Any, cubins: &[], ptx: ptx("good ptx"), ..PACKED },
    Entry { name: "compiled", dtype: DType::F16, group: Group::Any, mask: MaskSupport::Any, cubins: &[], ptx: ptx("good ptx"), ..PACKED },
    Entry { name: "broken", dtype: DType::F32, group: Group::Any, mask: MaskSupport::Any, cubins: &[], ptx: ptx("bad ptx"), ..PACKED },
];

fn problem(dtype: DType) -> Problem {
    Problem::prefill(dtype, SHAPE).mask(Mask::Causal).build().expect("legal")
}

/// A device whose only context is the foreign one at 0x5000, which is current, with id 7.
fn foreign(fake: &Fake) -> Device {
    fake.expect_params::<PrefillParams>();
    fake.current(0x5000, 7, 0);
    fake.stream(STREAM, 0x5000);
    with_catalog(Device::from_current_context().expect("a current context"))
}

fn with_catalog(device: Device) -> Device {
    // SAFETY: the fake driver runs no kernel.
    unsafe { device.with_catalog(&CATALOG) }
}

#[test]
fn a_launch_passes_problem_grid_and_block() {
    with_driver("a_launch_passes_problem_grid_and_block", "cuda_12_4", |fake| {
        let device = foreign(fake);
        let builder = Problem::prefill(DType::BF16, SHAPE).mask(Mask::Causal).scale(2.0).with_lse();
        let builder = builder.q_strides(Strides::packed_rows(1536, 128, 100)).k_strides(Strides::head_major(2, 4096, 128));
        let problem = builder.build().expect("legal");
        let pointers = Pointers { lse: Some(0x6000_0000), ..POINTERS };
        let launched = launch(&device, &problem, pointers, STREAM).expect("launched");
        assert_eq!((launched.choice.entry.name, launched.grid), ("packed", [2, 4, 3]), "400 packed rows in tiles of 128");
        assert_eq!(device.supports(&problem).expect("served").entry.name, "packed");

        let (seen, params) = last_launch(fake);
        assert_eq!((seen.sizes, seen.stream), ([2, 4, 3, 256, 1, 1, 65_536, 1, 0, 0], STREAM));
        assert!(seen.context_is_current && seen.is_ready);
        let PrefillParams { q, k, v, o, lse, .. } = params;
        assert_eq!([q, k, v, o, lse], [0x1000_0000, 0x2000_0000, 0x3000_0000, 0x4000_0000, 0x6000_0000]);
        assert_eq!([params.q_batch_stride, params.q_seq_stride, params.q_head_stride], [153_600, 1536, 128]);
        assert_eq!([params.k_batch_stride, params.k_seq_stride, params.k_head_stride], [1_048_576, 128, 524_288]);
        assert_eq!([params.v_batch_stride, params.v_seq_stride, params.v_head_stride], [51_200, 256, 128]);
        assert_eq!([params.o_batch_stride, params.o_seq_stride, params.o_head_stride], [102_400, 1024, 128]);
        assert_eq!([params.q_len, params.kv_len, params.q_heads, params.causal], [100, 200, 8, 1]);
        assert_eq!((params.group_reciprocal, params.scale_log2), (1 << 30, 2.0 * std::f32::consts::LOG2_E));

        let full = Problem::prefill(DType::BF16, SHAPE).build().expect("legal");
        assert_eq!(launch(&device, &full, POINTERS, STREAM).expect("launched").grid, [8, 2, 3], "100 rows in tiles of 64, per query head");
        let (seen, params) = last_launch(fake);
        assert_eq!((seen.sizes, params.lse, params.causal), ([8, 2, 3, 128, 1, 1, 40_000, 1, 0, 0], 0, 0));
        assert!(seen.is_ready);
    });
}

/// The last launch and its parameters.
fn last_launch(fake: &Fake) -> (Launch, PrefillParams) {
    fake.last_launch().expect("a launch")
}

/// The kernels divide by the ratio of heads by multiplying: `head * reciprocal >> 32`.
#[test]
fn the_reciprocal_divides_every_head() {
    with_driver("the_reciprocal_divides_every_head", "cuda_12_4", |fake| {
        let device = foreign(fake);
        for group in [1, 2, 3, 5, 7, 9, 127, 255, 257, 4369, 65_535] {
            let q_heads = 65_535 / group * group;
            let shape = Shape { batch: 1, q_len: 1, kv_len: 1, q_heads, kv_heads: q_heads / group, head_dim: 128 };
            let problem = Problem::prefill(DType::BF16, shape).build().expect("legal");
            launch(&device, &problem, Pointers { o: 1 << 40, ..POINTERS }, STREAM).expect("launched");
            let reciprocal = last_launch(fake).1.group_reciprocal;
            assert!((0..q_heads).all(|head| (u64::from(head) * reciprocal) >> 32 == u64::from(head / group)), "{group}");
        }
    });
}

#[test]
fn strides_of_single_steps_reach_no_kernel() {
    with_driver("strides_of_single_steps_reach_no_kernel", "cuda_12_4", |fake| {
        let shape = Shape { batch: 1, q_len: 1, ..SHAPE };
        let wild = Strides { batch: u64::MAX, seq: u64::MAX, head: 128 };
        let problem = Problem::prefill(DType::BF16, shape).o_strides(wild).build().expect("legal");
        launch(&foreign(fake), &problem, POINTERS, STREAM).expect("launched");
        let params = last_launch(fake).1;
        assert_eq!([params.o_batch_stride, params.o_seq_stride, params.o_head_stride], [0, 0, 128]);
    });
}

#[test]
fn the_threads_context_stays_current() {
    with_driver("the_threads_context_stays_current", "cuda_12_4", |fake| {
        for (address, id) in [(0x5000, 7), (0, 0)] {
            fake.current(address, id, 0);
            let device = with_catalog(Device::new(1).expect("the second one"));
            assert_eq!(fake.current_address(), address, "made");
            let clone = device.clone();
            device.warm_up(&[problem(DType::BF16)]).expect("loaded");
            assert_eq!(fake.current_address(), address, "used");
            drop((device, clone));
            assert_eq!(fake.current_address(), address, "dropped");
            assert!(fake.calls("cuDevicePrimaryCtxRelease_v2") > 0);
        }
    });
}

#[test]
fn a_launch_allocates_nothing() {
    with_driver("a_launch_allocates_nothing", "cuda_12_4", |fake| {
        let device = foreign(fake);
        let problem = problem(DType::BF16);
        launch(&device, &problem, POINTERS, STREAM).expect("launched");
        let before = ALLOCATIONS.get();
        launch(&device, &problem, POINTERS, STREAM).expect("launched");
        assert_eq!(ALLOCATIONS.get(), before);
        drop(std::hint::black_box(Box::new(1)));
        assert_eq!(ALLOCATIONS.get(), before + 1, "they are counted");
    });
}

/// Counts allocations of a thread; the fake driver has an allocator of its own.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: by this function's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: by this function's contract.
        unsafe { System.dealloc(address, layout) }
    }
}

#[test]
fn a_device_can_be_shared() {
    fn is_shareable<T: Send + Sync + Clone + 'static>() {}
    is_shareable::<Device>();
    is_shareable::<Problem>();
}

#[test]
fn a_kernel_is_loaded_once_per_context() {
    with_driver("a_kernel_is_loaded_once_per_context", "cuda_12_4", |fake| {
        let device = foreign(fake);
        let loads = || fake.calls("cuModuleLoadDataEx");
        for _ in 0..3 {
            launch(&device, &problem(DType::BF16), POINTERS, STREAM).expect("launched");
        }
        assert_eq!(loads(), 1);
        // Another device value of the same context shares it.
        launch(&with_catalog(Device::from_current_context().expect("current")), &problem(DType::BF16), POINTERS, STREAM).expect("launched");
        assert_eq!(loads(), 1);
        // The context is destroyed, and another one gets its address.
        fake.current(0x5000, 8, 0);
        launch(&device, &problem(DType::BF16), POINTERS, STREAM).expect("launched");
        assert_eq!(loads(), 2);
        assert!(last_launch(fake).0.is_ready);
        assert_eq!(fake.calls("cuModuleUnload"), 0, "the dead context is left alone");
        assert!(fake.loads_were_relaxed());
    });
}

#[test]
fn a_launch_runs_in_the_context_of_its_stream() {
    with_driver("a_launch_runs_in_the_context_of_its_stream", "cuda_12_4", |fake| {
        let device = foreign(fake);
        fake.current(0x6000, 9, 0);
        launch(&device, &problem(DType::BF16), POINTERS, STREAM).expect("launched");
        assert!(last_launch(fake).0.context_is_current);
        let pushed = fake.calls("cuCtxPushCurrent_v2");
        assert_eq!((pushed, fake.calls("cuCtxPopCurrent_v2")), (1, 1), "and the other one is current again");
        // The default stream is that of the current context.
        launch(&device, &problem(DType::BF16), POINTERS, 0).expect("launched");
        assert_eq!((fake.calls("cuCtxPushCurrent_v2"), fake.calls("cuModuleLoadDataEx")), (pushed, 2));
        fake.current(0, 0, 0);
        assert_eq!(launch(&device, &problem(DType::BF16), POINTERS, 0).map(drop), Err(Error::NoContext));
        launch(&device, &problem(DType::BF16), POINTERS, STREAM).expect("launched");
        // A context of the other GPU, new and then known.
        fake.current(0x7000, 10, 1);
        fake.stream(0x70, 0x7000);
        let other = with_catalog(Device::from_current_context().expect("current"));
        let wrong = Err(Error::WrongDevice { context: 1, device: 0 });
        assert_eq!(launch(&device, &problem(DType::BF16), POINTERS, 0x70).map(drop), wrong);
        launch(&other, &problem(DType::BF16), POINTERS, 0x70).expect("launched");
        assert_eq!(launch(&device, &problem(DType::BF16), POINTERS, 0x70).map(drop), wrong);
    });
}

#[test]
fn a_capture_needs_warm_up() {
    with_driver("a_capture_needs_warm_up", "cuda_12_4", |fake| {
        let device = foreign(fake);
        fake.capture(true);
        let launch = || launch(&device, &problem(DType::BF16), POINTERS, STREAM).map(drop);
        assert_eq!(launch(), Err(Error::NotLoaded { kernel: "packed" }));
        assert_eq!(fake.calls("cuModuleLoadDataEx"), 0);
        // The default stream while another stream's capture forbids its use.
        fake.capture(false);
        fake.fail("cuStreamIsCapturing", 906);
        assert_eq!(launch(), Err(Error::NotLoaded { kernel: "packed" }));
        fake.fail("cuStreamIsCapturing", 0);
        // Warming up is possible even while a stream is being captured.
        fake.capture(true);
        device.warm_up(&[problem(DType::BF16)]).expect("loaded");
        assert!(fake.loads_were_relaxed());
        let asked = fake.calls("cuStreamIsCapturing");
        assert_eq!(launch(), Ok(()));
        assert_eq!(fake.calls("cuStreamIsCapturing"), asked, "a loaded kernel costs no question");
    });
}

#[test]
fn warm_up_loads_completely() {
    with_driver("warm_up_loads_completely", "cuda_12_4", loads_completely);
}

#[test]
fn warm_up_loads_completely_with_older_drivers() {
    with_driver("warm_up_loads_completely_with_older_drivers", "cuda_12_0", loads_completely);
}

fn loads_completely(fake: &Fake) {
    let device = foreign(fake);
    assert!(matches!(device.warm_up_all(), Err(Error::Jit { kernel: "broken", .. })));
    device.clone().with_policy(Policy::CubinOnly).warm_up_all().expect("loaded");
    assert_eq!(fake.calls("cuModuleLoadDataEx"), 4);
    for dtype in [DType::BF16, DType::F16] {
        launch(&device, &problem(dtype), POINTERS, STREAM).expect("launched");
        assert!(last_launch(fake).0.is_ready);
    }
    assert_eq!(fake.calls("cuModuleLoadDataEx"), 4);
}

#[test]
fn warm_up_loads_into_the_devices_own_context() {
    with_driver("warm_up_loads_into_the_devices_own_context", "cuda_12_4", |fake| {
        let device = with_catalog(Device::new(1).expect("the second one"));
        fake.current(0x5000, 7, 0);
        device.warm_up(&[problem(DType::BF16)]).expect("loaded");
        let stream = device.context().expect("its own").default_stream();
        fake.current(0x9001, 901, 1);
        launch(&device, &problem(DType::BF16), POINTERS, stream.cu_stream() as usize).expect("launched");
        assert_eq!(fake.calls("cuModuleLoadDataEx"), 1);
    });
}

#[test]
fn compilation_is_counted_told_and_refusable() {
    let output = with_driver("compilation_is_counted_told_and_refusable", "cuda_12_4", |fake| {
        let mut device = foreign(fake);
        device.set_policy(Policy::CubinOnly);
        let refused = Error::JitRefused { device: device.capability(), kernel: "compiled" };
        assert_eq!(device.warm_up(&[problem(DType::F16)]), Err(refused));
        assert_eq!(jit_stats().kernels, 0);
        device.set_policy(Policy::CubinFirst);
        for context in 1..4 {
            fake.current(0x5000, 10 + context, 0);
            device.warm_up(&[problem(DType::F16), problem(DType::BF16)]).expect("loaded");
            assert_eq!(jit_stats().kernels, context);
        }
        assert!(!jit_stats().total.is_zero());
    });
    if let Some(output) = output {
        let told = "attnpack: this build has no machine code of compiled for sm_90, so the driver compiled it in ";
        assert_eq!(output.matches(told).count(), 1, "{output}");
    }
}

/// The fake GPU is an sm_90: where the build has machine code for it, nothing is left to be compiled.
#[test]
fn packaged_machine_code_leaves_nothing_to_compile() {
    with_driver("packaged_machine_code_leaves_nothing_to_compile", "cuda_12_4", |fake| {
        let device = Device::new(0).expect("the first one");
        device.warm_up_all().expect("loaded");
        let has_machine_code = build_info().ptxas.is_some() && build_info().archs.iter().any(|arch| (arch.major, arch.minor) == (9, 0));
        assert!(!has_machine_code || jit_stats().kernels == 0, "{:?}", jit_stats());
        assert!(fake.calls("cuModuleLoadDataEx") > 0 || device.catalog().is_empty());
    });
}

#[test]
fn a_failed_compilation_quotes_the_compiler() {
    with_driver("a_failed_compilation_quotes_the_compiler", "cuda_12_4", |fake| {
        let device = foreign(fake);
        let error = launch(&device, &problem(DType::F32), POINTERS, STREAM).expect_err("broken");
        let expected = "the driver cannot compile broken (PTX 7.0): CUDA_ERROR_INVALID_PTX (218): a PTX JIT compilation failed\n\
                        ptxas application ptx input, line 1; fatal : it is bad";
        assert_eq!(error.to_string(), expected);
        assert_eq!(jit_stats().kernels, 0);
        assert!(fake.loads_were_relaxed());
    });
}

#[test]
fn a_half_loaded_kernel_is_unloaded() {
    with_driver("a_half_loaded_kernel_is_unloaded", "cuda_12_4", |fake| {
        let device = foreign(fake);
        for (i, call) in ["cuModuleGetFunction", "cuFuncSetAttribute", "cuFuncLoad"].into_iter().enumerate() {
            fake.fail(call, 209);
            let error = launch(&device, &problem(DType::BF16), POINTERS, STREAM).expect_err("does not load");
            assert!(matches!(error, Error::Load { kernel: "packed", source } if source.code == 209), "{error}");
            assert_eq!(fake.calls("cuModuleUnload"), i as u32 + 1);
            fake.fail(call, 0);
        }
        launch(&device, &problem(DType::BF16), POINTERS, STREAM).expect("the next attempt loads it");
        fake.fail("cuLaunchKernelEx", 719);
        let error = launch(&device, &problem(DType::BF16), POINTERS, STREAM).expect_err("fails");
        assert!(matches!(error, Error::Driver { call: "cuLaunchKernelEx", source } if source.code == 719), "{error}");
    });
}

#[test]
fn addresses_are_checked_before_anything_runs() {
    with_driver("addresses_are_checked_before_anything_runs", "cuda_12_4", |fake| {
        let device = foreign(fake);
        let plain = problem(DType::BF16);
        let with_lse = Problem::prefill(DType::BF16, SHAPE).with_lse().build().expect("legal");
        let refused = |problem: &Problem, pointers| launch(&device, problem, pointers, STREAM).expect_err("refused");

        let null = |pointers, operand| assert_eq!(refused(&plain, pointers), Error::NullPointer { operand });
        null(Pointers { q: 0, ..POINTERS }, Operand::Q);
        null(Pointers { k: 0, ..POINTERS }, Operand::K);
        null(Pointers { v: 0, ..POINTERS }, Operand::V);
        null(Pointers { o: 0, ..POINTERS }, Operand::O);
        assert_eq!(refused(&with_lse, Pointers { lse: Some(0), ..POINTERS }), Error::NullPointer { operand: Operand::Lse });

        let address = u64::MAX - plain.span_bytes(Operand::V) + 1;
        let far = Pointers { v: address, ..POINTERS };
        assert_eq!(refused(&plain, far), Error::AddressOverflow { operand: Operand::V, address });
        assert_eq!(refused(&plain, Pointers { lse: Some(0x6000_0000), ..POINTERS }), Error::LseMismatch { wanted: false });
        assert_eq!(refused(&with_lse, POINTERS), Error::LseMismatch { wanted: true });

        let part = RowStart::Address;
        let misaligned = |operand, bytes, required| Error::Misaligned { operand, part, bytes, required };
        assert_eq!(refused(&plain, Pointers { k: 0x2000_0008, ..POINTERS }), misaligned(Operand::K, 0x2000_0008, 16));
        assert_eq!(refused(&with_lse, Pointers { lse: Some(0x6000_0002), ..POINTERS }), misaligned(Operand::Lse, 0x6000_0002, 4));

        let overlap = |output, other| Error::Overlap { output, other };
        let last_of_k = POINTERS.k + plain.span_bytes(Operand::K) - 16;
        assert_eq!(refused(&plain, Pointers { o: POINTERS.q, ..POINTERS }), overlap(Operand::O, Operand::Q));
        assert_eq!(refused(&plain, Pointers { o: last_of_k, ..POINTERS }), overlap(Operand::O, Operand::K));
        let last_of_o = POINTERS.o + plain.span_bytes(Operand::O) - 4;
        assert_eq!(refused(&with_lse, Pointers { lse: Some(last_of_o), ..POINTERS }), overlap(Operand::Lse, Operand::O));
        assert_eq!(refused(&with_lse, Pointers { lse: Some(POINTERS.v), ..POINTERS }), overlap(Operand::Lse, Operand::V));
        assert_eq!(fake.calls("cuLaunchKernelEx") + fake.calls("cuModuleLoadDataEx"), 0);

        launch(&device, &plain, Pointers { o: last_of_k + 16, ..POINTERS }, STREAM).expect("o starts where k ends");
        launch(&device, &plain, Pointers { k: POINTERS.v, ..POINTERS }, STREAM).expect("inputs may be the same");
    });
}

#[test]
fn o_may_be_columns_of_the_packed_rows() {
    with_driver("o_may_be_columns_of_the_packed_rows", "cuda_12_4", |fake| {
        let device = foreign(fake);
        // Rows of q | k | v | o: (8 + 2 + 2 + 8) heads of 128.
        let shape = Shape { kv_len: 100, ..SHAPE };
        let rows = Strides::packed_rows(20 * 128, 128, 100);
        let builder = Problem::prefill(DType::BF16, shape).q_strides(rows).k_strides(rows).v_strides(rows).o_strides(rows);
        let problem = builder.build().expect("legal");
        let head = 2 * 128;
        let at = |o| Pointers { q: 0x1000_0000, k: 0x1000_0000 + 8 * head, v: 0x1000_0000 + 10 * head, o: 0x1000_0000 + o, lse: None };
        launch(&device, &problem, at(12 * head), STREAM).expect("columns of its own");
        for (o, other) in [(0, Operand::Q), (11 * head, Operand::V), (13 * head, Operand::Q)] {
            let refused = launch(&device, &problem, at(o), STREAM).map(drop);
            assert_eq!(refused, Err(Error::Overlap { output: Operand::O, other }));
        }
    });
}

#[test]
fn slices_are_checked() {
    with_driver("slices_are_checked", "cuda_12_4", |fake| {
        fake.expect_params::<PrefillParams>();
        let device = with_catalog(Device::new(0).expect("the first one"));
        let context = device.context().expect("its own");
        // SAFETY: one stream only.
        unsafe { context.disable_event_tracking() };
        let stream = context.default_stream();
        let problem = Problem::prefill(DType::BF16, SHAPE).with_lse().build().expect("legal");
        let len = |operand| problem.span_elems(operand) as usize;
        // SAFETY: nothing accesses the memory; it is freed in the fake driver.
        let slice = |address, len| unsafe { stream.upgrade_device_ptr::<half::bf16>(address, len) };
        let [q, k, v] = [(POINTERS.q, Operand::Q), (POINTERS.k, Operand::K), (POINTERS.v, Operand::V)].map(|(at, of)| slice(at, len(of)));
        let mut o = slice(POINTERS.o, len(Operand::O));
        // SAFETY: as above.
        let mut lse = unsafe { stream.upgrade_device_ptr::<f32>(0x6000_0000, len(Operand::Lse)) };
        let mut lse = lse.as_view_mut();

        device.prefill(&stream, &problem, &q, &k, &v, &mut o, Some(&mut lse)).expect("launched");
        let PrefillParams { q: at_q, k: at_k, v: at_v, o: at_o, lse: at_lse, .. } = last_launch(fake).1;
        assert_eq!([at_q, at_k, at_v, at_o, at_lse], [POINTERS.q, POINTERS.k, POINTERS.v, POINTERS.o, 0x6000_0000]);
        device.prefill(&stream, &problem, &q.as_view(), &k.slice(..), &v, &mut o.as_view_mut(), Some(&mut lse)).expect("views do as well");

        let refused = |result: Result<attnpack::Launched, Error>| result.expect_err("refused");
        let short = |operand| Error::TooShort { operand, required: len(operand) as u64, actual: len(operand) as u64 - 1 };
        let most = |operand| ..len(operand) - 1;
        assert_eq!(
            refused(device.prefill(&stream, &problem, &q.slice(most(Operand::Q)), &k, &v, &mut o, Some(&mut lse))),
            short(Operand::Q)
        );
        assert_eq!(
            refused(device.prefill(&stream, &problem, &q, &k.slice(most(Operand::K)), &v, &mut o, Some(&mut lse))),
            short(Operand::K)
        );
        assert_eq!(
            refused(device.prefill(&stream, &problem, &q, &k, &v.slice(most(Operand::V)), &mut o, Some(&mut lse))),
            short(Operand::V)
        );
        let mut cut = o.slice_mut(most(Operand::O));
        assert_eq!(refused(device.prefill(&stream, &problem, &q, &k, &v, &mut cut, Some(&mut lse))), short(Operand::O));
        let mut cut = lse.slice_mut(most(Operand::Lse));
        assert_eq!(refused(device.prefill(&stream, &problem, &q, &k, &v, &mut o, Some(&mut cut))), short(Operand::Lse));
        assert_eq!(refused(device.prefill(&stream, &problem, &q, &k, &v, &mut o, None)), Error::LseMismatch { wanted: true });

        let f16 = Problem::prefill(DType::F16, SHAPE).build().expect("legal");
        let mismatch = Error::ElementType { problem: DType::F16, slices: DType::BF16 };
        assert_eq!(refused(device.prefill(&stream, &f16, &q, &k, &v, &mut o, None)), mismatch);

        let other = Device::new(1).expect("the second one");
        let elsewhere = other.context().expect("its own").default_stream();
        let foreign = Error::ForeignSlice { operand: Operand::Q };
        assert_eq!(refused(device.prefill(&elsewhere, &problem, &q, &k, &v, &mut o, Some(&mut lse))), foreign);
    });
}
