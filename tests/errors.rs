//! Every error: its words, and that the library gives it rather than a panic. What needs a real GPU is in `gpu_runtime.rs`.

use attnpack::{Arch, Capability, DType, DriverError, Error, Mask, Operand, RowStart, Shape, Strides};

#[cfg(target_os = "linux")]
mod fake_driver;

const SM_89: Capability = Capability { major: 8, minor: 9, shared_optin_bytes: 101_376, multiprocessors: 128 };

fn says(error: Error, text: &str) {
    assert_eq!(error.to_string(), text);
}

#[test]
fn problem_errors_say_what_to_do() {
    says(Error::ZeroSize { what: "kv_len" }, "kv_len is 0: there is nothing to compute; skip the launch");
    says(Error::HeadRatio { q_heads: 12, kv_heads: 5 }, "12 query heads cannot share 5 KV heads evenly; kv_heads must divide q_heads");
    says(
        Error::TooLarge { what: "batch", value: 65_536, limit: 65_535 },
        "batch is 65536; one launch takes at most 65535; split it into several launches",
    );
    says(
        Error::Scale { scale: -1.0 },
        "scale -1 is not usable; it must be positive, and finite when multiplied by log2(e), by default 1/sqrt(head_dim)",
    );
    says(Error::ExtentOverflow { operand: Operand::K }, "an offset in k does not fit 64 bits; check the strides, which count elements");
    let shape = Shape { batch: 1, q_len: 5, kv_len: 5, q_heads: 2, kv_heads: 2, head_dim: 64 };
    says(
        Error::OutputOverlapsItself { strides: Strides { batch: 640, seq: 64, head: 64 }, shape, v_head_dim: 64 },
        "o [1, 5, 2, 64] with strides 640, 64, 64 (batch, sequence, head; elements) may write an element twice; \
         each stride must span everything inside it",
    );
}

#[test]
fn dispatch_errors_say_what_exists() {
    let (head_dim, dtype, device) = (72, DType::BF16, SM_89);
    says(
        Error::UnsupportedHeadDim { head_dim, dtype, device, available: vec![64, 96, 128, 256] },
        "no kernel for head_dim 72 in bf16 on sm_89; this build has 64, 96, 128, 256; pad to 96 with zeros and keep the scale of 72",
    );
    says(
        Error::UnsupportedHeadDim { head_dim: 512, dtype, device, available: vec![64, 128] },
        "no kernel for head_dim 512 in bf16 on sm_89; this build has 64, 128; larger heads need another library",
    );
    says(
        Error::UnsupportedDType { dtype: DType::F32, device, available: vec![DType::F16, DType::BF16] },
        "no kernel for f32 on sm_89; this build has f16, bf16; convert q, k and v",
    );
    says(
        Error::UnsupportedMask { mask: Mask::Full, head_dim: 128, dtype, device },
        "no kernel for the full mask with head_dim 128 in bf16 on sm_89; build without ATTNPACK_VARIANTS to have them all",
    );
    says(
        Error::UnsupportedGroup { group: 9, head_dim: 128, dtype, device, available: vec![1, 4] },
        "no kernel for 9 query heads per KV head with head_dim 128 in bf16 on sm_89; this build has 1, 4; \
         build without ATTNPACK_VARIANTS to have every ratio",
    );
    says(
        Error::Misaligned { operand: Operand::K, part: RowStart::SeqStride, bytes: 130, required: 4 },
        "the sequence stride of k, 130 bytes, is not a multiple of 4 bytes, as the kernels for this problem need; \
         align it, or copy k to a layout that is aligned",
    );
    says(
        Error::SharedMemory { device, required: 167_936 },
        "the kernels for this problem need 167936 bytes of shared memory per block, and sm_89 has 101376; \
         build with the cargo feature sm_89 and ptxas",
    );
    says(
        Error::JitRefused { device, kernel: "prefill" },
        "prefill exists for sm_89 as PTX only, and Policy::CubinOnly refuses just-in-time compilation; \
         build with the cargo feature sm_89 and ptxas, or choose Policy::CubinFirst",
    );
}

