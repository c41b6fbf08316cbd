//! A CUDA driver without a GPU, compiled by the tests into `libcuda.so.1`: enough of it for a `Device` to be made, kernels
//! to be loaded and launches to be recorded. Functions named `fake_*` are how a test sets the stage and looks at the result.
//!
//! `--cfg cuda_11` leaves out what came with CUDA 12.0, `--cfg cuda_12_0` what came with 12.4.

#![allow(non_snake_case, clippy::missing_safety_doc)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

const RELAXED: u32 = 2;

/// A context as the test declares it.
#[derive(Clone, Copy)]
struct FakeContext {
    id: u64,
    device: i32,
}

#[derive(Default)]
struct State {
    calls: BTreeMap<String, u32>,
    failures: BTreeMap<String, u32>,
    contexts: BTreeMap<usize, FakeContext>,
    current: Vec<usize>,
    streams: BTreeMap<usize, usize>,
    capturing: bool,
    multiprocessors: i32,
    /// Compute capability; 0 stands for 9.0.
    major: i32,
    minor: i32,
    capture_mode: u32,
    /// Thread capture modes in which modules were loaded.
    load_modes: Vec<u32>,
    next_handle: usize,
    shared_bytes: BTreeMap<usize, i32>,
    functions_loaded: Vec<usize>,
    /// Context that a module or function was made in.
    home: BTreeMap<usize, usize>,
    params_bytes: usize,
    last_launch: Option<(Launch, Vec<u8>)>,
}

/// What `cuLaunchKernelEx` was given.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Launch {
    /// Grid, block, dynamic shared memory, blocks of a cluster, their scheduling policy, 1 for a programmatic launch.
    pub sizes: [u32; 10],
    pub stream: usize,
    /// Whether the function's context was current.
    pub context_is_current: bool,
    /// Whether the function was told of its shared memory and loaded.
    pub is_ready: bool,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The state, with the call counted; an error that the test asked for is returned instead of the call.
fn call(name: &str) -> Result<Guard, u32> {
    let mut guard = state();
    *guard.calls.entry(name.to_owned()).or_default() += 1;
    match guard.failures.get(name) {
        Some(&code) => Err(code),
        None => Ok(guard),
    }
}

struct Guard(MutexGuard<'static, Option<State>>);

impl std::ops::Deref for Guard {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().expect("set by state()")
    }
}

impl std::ops::DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("set by state()")
    }
}

fn state() -> Guard {
    let mut guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_with(|| State { next_handle: 0x7000, ..State::default() });
    Guard(guard)
}

impl State {
    fn handle(&mut self, context: usize) -> usize {
        self.next_handle += 16;
        self.home.insert(self.next_handle, context);
        self.next_handle
    }

    fn current(&self) -> Result<usize, u32> {
        self.current.last().copied().filter(|&context| context != 0).ok_or(201)
    }
}

/// A function of the driver: its body runs with the state, and its error is the result.
macro_rules! driver {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),*) |$state:ident| $body:block)*) => {
        $($(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            #[allow(unused_mut, unused_variables)]
            let result = call(stringify!($name)).and_then(|mut $state| -> Result<(), u32> { $body Ok(()) });
            result.err().unwrap_or(0)
        })*
    };
}

