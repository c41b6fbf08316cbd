//! What is done in a context: loading modules and launching kernels.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr;

use super::{Current, Driver, Function, Module, Stream, number};
use crate::error::{DriverError, Result};

/// A kernel's code, as the driver takes it.
#[derive(Clone, Copy)]
pub(crate) enum Image<'a> {
    /// An ELF image.
    Cubin(&'a [u8]),
    /// Text.
    Ptx(&'a CStr),
}

/// Why a kernel could not be loaded.
pub(crate) struct LoadFailure {
    /// The driver's error.
    pub(crate) source: DriverError,
    /// What its compiler said; empty for machine code.
    pub(crate) log: String,
}

impl Current {
    /// The context's number, never given to another context of this process.
    pub(crate) fn id(&self) -> Result<u64> {
        let mut id = 0;
        // SAFETY: null stands for the current context, which exists; writes one number.
        let result = unsafe { (self.driver.functions.cuCtxGetId)(ptr::null_mut(), &mut id) };
        self.driver.check("cuCtxGetId", result)?;
        Ok(id)
    }

    /// The context's address, which the driver reuses when the context is gone.
    pub(crate) fn address(&self) -> Result<usize> {
        Ok(self.driver.current_context()?.addr())
    }

    /// Ordinal of the context's GPU.
    pub(crate) fn device(&self) -> Result<i32> {
        let mut device = 0;
        // SAFETY: writes one int.
        self.driver.check("cuCtxGetDevice", unsafe { (self.driver.functions.cuCtxGetDevice)(&mut device) })?;
        Ok(device)
    }

    /// Whether a stream is being captured, or is the default stream while another stream's capture forbids its use.
    ///
    /// # Safety
    /// `stream` is alive and belongs to this context.
    pub(crate) unsafe fn is_capturing(&self, stream: Stream) -> Result<bool> {
        let mut status = number::CAPTURE_STATUS_NONE;
        // SAFETY: alive by this function's contract; writes one number.
        match unsafe { (self.driver.functions.cuStreamIsCapturing)(stream, &mut status) } {
            number::STREAM_CAPTURE_IMPLICIT => Ok(true),
            result => {
                self.driver.check("cuStreamIsCapturing", result)?;
                Ok(status != number::CAPTURE_STATUS_NONE)
            }
        }
    }

    /// Loads a kernel into the context, completely: the driver's lazy loading leaves nothing for the first launch.
    ///
    /// Works while other streams are being captured, and leaves their captures intact: the thread's capture mode
    /// is relaxed meanwhile, because a capture in global mode forbids other threads what the driver deems unsafe.
    ///
    /// # Safety
    /// A cubin is a complete image.
    pub(crate) unsafe fn load(&self, image: Image, entry_point: &CStr, shared_bytes: u32) -> Result<Function, LoadFailure> {
        let _relaxed = RelaxedCapture::start(self.driver);
        // SAFETY: complete by this function's contract, or ended by NUL.
        let module = unsafe { self.load_module(image) }?;
        let functions = &self.driver.functions;
        let find = || {
            let mut function = ptr::null_mut();
            // SAFETY: the module was loaded into the current context above; the name ends in NUL.
            let found = unsafe { (functions.cuModuleGetFunction)(&mut function, module, entry_point.as_ptr()) };
            self.loaded(found)?;
            let bytes = c_int::try_from(shared_bytes).unwrap_or(c_int::MAX);
            // SAFETY: `function` was found above; more shared memory than a block can have is an error.
            let set = unsafe { (functions.cuFuncSetAttribute)(function, number::FUNC_MAX_DYNAMIC_SHARED_BYTES, bytes) };
            self.loaded(set)?;
            // SAFETY: `function` was found above.
            self.loaded(unsafe { self.force_loading(function) })?;
            Ok(function)
        };
        find().inspect_err(|_| {
            // SAFETY: loaded above, and nothing that was found in it is kept.
            let _ = unsafe { (functions.cuModuleUnload)(module) };
        })
    }

    /// # Safety
    /// A cubin is a complete image.
    unsafe fn load_module(&self, image: Image) -> Result<Module, LoadFailure> {
        let mut module = ptr::null_mut();
        let mut log = vec![0_u8; 8 << 10];
        let mut options = [number::JIT_ERROR_LOG_BUFFER, number::JIT_ERROR_LOG_BUFFER_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(log.len() - 1)];
        let (start, count): (*const c_void, c_uint) = match image {
            Image::Cubin(image) => (image.as_ptr().cast(), 0),
            Image::Ptx(text) => (text.as_ptr().cast(), 2),
        };
        // SAFETY: the image is complete, by this function's contract, or ends in NUL; `options` and `values` have
        // `count` items, and the log buffer is one byte longer than it is said to be, so that it ends in NUL.
        let result =
            unsafe { (self.driver.functions.cuModuleLoadDataEx)(&mut module, start, count, options.as_mut_ptr(), values.as_mut_ptr()) };
        let failed = |source| {
            let text = CStr::from_bytes_until_nul(&log).map_or_else(|_| String::new(), |text| text.to_string_lossy().trim().to_owned());
            LoadFailure { source, log: text }
        };
        if result == 0 { Ok(module) } else { Err(failed(self.driver.error(result))) }
    }

    /// # Safety
    /// `function` belongs to a module that is loaded.
    unsafe fn force_loading(&self, function: Function) -> u32 {
        match self.driver.func_load {
            // SAFETY: by this function's contract.
            Some(func_load) => unsafe { func_load(function) },
            None => {
                let mut registers = 0;
                // SAFETY: by this function's contract; writes one int. Before CUDA 12.4 a question about a
                // function is the documented way of loading it.
                unsafe { (self.driver.functions.cuFuncGetAttribute)(&mut registers, number::FUNC_NUM_REGS, function) }
            }
        }
    }

    fn loaded(&self, result: u32) -> Result<(), LoadFailure> {
        if result == 0 { Ok(()) } else { Err(LoadFailure { source: self.driver.error(result), log: String::new() }) }
    }
}

/// This thread's capture mode, relaxed until this is dropped.
struct RelaxedCapture {
    driver: &'static Driver,
    /// The mode to go back to; `None` where it could not be changed.
    before: Option<c_uint>,
}

impl RelaxedCapture {
    fn start(driver: &'static Driver) -> Self {
        let mut before = number::CAPTURE_MODE_RELAXED;
        // SAFETY: swaps one number with the thread's mode.
        let result = unsafe { (driver.functions.cuThreadExchangeStreamCaptureMode)(&mut before) };
        RelaxedCapture { driver, before: (result == 0).then_some(before) }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: swaps one number with the thread's mode. A failure leaves nothing to be done.
            let _ = unsafe { (self.driver.functions.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        }
    }
}
