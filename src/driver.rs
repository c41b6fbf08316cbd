//! The CUDA driver: its library, found without a panic, and the few functions that loading and launching need.
//!
//! cudarc has bindings for all of this, and the safe API is built on its types. Its functions are not called
//! here, because they panic where the library or a function is missing, exist only for some of the CUDA versions
//! that an application can choose for cudarc (`cuCtxGetId` not for 11.x, `cuFuncLoad` not below 12.4), and turn
//! the driver's result into an enum that a newer driver's codes do not fit.
//!
//! This module holds `unsafe` beside `device.rs` and `launch.rs`: every call into the library is here, and those two
//! rely on [`Current`], whose existence proves that a living context is current on the thread.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::OnceLock;

use crate::error::{DriverError, Error, Result};

mod current;
mod launch;
mod library;
mod tensor_map;

pub(crate) use current::Image;
pub(crate) use launch::Launch;
use launch::LaunchConfig;
use library::Library;
use tensor_map::TensorMap;
pub(crate) use tensor_map::{MapElement, TensorMapLayout};

/// A `CUstream`.
pub(crate) type Stream = *mut c_void;
/// A `CUcontext`.
pub(crate) type Context = *mut c_void;
/// A `CUmodule`.
type Module = *mut c_void;
/// A `CUfunction`.
pub(crate) type Function = *mut c_void;