driver! {
    fn cuInit(flags: c_uint) |s| {}
    fn cuDriverGetVersion(version: *mut c_int) |s| { unsafe { *version = if cfg!(cuda_11) { 11080 } else { 12040 } } }
    fn cuDeviceGetCount(count: *mut c_int) |s| { unsafe { *count = 2 } }
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |s| { unsafe { *device = ordinal } }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) |s| {
        // With 227 KB of shared memory.
        let (multiprocessors, major, minor) = (s.multiprocessors, if s.major == 0 { 9 } else { s.major }, s.minor);
        unsafe { *value = match attribute { 16 => multiprocessors, 75 => major, 76 => minor, 97 => 227 << 10, _ => 0 } }
    }
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) |s| {
        let address = 0x9000 + device as usize;
        s.contexts.insert(address, FakeContext { id: 900 + device as u64, device });
        unsafe { *context = address }
    }
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |s| {}
    fn cuCtxGetCurrent(context: *mut usize) |s| { unsafe { *context = s.current.last().copied().unwrap_or(0) } }
    fn cuCtxSetCurrent(context: usize) |s| {
        s.current.pop();
        s.current.push(context);
    }
    fn cuCtxPushCurrent_v2(context: usize) |s| { s.current.push(context) }
    fn cuCtxPopCurrent_v2(context: *mut usize) |s| { unsafe { *context = s.current.pop().ok_or(201_u32)? } }
    fn cuCtxGetDevice(device: *mut c_int) |s| { unsafe { *device = s.contexts[&s.current()?].device } }
    #[cfg(not(cuda_11))]
    fn cuCtxGetId(context: usize, id: *mut u64) |s| {
        let context = if context == 0 { s.current()? } else { context };
        unsafe { *id = s.contexts[&context].id }
    }
    fn cuStreamGetCtx(stream: usize, context: *mut usize) |s| {
        unsafe { *context = if stream <= 2 { s.current()? } else { *s.streams.get(&stream).ok_or(400_u32)? } }
    }
    fn cuStreamIsCapturing(stream: usize, status: *mut c_uint) |s| { unsafe { *status = s.capturing.into() } }
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) |s| {
        unsafe { std::mem::swap(&mut *mode, &mut s.capture_mode) }
    }
    fn cuModuleLoadDataEx(module: *mut usize, image: *const c_char, count: c_uint, options: *mut c_uint, values: *mut *mut c_void) |s| {
        let context = s.current()?;
        let mode = s.capture_mode;
        s.load_modes.push(mode);
        let text = unsafe { CStr::from_ptr(image) };
        if text.to_bytes().starts_with(b"bad ptx") {
            let log = b"ptxas application ptx input, line 1; fatal : it is bad\0";
            let options = unsafe { std::slice::from_raw_parts(options, count as usize) };
            let buffer = options.iter().position(|&option| option == 5).ok_or(1_u32)?;
            unsafe { std::ptr::copy_nonoverlapping(log.as_ptr(), (*values.add(buffer)).cast::<u8>(), log.len()) };
            return Err(218);
        }
        unsafe { *module = s.handle(context) }
    }
    fn cuModuleUnload(module: usize) |s| { s.home.remove(&module).ok_or(400_u32)?; }
    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) |s| {
        let context = *s.home.get(&module).ok_or(400_u32)?;
        unsafe { *function = s.handle(context) }
    }
    fn cuFuncSetAttribute(function: usize, attribute: c_uint, value: c_int) |s| {
        if attribute != 8 { return Err(1); }
        s.shared_bytes.insert(function, value);
    }
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: usize) |s| {
        s.functions_loaded.push(function);
        unsafe { *value = 128 }
    }
    #[cfg(not(any(cuda_11, cuda_12_0)))]
    fn cuFuncLoad(function: usize) |s| { s.functions_loaded.push(function) }
    fn cuEventCreate(event: *mut usize, flags: c_uint) |s| { let context = s.current()?; unsafe { *event = s.handle(context) } }
    fn cuEventDestroy_v2(event: usize) |s| {}
    fn cuMemFree_v2(address: u64) |s| {}
    fn cuStreamSynchronize(stream: usize) |s| {}
}

/// The fake map has what it was made from, so that a test can look at it: the address; element type and swizzle; extents;
/// strides; the box.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: *mut [u64; 16],
    element: c_uint,
    rank: c_uint,
    address: u64,
    extents: *const [u64; 5],
    strides: *const [u64; 4],
    copied: *const [u32; 5],
    element_strides: *const [u32; 5],
    interleave: c_uint,
    swizzle: c_uint,
    _promotion: c_uint,
    fill: c_uint,
) -> u32 {
    if let Err(code) = call("cuTensorMapEncodeTiled") {
        return code;
    }
    let (extents, strides, copied) = unsafe { (*extents, *strides, *copied) };
    let is_plain = rank == 5 && unsafe { *element_strides } == [1; 5] && interleave == 0 && fill == 0;
    let is_legal = address % 16 == 0 && strides.iter().all(|stride| stride % 16 == 0 && *stride < 1 << 40);
    if !is_plain || !is_legal || map.addr() % 64 != 0 || copied.iter().any(|size| !(1..=256).contains(size)) {
        return 1;
    }
    let mut words = [0; 16];
    words[0] = address;
    words[1] = u64::from(element) << 32 | u64::from(swizzle);
    words[2..7].copy_from_slice(&extents);
    words[7..11].copy_from_slice(&strides);
    for (word, size) in words[11..].iter_mut().zip(copied) {
        *word = size.into();
    }
    unsafe { *map = words };
    0
}

#[repr(C)]
pub struct LaunchAttribute {
    id: c_uint,
    value: [u64; 8],
}

