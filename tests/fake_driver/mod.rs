//! Runs tests in a process of their own in which the CUDA driver is the fake one of `libcuda.rs`.

#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::{CString, c_char};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const SOURCE: &str = include_str!("libcuda.rs");
/// Set in the child process: the name of its test.
const MARK: &str = "ATTNPACK_TEST_WITH_FAKE_DRIVER";

/// Runs `body` with a fake driver of some age: `cuda_11`, `cuda_12_0` or `cuda_12_4`. Returns what was printed, outside
/// the child process.
///
/// `test` is the name of the calling test, which is started again as the only one of a child process.
pub fn with_driver(test: &str, age: &str, body: impl FnOnce(&Fake)) -> Option<String> {
    let folder = if is_child(test) { PathBuf::new() } else { folder(test, age)? };
    in_child(test, &folder, || body(&Fake::open()))
}

/// Runs `body` in a process that looks for libraries in `folder` first.
pub fn in_child(test: &str, folder: &Path, body: impl FnOnce()) -> Option<String> {
    if is_child(test) {
        body();
        return None;
    }
    let exe = env::current_exe().expect("the path of this test program");
    let mut child = Command::new(exe);
    child.args([test, "--exact", "--nocapture"]).env(MARK, test).env("LD_LIBRARY_PATH", folder);
    let output = child.output().expect("this program starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "in the child process:\n{text}");
    Some(text)
}

/// Whether this is the process that [`in_child`] started for a test.
pub fn is_child(test: &str) -> bool {
    env::var(MARK).is_ok_and(|marked| marked == test)
}

/// The folder with `libcuda.so.1`, compiled unless it is there; `None`, and a line that says so, without rustc.
pub fn folder(test: &str, age: &str) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (SOURCE, age).hash(&mut hasher);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fake_driver_{age}_{:016x}", hasher.finish()));
    if folder.exists() {
        return Some(folder);
    }
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    if Command::new(&rustc).arg("--version").output().is_err() {
        // Past the capture of `println!`, so that it shows.
        let _ = writeln!(std::io::stderr(), "SKIPPED {test}: there is no rustc to compile the fake driver with");
        return None;
    }
    // Tests run side by side: each compiles into a folder of its own, and the first one to finish gives its folder the name.
    let draft = folder.with_extension(format!("{}_{:?}", std::process::id(), std::thread::current().id()));
    fs::create_dir_all(&draft).expect("a folder in the target folder");
    let source = draft.join("libcuda.rs");
    fs::write(&source, SOURCE).expect("a file in the target folder");
    let mut command = Command::new(&rustc);
    command.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "cuda", "--cfg", age]).arg(&source);
    command.args(["--cap-lints", "allow", "-o"]).arg(draft.join("libcuda.so.1"));
    let output = command.output().expect("rustc starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // cudarc looks for this name first; a second copy would be a second driver.
    std::os::unix::fs::symlink("libcuda.so.1", draft.join("libcuda.so")).expect("a link");
    if fs::rename(&draft, &folder).is_err() {
        fs::remove_dir_all(&draft).expect("removable");
    }
    Some(folder)
}

/// What `cuLaunchKernelEx` was given; as in `libcuda.rs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Launch {
    pub sizes: [u32; 10],
    pub stream: usize,
    pub context_is_current: bool,
    pub is_ready: bool,
}

/// The fake driver of this process.
pub struct Fake(libloading::Library);

impl Fake {
    fn open() -> Self {
        // SAFETY: the fake driver has no initializers.
        Fake(unsafe { libloading::Library::new("libcuda.so.1") }.expect("found by LD_LIBRARY_PATH"))
    }

    fn get<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the callers below give the types of `libcuda.rs`.
        unsafe { *self.0.get::<F>(name.as_bytes()).expect("a function of the fake driver") }
    }

    /// Makes a function fail with a code; 0 lets it work again.
    pub fn fail(&self, name: &str, code: u32) {
        let name = CString::new(name).expect("no NUL");
        // SAFETY: the name ends in NUL.
        unsafe { self.get::<unsafe extern "C" fn(*const c_char, u32)>("fake_fail")(name.as_ptr(), code) }
    }

    /// How often a function was called.
    pub fn calls(&self, name: &str) -> u32 {
        let name = CString::new(name).expect("no NUL");
        // SAFETY: the name ends in NUL.
        unsafe { self.get::<unsafe extern "C" fn(*const c_char) -> u32>("fake_calls")(name.as_ptr()) }
    }

    /// Declares a context and makes it the only current one; id 0: none is current.
    pub fn current(&self, address: usize, id: u64, device: i32) {
        self.get::<extern "C" fn(usize, u64, i32)>("fake_current")(address, id, device)
    }

    /// Address of the context that is current; 0: none is.
    pub fn current_address(&self) -> usize {
        let mut address = 0;
        // SAFETY: writes one address.
        unsafe { self.get::<unsafe extern "C" fn(*mut usize) -> u32>("cuCtxGetCurrent")(&mut address) };
        address
    }

    /// Gives the GPUs multiprocessors; they have none before.
    pub fn multiprocessors(&self, count: i32) {
        self.get::<extern "C" fn(i32)>("fake_multiprocessors")(count)
    }

    /// Declares a stream of a context.
    pub fn stream(&self, stream: usize, context: usize) {
        self.get::<extern "C" fn(usize, usize)>("fake_stream")(stream, context)
    }

    /// Whether streams are being captured.
    pub fn capture(&self, capturing: bool) {
        self.get::<extern "C" fn(bool)>("fake_capture")(capturing)
    }

    /// Whether every module was loaded with relaxed capture mode, and that mode was left again.
    pub fn loads_were_relaxed(&self) -> bool {
        self.get::<extern "C" fn() -> bool>("fake_loads_were_relaxed")()
    }

    /// The last launch and its parameter, if there was one since the last question. All launches pass a `P`.
    pub fn last_launch<P: Copy>(&self) -> Option<(Launch, P)> {
        let mut launch = Launch { sizes: [0; 10], stream: 0, context_is_current: false, is_ready: false };
        let mut params = MaybeUninit::<P>::uninit();
        let get = self.get::<unsafe extern "C" fn(*mut Launch, *mut u8) -> bool>("fake_last_launch");
        // SAFETY: writes one `Launch` and, as `fake_params_bytes` was told, one `P`.
        let launched = unsafe { get(&mut launch, params.as_mut_ptr().cast()) };
        // SAFETY: written above.
        launched.then(|| (launch, unsafe { params.assume_init() }))
    }

    /// Tells the driver what launches pass.
    pub fn expect_params<P: Copy>(&self) {
        self.get::<extern "C" fn(usize)>("fake_params_bytes")(size_of::<P>())
    }
}
