//! Opening the driver's library with the means of the operating system.

use std::ffi::c_void;

/// The driver's library. It is never closed.
pub(super) struct Library(*mut c_void);

#[cfg(unix)]
pub(super) use unix::NAME;
#[cfg(windows)]
pub(super) use windows::NAME;

#[cfg(unix)]
mod unix {
    use std::ffi::{CStr, CString, c_char, c_int, c_void};

    use super::Library;

    /// Installed by the driver; `libcuda.so` without a number is the toolkit's stub.
    pub(in super::super) const NAME: &str = "libcuda.so.1";
    const NAME_C: &CStr = c"libcuda.so.1";
    const RTLD_NOW: c_int = 2;

    // In the C library, which the standard library links.
    unsafe extern "C" {
        fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
        fn dlerror() -> *const c_char;
    }

    impl Library {
        /// Opens the library, or tells why it cannot be opened.
        pub(in super::super) fn open() -> Result<Self, String> {
            // SAFETY: the name ends in NUL. The initializers that run are those of the CUDA driver.
            let handle = unsafe { dlopen(NAME_C.as_ptr(), RTLD_NOW) };
            if !handle.is_null() {
                return Ok(Library(handle));
            }
            // SAFETY: takes nothing; its string lives until the next call of this thread to these functions.
            let reason = unsafe { dlerror() };
            if reason.is_null() {
                return Err("no reason given".to_owned());
            }
            // SAFETY: not null by the line above, ends in NUL, and is copied before another call.
            Err(unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned())
        }

        /// The address of a function.
        pub(in super::super) fn symbol(&self, name: &str) -> Option<*mut c_void> {
            let name = CString::new(name).ok()?;
            // SAFETY: the handle is open, by `open`, and the name ends in NUL, by its type.
            let address = unsafe { dlsym(self.0, name.as_ptr()) };
            (!address.is_null()).then_some(address)
        }
    }
}

#[cfg(windows)]
mod windows {
    use std::ffi::{CStr, CString, c_char, c_void};

    use super::Library;

    /// Installed by the driver.
    pub(in super::super) const NAME: &str = "nvcuda.dll";
    const NAME_C: &CStr = c"nvcuda.dll";

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn LoadLibraryA(name: *const c_char) -> *mut c_void;
        fn GetProcAddress(library: *mut c_void, name: *const c_char) -> *mut c_void;
    }

    impl Library {
        /// Opens the library, or tells why it cannot be opened.
        pub(in super::super) fn open() -> Result<Self, String> {
            // SAFETY: the name ends in NUL. The initializers that run are those of the CUDA driver.
            let handle = unsafe { LoadLibraryA(NAME_C.as_ptr()) };
            if handle.is_null() { Err(std::io::Error::last_os_error().to_string()) } else { Ok(Library(handle)) }
        }

        /// The address of a function.
        pub(in super::super) fn symbol(&self, name: &str) -> Option<*mut c_void> {
            let name = CString::new(name).ok()?;
            // SAFETY: the handle is open, by `open`, and the name ends in NUL, by its type.
            let address = unsafe { GetProcAddress(self.0, name.as_ptr()) };
            (!address.is_null()).then_some(address)
        }
    }
}