/// Declares the table of functions that the driver must have, each returning a `CUresult`.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the driver's own names")]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Functions {
            /// Finds them all, or names the first that is missing.
            fn find(library: &Library) -> Result<Self, &'static str> {
                Ok(Functions {
                    $($name: {
                        let address = library.symbol(stringify!($name)).ok_or(stringify!($name))?;
                        // SAFETY: `symbol` found this name in the CUDA driver, and the type is that of cuda.h.
                        unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> u32>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuGetErrorName(u32, *mut *const c_char);
    cuGetErrorString(u32, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGetAttribute(*mut c_int, c_uint, c_int);
    cuCtxGetCurrent(*mut Context);
    cuCtxSetCurrent(Context);
    cuCtxPushCurrent_v2(Context);
    cuCtxPopCurrent_v2(*mut Context);
    cuCtxGetDevice(*mut c_int);
    cuCtxGetId(Context, *mut u64);
    cuStreamGetCtx(Stream, *mut Context);
    cuStreamIsCapturing(Stream, *mut c_uint);
    cuThreadExchangeStreamCaptureMode(*mut c_uint);
    cuModuleLoadDataEx(*mut Module, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    cuModuleUnload(Module);
    cuModuleGetFunction(*mut Function, Module, *const c_char);
    cuFuncSetAttribute(Function, c_uint, c_int);
    cuFuncGetAttribute(*mut c_int, c_uint, Function);
    cuTensorMapEncodeTiled(*mut TensorMap, c_uint, c_uint, *mut c_void, *const u64, *const u64, *const c_uint, *const c_uint, c_uint, c_uint, c_uint, c_uint);
    cuLaunchKernelEx(*const LaunchConfig, Function, *mut *mut c_void, *mut *mut c_void);
}

/// What cudarc calls on our behalf when a [`crate::Device`] is made: it would panic without them.
const NEEDED_BY_CUDARC: [&str; 3] = ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"];

/// The driver, initialized.
pub(crate) struct Driver {
    functions: Functions,
    /// `cuFuncLoad`: CUDA 12.4 and newer.
    func_load: Option<unsafe extern "C" fn(Function) -> u32>,
}

/// Numbers of cuda.h.
mod number {
    pub(super) const NO_DEVICE: u32 = 100;
    /// Null, `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD` are 0, 1 and 2.
    pub(super) const LAST_DEFAULT_STREAM: usize = 2;
    pub(super) const STREAM_CAPTURE_IMPLICIT: u32 = 906;
    pub(super) const CAPTURE_STATUS_NONE: u32 = 0;
    pub(super) const CAPTURE_MODE_RELAXED: u32 = 2;
    pub(super) const FUNC_NUM_REGS: u32 = 4;
    pub(super) const FUNC_MAX_DYNAMIC_SHARED_BYTES: u32 = 8;
    pub(super) const JIT_ERROR_LOG_BUFFER: u32 = 5;
    pub(super) const JIT_ERROR_LOG_BUFFER_BYTES: u32 = 6;
}

/// Attributes of a device, numbered as in cuda.h.
#[derive(Clone, Copy)]
pub(crate) enum Attribute {
    Multiprocessors = 16,
    CapabilityMajor = 75,
    CapabilityMinor = 76,
    SharedOptinBytes = 97,
}

impl Driver {
    /// The driver of this process. Only success is remembered: a driver that appears later is found.
    ///
    /// # Errors
    /// [`Error::DriverMissing`], [`Error::DriverTooOld`], [`Error::NoDevice`], [`Error::Driver`].
    pub(crate) fn get() -> Result<&'static Driver> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        let driver = Driver::open()?;
        Ok(DRIVER.get_or_init(|| driver))
    }

    fn open() -> Result<Driver> {
        let library = Library::open().map_err(|reason| Error::DriverMissing { library: library::NAME, reason })?;
        let too_old = |function: &'static str| Error::DriverTooOld { version: version(&library), function };
        let functions = Functions::find(&library).map_err(too_old)?;
        if let Some(missing) = NEEDED_BY_CUDARC.into_iter().find(|name| library.symbol(name).is_none()) {
            return Err(too_old(missing));
        }
        let func_load = library.symbol("cuFuncLoad").map(|address| {
            // SAFETY: the driver's function of this name, and its type in cuda.h.
            unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn(Function) -> u32>(address) }
        });
        let driver = Driver { functions, func_load };
        // SAFETY: the first call, as required; 0 is the only flag that exists.
        driver.check("cuInit", unsafe { (driver.functions.cuInit)(0) })?;
        if driver.device_count()? == 0 { Err(Error::NoDevice) } else { Ok(driver) }
    }

    /// Turns a `CUresult` into an error with the driver's words.
    fn check(&self, call: &'static str, result: u32) -> Result<()> {
        match result {
            0 => Ok(()),
            number::NO_DEVICE => Err(Error::NoDevice),
            code => Err(Error::Driver { call, source: self.error(code) }),
        }
    }

    /// A `CUresult` with the driver's words.
    pub(crate) fn error(&self, code: u32) -> DriverError {
        let words = |get: unsafe extern "C" fn(u32, *mut *const c_char) -> u32| {
            let mut text = ptr::null();
            // SAFETY: writes a pointer to a static string, or null for a code that it does not know.
            let known = unsafe { get(code, &mut text) } == 0 && !text.is_null();
            // SAFETY: not null by the line above; the string is part of the library, which is never closed.
            let text = known.then(|| unsafe { CStr::from_ptr::<'static>(text) });
            text.and_then(|text| text.to_str().ok())
        };
        DriverError {
            code,
            name: words(self.functions.cuGetErrorName).unwrap_or("CUDA error"),
            description: words(self.functions.cuGetErrorString).unwrap_or("unknown to this driver"),
        }
    }

    /// The error for a call that cudarc made.
    pub(crate) fn failed(&self, call: &'static str, error: cudarc::driver::DriverError) -> Error {
        Error::Driver { call, source: self.error(error.0 as u32) }
    }

    /// How many GPUs there are.
    pub(crate) fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: writes one int.
        self.check("cuDeviceGetCount", unsafe { (self.functions.cuDeviceGetCount)(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// An attribute of a GPU.
    pub(crate) fn attribute(&self, device: i32, attribute: Attribute) -> Result<u32> {
        let mut value = 0;
        // SAFETY: writes one int; a device that does not exist is an error.
        let result = unsafe { (self.functions.cuDeviceGetAttribute)(&mut value, attribute as c_uint, device) };
        self.check("cuDeviceGetAttribute", result)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// The context that is current on this thread.
    ///
    /// # Errors
    /// [`Error::NoContext`] when there is none.
    pub(crate) fn current(&'static self) -> Result<Current> {
        if self.current_context()?.is_null() {
            return Err(Error::NoContext);
        }
        Ok(Current { driver: self, pushed: false, thread: PhantomData })
    }

    fn current_context(&self) -> Result<Context> {
        let mut context = ptr::null_mut();
        // SAFETY: writes one pointer.
        self.check("cuCtxGetCurrent", unsafe { (self.functions.cuCtxGetCurrent)(&mut context) })?;
        Ok(context)
    }

    /// Runs `body`, and makes the context current again that was so before. cudarc leaves its own one current when it makes
    /// or releases a context, even where the release destroyed it.
    pub(crate) fn keep_current<R>(&self, body: impl FnOnce() -> R) -> R {
        let before = self.current_context();
        let result = body();
        if let (Ok(before), Ok(after)) = (before, self.current_context())
            && before != after
        {
            // SAFETY: it was current when `body` began; null stands for none. A failure leaves nothing to be done.
            let _ = unsafe { (self.functions.cuCtxSetCurrent)(before) };
        }
        result
    }

    /// Makes a context current on this thread until the result is dropped.
    ///
    /// # Safety
    /// `context` is alive, and stays so while the result lives.
    pub(crate) unsafe fn enter(&'static self, context: Context) -> Result<Current> {
        let pushed = self.current_context()? != context;
        if pushed {
            // SAFETY: alive by this function's contract.
            self.check("cuCtxPushCurrent", unsafe { (self.functions.cuCtxPushCurrent_v2)(context) })?;
        }
        Ok(Current { driver: self, pushed, thread: PhantomData })
    }

    /// Makes the context of a stream current; that of a default stream is the one that is current.
    ///
    /// The driver is not asked about default streams: while another stream is being captured, the question invalidates
    /// that capture (seen with driver 580).
    ///
    /// # Safety
    /// `stream` is alive, and stays so while the result lives, or it is one of the default streams.
    pub(crate) unsafe fn enter_stream(&'static self, stream: Stream) -> Result<Current> {
        if stream.addr() <= number::LAST_DEFAULT_STREAM {
            return self.current();
        }
        let mut context = ptr::null_mut();
        // SAFETY: the stream is alive by this function's contract; writes one pointer.
        self.check("cuStreamGetCtx", unsafe { (self.functions.cuStreamGetCtx)(stream, &mut context) })?;
        // SAFETY: a context lives longer than its streams.
        unsafe { self.enter(context) }
    }
}

/// The CUDA version that a driver is for, if it tells.
fn version(library: &Library) -> Option<(u32, u32)> {
    let address = library.symbol("cuDriverGetVersion")?;
    // SAFETY: the driver's function of this name, and its type in cuda.h.
    let get = unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> u32>(address) };
    let mut version = 0;
    // SAFETY: needs no initialization and writes one int.
    let result = unsafe { get(&mut version) };
    let version = u32::try_from(version).ok().filter(|&version| result == 0 && version > 0)?;
    Some((version / 1000, version % 1000 / 10))
}

/// A context that is current on this thread until this is dropped, and alive.
pub(crate) struct Current {
    driver: &'static Driver,
    pushed: bool,
    /// Current is a property of the thread: not `Send`.
    thread: PhantomData<*mut ()>,
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.pushed {
            let mut context = ptr::null_mut();
            // SAFETY: undoes the push of `Driver::enter`. A failure leaves nothing to be done.
            let _ = unsafe { (self.driver.functions.cuCtxPopCurrent_v2)(&mut context) };
        }
    }
}