#[test]
fn an_unsupported_device_is_told_what_the_build_has() {
    let arch = |major, minor, specific| Arch { major, minor, specific };
    let available = vec![arch(8, 0, false), arch(9, 0, true)];
    let on = |major, minor| Error::UnsupportedDevice { device: Capability { major, minor, ..SM_89 }, available: available.clone() };
    says(on(10, 0), "no code for sm_100; this build has sm_80, sm_90a; build with the cargo feature sm_100 and ptxas");
    says(on(7, 5), "no code for sm_75; this build has sm_80, sm_90a; use a GPU of compute capability 8.0 or newer");
    says(on(11, 0), "no code for sm_110; this build has sm_80, sm_90a; no cargo feature has machine code for it");
}

#[test]
fn launch_errors_say_what_to_change() {
    says(Error::NullPointer { operand: Operand::Q }, "the address of q is 0; allocate it, or skip the launch");
    says(
        Error::AddressOverflow { operand: Operand::Lse, address: u64::MAX - 3 },
        "lse at 0xfffffffffffffffc would end beyond 64 bits; check its address, shape and strides",
    );
    says(
        Error::Overlap { output: Operand::O, other: Operand::V },
        "o shares elements with v, or interleaves with it in more than one dimension; give o a place of its own \
         (columns of the same packed rows are fine)",
    );
    says(
        Error::LseMismatch { wanted: true },
        "the problem wants the LSE and there is no buffer for it; pass one, or build the problem without with_lse()",
    );
    says(
        Error::LseMismatch { wanted: false },
        "there is a buffer for the LSE and the problem does not want it; build the problem with with_lse()",
    );
    says(
        Error::ElementType { problem: DType::F16, slices: DType::F32 },
        "the problem is in f16 and the slices hold f32; build the problem with the DType of the slices",
    );
    says(
        Error::TooShort { operand: Operand::V, required: 100, actual: 99 },
        "v has 99 elements and the problem's shape and strides span 100; pass a longer slice, or correct the strides",
    );
    says(Error::ForeignSlice { operand: Operand::K }, "k lives in another context than the stream; use a stream of k's context");
    says(
        Error::WrongDevice { context: 1, device: 0 },
        "the context belongs to GPU 1 and this Device is GPU 0; make one Device per GPU and use its own streams",
    );
    says(
        Error::NoContext,
        "no CUDA context is current on this thread; make one current, or launch on a stream of one that is not the default stream",
    );
    says(
        Error::NotLoaded { kernel: "prefill" },
        "prefill is not loaded in this context, and a stream under capture cannot load it; call Device::warm_up before the capture",
    );
}

