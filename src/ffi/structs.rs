//! Structs that begin with their size, so that they can grow: read from callers that are older or newer, and written for
//! them.

use std::mem::{MaybeUninit, size_of};
use std::ptr;

use super::fault::Fault;

/// A struct that begins with `size_t struct_size`. Its first version has this size; fields are only ever appended.
///
/// # Safety
/// `#[repr(C)]`, `usize` first, and every pattern of bits is a value.
pub(super) unsafe trait Sized: Copy {
    /// Its name in C.
    const NAME: &'static str;
}

/// The largest size that is taken for one: enough for any version to come, and too little to run far through memory that
/// was never set.
const LARGEST: usize = 4096;

/// The size that a struct says it has.
///
/// # Safety
/// `place` can be read where it is not null, for the size of a `usize`.
unsafe fn stated_size<T: Sized>(place: *const T, argument: &str) -> Result<usize, Fault> {
    if place.is_null() {
        return Err(Fault::null_argument(argument));
    }
    // SAFETY: readable, and the size comes first by the contract of `Sized`.
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    if (size_of::<T>()..=LARGEST).contains(&size) { Ok(size) } else { Err(Fault::struct_size(T::NAME, size, size_of::<T>())) }
}

/// Reads a struct. What a newer caller has beyond it must be 0, which means what this version does.
///
/// # Safety
/// `place` is null, or can be read as far as its first field tells.
pub(super) unsafe fn read<T: Sized>(place: *const T, argument: &str) -> Result<T, Fault> {
    // SAFETY: the contract of this function.
    let size = unsafe { stated_size(place, argument) }?;
    for offset in size_of::<T>()..size {
        // SAFETY: within the size that the struct states.
        if unsafe { place.cast::<u8>().add(offset).read() } != 0 {
            return Err(Fault::unknown_field(T::NAME, offset));
        }
    }
    // SAFETY: at least this large, and every pattern of bits is a value; C may have put it anywhere.
    Ok(unsafe { place.read_unaligned() })
}

/// A struct of the caller that will be filled.
pub(super) struct Writing<T> {
    place: *mut T,
    size: usize,
}

impl<T: Sized> Writing<T> {
    /// Checks the place.
    ///
    /// # Safety
    /// `place` is null, or can be read and written as far as its first field tells, while the result lives.
    pub(super) unsafe fn begin(place: *mut T, argument: &str) -> Result<Self, Fault> {
        // SAFETY: the contract of this function.
        let size = unsafe { stated_size(place, argument) }?;
        Ok(Writing { place, size })
    }

    /// The size that the caller set, which stays.
    pub(super) fn struct_size(&self) -> usize {
        self.size
    }

    /// Fills it; what a newer caller has beyond it becomes 0.
    pub(super) fn finish(&self, value: T) {
        let beyond = self.size - size_of::<T>();
        // SAFETY: writable by the contract of `begin`, which found the size to be at least that of `T`.
        unsafe {
            ptr::copy_nonoverlapping(MaybeUninit::new(value).as_ptr().cast::<u8>(), self.place.cast(), size_of::<T>());
            ptr::write_bytes(self.place.cast::<u8>().add(size_of::<T>()), 0, beyond);
        }
    }
}