#[repr(C)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: usize,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: usize,
    params: *const *const u8,
    _extra: *mut c_void,
) -> u32 {
    const CLUSTER_DIMENSION: c_uint = 4;
    const CLUSTER_SCHEDULING_POLICY_PREFERENCE: c_uint = 5;
    const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;
    const INVALID_VALUE: u32 = 1;
    const INVALID_CLUSTER_SIZE: u32 = 912;
    let mut s = match call("cuLaunchKernelEx") {
        Ok(state) => state,
        Err(code) => return code,
    };
    let LaunchConfig { grid, block, shared_bytes, stream, attributes, attribute_count } = *unsafe { &*config };
    let (mut cluster, mut policy, mut programmatic) = (None, None, None);
    for n in 0..attribute_count as usize {
        let attribute = unsafe { &*attributes.add(n) };
        let [x, y, z] = [0, 1, 2].map(|word| (attribute.value[word / 2] >> (word % 2 * 32)) as u32);
        let is_repeated = match attribute.id {
            CLUSTER_DIMENSION if !(1..=8).contains(&x) || [y, z] != [1, 1] => return INVALID_CLUSTER_SIZE,
            CLUSTER_DIMENSION => cluster.replace(x).is_some(),
            CLUSTER_SCHEDULING_POLICY_PREFERENCE if x > 2 => return INVALID_VALUE,
            CLUSTER_SCHEDULING_POLICY_PREFERENCE => policy.replace(x).is_some(),
            PROGRAMMATIC_STREAM_SERIALIZATION if x > 1 => return INVALID_VALUE,
            PROGRAMMATIC_STREAM_SERIALIZATION => programmatic.replace(x).is_some(),
            _ => return INVALID_VALUE,
        };
        if is_repeated {
            return INVALID_VALUE;
        }
    }
    let (cluster, policy, programmatic) = (cluster.unwrap_or(1), policy.unwrap_or(0), programmatic.unwrap_or(0));
    if grid[0] % cluster != 0 {
        return INVALID_VALUE;
    }
    let launch = Launch {
        sizes: [grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes, cluster, policy, programmatic],
        stream,
        context_is_current: s.home.get(&function) == s.current.last(),
        is_ready: s.shared_bytes.get(&function) == Some(&(shared_bytes as i32)) && s.functions_loaded.contains(&function),
    };
    let params = unsafe { std::slice::from_raw_parts(*params, s.params_bytes) }.to_vec();
    s.last_launch = Some((launch, params));
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_uint, name: *mut *const c_char) -> u32 {
    let known = match code {
        34 => c"CUDA_ERROR_STUB_LIBRARY",
        218 => c"CUDA_ERROR_INVALID_PTX",
        222 => c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        _ => return 1,
    };
    unsafe { *name = known.as_ptr() };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: c_uint, text: *mut *const c_char) -> u32 {
    if code == 218 {
        unsafe { *text = c"a PTX JIT compilation failed".as_ptr() };
        return 0;
    }
    1
}

/// Makes a function fail with a code; 0 lets it work again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_fail(name: *const c_char, code: c_uint) {
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let mut s = state();
    s.failures.remove(&name);
    if code != 0 {
        s.failures.insert(name, code);
    }
}

/// How often a function was called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_calls(name: *const c_char) -> c_uint {
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    state().calls.get(&name).copied().unwrap_or(0)
}

/// Declares a context and makes it the only current one; id 0: none is current.
#[unsafe(no_mangle)]
pub extern "C" fn fake_current(address: usize, id: u64, device: c_int) {
    let mut s = state();
    s.current = if id == 0 { Vec::new() } else { vec![address] };
    s.contexts.insert(address, FakeContext { id, device });
}

/// Gives the GPUs multiprocessors; they have none before.
#[unsafe(no_mangle)]
pub extern "C" fn fake_multiprocessors(count: c_int) {
    state().multiprocessors = count;
}

/// Gives the GPUs another compute capability than 9.0.
#[unsafe(no_mangle)]
pub extern "C" fn fake_capability(major: c_int, minor: c_int) {
    let mut s = state();
    (s.major, s.minor) = (major, minor);
}

/// Declares a stream of a context.
#[unsafe(no_mangle)]
pub extern "C" fn fake_stream(stream: usize, context: usize) {
    state().streams.insert(stream, context);
}

/// Whether streams are being captured.
#[unsafe(no_mangle)]
pub extern "C" fn fake_capture(capturing: bool) {
    state().capturing = capturing;
}

/// Whether every module was loaded with relaxed capture mode, and that mode was left again.
#[unsafe(no_mangle)]
pub extern "C" fn fake_loads_were_relaxed() -> bool {
    let s = state();
    s.capture_mode == 0 && s.load_modes.iter().all(|&mode| mode == RELAXED)
}

/// Tells how large the kernels' parameter is.
#[unsafe(no_mangle)]
pub extern "C" fn fake_params_bytes(bytes: usize) {
    state().params_bytes = bytes;
}

/// Copies the last launch and its parameter; false when there was none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_last_launch(launch: *mut Launch, params: *mut u8) -> bool {
    let last = state().last_launch.take();
    if let Some((last, bytes)) = &last {
        unsafe {
            *launch = *last;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), params, bytes.len());
        }
    }
    last.is_some()
}