#[test]
fn driver_errors_say_how_to_repair() {
    let source = |code, name, description| DriverError { code, name, description };
    says(
        Error::DriverMissing { library: "libcuda.so.1", reason: "not found".to_owned() },
        "the CUDA driver library libcuda.so.1 cannot be opened (not found); install an NVIDIA driver, \
         or give the container access to it (--gpus all)",
    );
    says(
        Error::DriverTooOld { version: Some((11, 8)), function: "cuCtxGetId" },
        "the driver is for CUDA 11.8 and lacks cuCtxGetId; attnpack needs a driver for CUDA 12.0 or newer (525 or newer): update it",
    );
    says(Error::NoDevice, "the driver sees no GPU; check nvidia-smi, CUDA_VISIBLE_DEVICES and, in a container, --gpus all");
    says(Error::NoSuchDevice { ordinal: 3, count: 2 }, "there is no GPU 3; the driver sees 2, numbered from 0; check CUDA_VISIBLE_DEVICES");
    let no_image = source(209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device");
    says(
        Error::Load { kernel: "prefill", source: no_image },
        "the driver cannot load the cubin of prefill: CUDA_ERROR_NO_BINARY_FOR_GPU (209): no kernel image is available for execution on \
         the device; enable the cargo feature of this GPU's architecture",
    );
    let too_new = source(222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain");
    says(
        Error::Jit { kernel: "prefill", version: (8, 6), log: "ptxas fatal".to_owned(), source: too_new },
        "the driver cannot compile prefill (PTX 8.6): CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222): the provided PTX was compiled with an \
         unsupported toolchain; the driver is older than this PTX: update it, or enable the cargo feature of this GPU's architecture to \
         have cubins\nptxas fatal",
    );
    let failed = source(719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure");
    let error = Error::Driver { call: "cuLaunchKernelEx", source: failed };
    assert_eq!(std::error::Error::source(&error).expect("a source").to_string(), failed.to_string());
    says(
        error,
        "cuLaunchKernelEx failed: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure; work launched earlier may have failed: \
         the context is unusable, start the process anew",
    );
}

#[test]
fn errors_are_small_and_can_cross_threads() {
    fn is_error<E: std::error::Error + Send + Sync + 'static>() {}
    is_error::<Error>();
    assert!(size_of::<Error>() <= 128, "{}", size_of::<Error>());
}

#[cfg(target_os = "linux")]
mod driver {
    use std::io::Write;
    use std::path::Path;

    use attnpack::{Device, Error};

    use super::fake_driver::{in_child, with_driver};

    /// On a host without a driver, as build hosts and CI are.
    #[test]
    fn a_missing_driver_is_an_error() {
        // SAFETY: opens the driver, or nothing.
        if unsafe { libloading::Library::new("libcuda.so.1") }.is_ok() {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED a_missing_driver_is_an_error: this host has a driver (a_broken_driver_is_an_error covers it)"
            );
            return;
        }
        for result in [Device::new(0), Device::new(usize::MAX), Device::from_current_context()] {
            let error = result.expect_err("there is no driver");
            assert!(matches!(error, Error::DriverMissing { library: "libcuda.so.1", .. }), "{error}");
        }
    }

    #[test]
    fn a_broken_driver_is_an_error() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken_driver");
        std::fs::create_dir_all(&folder).expect("a folder in the target folder");
        std::fs::write(folder.join("libcuda.so.1"), "not a library").expect("a file in the target folder");
        in_child("driver::a_broken_driver_is_an_error", &folder, || {
            let error = Device::new(0).expect_err("it is no library");
            assert!(matches!(&error, Error::DriverMissing { reason, .. } if !reason.is_empty()), "{error}");
        });
    }

    #[test]
    fn a_driver_for_cuda_11_is_too_old() {
        with_driver("driver::a_driver_for_cuda_11_is_too_old", "cuda_11", |_| {
            let expected = Error::DriverTooOld { version: Some((11, 8)), function: "cuCtxGetId" };
            assert_eq!(Device::new(0).map(drop), Err(expected));
        });
    }

    #[test]
    fn a_host_without_gpus_is_an_error_until_one_appears() {
        with_driver("driver::a_host_without_gpus_is_an_error_until_one_appears", "cuda_12_4", |fake| {
            for call in ["cuInit", "cuDeviceGetCount"] {
                fake.fail(call, 100);
                assert_eq!(Device::new(0).map(drop), Err(Error::NoDevice));
                fake.fail(call, 0);
            }
            assert_eq!(Device::new(2).map(drop), Err(Error::NoSuchDevice { ordinal: 2, count: 2 }));
            assert_eq!(Device::new(1).expect("the second one").ordinal(), 1);
        });
    }

    #[test]
    fn a_driver_that_fails_is_quoted() {
        with_driver("driver::a_driver_that_fails_is_quoted", "cuda_12_4", |fake| {
            fake.fail("cuInit", 34);
            let error = Device::new(0).expect_err("a stub");
            let expected = "cuInit failed: CUDA_ERROR_STUB_LIBRARY (34): unknown to this driver; \
                            a stub of libcuda was opened: remove the toolkit's stubs folder from the library path";
            assert_eq!(error.to_string(), expected);
            // A code that neither the driver nor cudarc knows.
            fake.fail("cuInit", 12_345);
            let error = Device::new(0).expect_err("an unknown code");
            assert_eq!(error.to_string(), "cuInit failed: CUDA error (12345): unknown to this driver");
            fake.fail("cuInit", 0);
            fake.fail("cuDevicePrimaryCtxRetain", 2);
            let error = Device::new(0).expect_err("no memory");
            assert!(matches!(error, Error::Driver { call: "cuDevicePrimaryCtxRetain", source } if source.code == 2), "{error}");
        });
    }

    #[test]
    fn no_current_context_is_an_error() {
        with_driver("driver::no_current_context_is_an_error", "cuda_12_4", |_| {
            assert_eq!(Device::from_current_context().map(drop), Err(Error::NoContext));
        });
    }
}
