//! A context that neither attnpack nor cudarc made, as an engine with its own memory has one.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use attnpack::cudarc::driver::CudaContext;
use attnpack::cudarc::driver::sys::{self, CUcontext, CUfunction, CUstream};
use attnpack::{Device, Operand, Pointers, Problem};

/// A context with a stream; destroyed on drop.
pub struct Foreign {
    context: CUcontext,
    stream: CUstream,
    /// A kernel that does nothing, in the context that was current when it was made.
    nothing: CUfunction,
    /// Keeps the driver initialized.
    _primary: Arc<CudaContext>,
}

// SAFETY: the driver's handles can be used from every thread.
unsafe impl Sync for Foreign {}

const NOTHING: &str = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing(.param .align 8 .b8 p[168]) { ret; }\n";

fn check(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

impl Foreign {
    /// A new context of the GPU of `primary`.
    pub fn new(primary: &Arc<CudaContext>) -> Self {
        primary.bind_to_thread().expect("bound");
        let (mut context, mut stream, mut module, mut nothing) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let text = CString::new(NOTHING).expect("no NUL");
        // SAFETY: cudarc has the type of another version of this function in some configurations; this one takes
        // (context, flags, device) in every driver. The outputs are of the types that the functions write.
        unsafe {
            check(sys::cuModuleLoadData(&mut module, text.as_ptr().cast()));
            check(sys::cuModuleGetFunction(&mut nothing, module, c"nothing".as_ptr()));
            let driver = libloading::Library::new(if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" }).expect("the driver");
            type Create = unsafe extern "C" fn(*mut CUcontext, u32, i32) -> sys::CUresult;
            let create = driver.get::<Create>(b"cuCtxCreate_v2").expect("in every driver");
            check(create(&mut context, 0, primary.cu_device()));
            check(sys::cuStreamCreate(&mut stream, 1));
            check(sys::cuCtxPopCurrent_v2(&mut ptr::null_mut()));
        }
        Foreign { context, stream, nothing, _primary: Arc::clone(primary) }
    }

    /// Address of the context.
    pub fn address(&self) -> usize {
        self.context as usize
    }

    /// Runs `body` with the context current.
    pub fn with_current<R>(&self, body: impl FnOnce() -> R) -> R {
        // SAFETY: the context is alive as long as `self`.
        unsafe { check(sys::cuCtxPushCurrent_v2(self.context)) };
        let result = body();
        // SAFETY: undoes the push.
        unsafe { check(sys::cuCtxPopCurrent_v2(&mut ptr::null_mut())) };
        result
    }

    /// Runs the echo kernel on memory of this context, with whatever context current, and checks o.
    pub fn echo(&self, device: &Device, problem: &Problem, seed: u64) {
        let bytes = |operand| problem.span_bytes(operand) as usize;
        let allocate = |operand| {
            let mut address = 0;
            // SAFETY: writes one address.
            unsafe { check(sys::cuMemAlloc_v2(&mut address, bytes(operand))) };
            address
        };
        let [q, kv, o, lse] = self.with_current(|| [Operand::Q, Operand::K, Operand::O, Operand::Lse].map(allocate));
        let host: Vec<f32> = (0..problem.span_elems(Operand::Q)).map(|i| (i + seed) as f32).collect();
        // SAFETY: as many bytes as were allocated.
        self.with_current(|| unsafe { check(sys::cuMemcpyHtoD_v2(q, host.as_ptr().cast(), bytes(Operand::Q))) });

        let pointers = Pointers { q, k: kv, v: kv, o, lse: Some(lse) };
        // SAFETY: the memory is that of the problem, in the stream's context, and nothing else uses it.
        unsafe { device.launch(problem, pointers, self.stream) }.expect("launched");

        let mut row = [0.0_f32; 64];
        self.with_current(|| {
            // SAFETY: the stream is alive; o starts with a row of 64.
            unsafe {
                check(sys::cuStreamSynchronize(self.stream));
                check(sys::cuMemcpyDtoH_v2(row.as_mut_ptr().cast(), o, 256));
                [q, kv, o, lse].into_iter().for_each(|address| check(sys::cuMemFree_v2(address)));
            }
        });
        let scale = problem.scale() * std::f32::consts::LOG2_E;
        assert!(row.iter().zip(&host).all(|(o, q)| *o == q * scale), "{row:?}");
    }

    /// Starts a kernel that does nothing on a stream of the primary context.
    pub fn bare_launch(&self, stream: CUstream) {
        let params = [0_u64; 21];
        let mut arguments = [params.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the kernel takes 168 bytes and does nothing.
        unsafe { check(sys::cuLaunchKernel(self.nothing, 6, 1, 1, 32, 1, 1, 0, stream, arguments.as_mut_ptr(), ptr::null_mut())) };
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used after this.
        unsafe { check(sys::cuCtxDestroy_v2(self.context)) };
    }
}
