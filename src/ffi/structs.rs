//! Structs that begin with their size, so that they can grow: read from callers that are older or newer, and written for
//! them.

use std::mem::{MaybeUninit, size_of};
use std::ptr;

use super::fault::Fault;

/// A struct that begins with `size_t struct_size`. Fields are only ever appended.
///
/// # Safety
/// `#[repr(C)]`, `usize` first, and every pattern of bits is a value.
pub(super) unsafe trait Versioned: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// Size of its first version, which stays what it was.
    const FIRST_BYTES: usize;
}

/// The largest size that is taken for one: enough for any version to come, and too little to run far through memory that
/// was never set.
const LARGEST: usize = 4096;

/// The size that a struct says it has.
///
/// # Safety
/// `place` can be read where it is not null, for the size of a `usize`.
unsafe fn stated_size<T: Versioned>(place: *const T, argument: &str) -> Result<usize, Fault> {
    if place.is_null() {
        return Err(Fault::null_argument(argument));
    }
    // SAFETY: readable, and the size comes first by the contract of `Versioned`.
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    if (T::FIRST_BYTES..=LARGEST).contains(&size) { Ok(size) } else { Err(Fault::struct_size(T::NAME, size, size_of::<T>())) }
}

/// Reads a struct. What an older caller does not have is 0. What a newer caller has beyond it must be 0, which means what
/// this version does.
///
/// # Safety
/// `place` is null, or can be read as far as its first field tells.
pub(super) unsafe fn read<T: Versioned>(place: *const T, argument: &str) -> Result<T, Fault> {
    // SAFETY: the contract of this function.
    let size = unsafe { stated_size(place, argument) }?;
    for offset in size_of::<T>()..size {
        // SAFETY: within the size that the struct states.
        if unsafe { place.cast::<u8>().add(offset).read() } != 0 {
            return Err(Fault::unknown_field(T::NAME, offset));
        }
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both are at least this large; bytes have no alignment, and C may have put the struct anywhere.
    unsafe { ptr::copy_nonoverlapping(place.cast::<u8>(), value.as_mut_ptr().cast(), size.min(size_of::<T>())) };
    // SAFETY: every byte is set, and every pattern of bits is a value.
    Ok(unsafe { value.assume_init() })
}

/// A struct of the caller that will be filled.
pub(super) struct Writing<T> {
    place: *mut T,
    size: usize,
}

impl<T: Versioned> Writing<T> {
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

    /// Fills as much of it as the caller has; what a newer caller has beyond it becomes 0.
    pub(super) fn finish(&self, value: T) {
        let known = self.size.min(size_of::<T>());
        let place = self.place.cast::<u8>();
        // SAFETY: writable as far as `size` by the contract of `begin`, and `value` has `known` bytes.
        unsafe {
            ptr::copy_nonoverlapping(ptr::from_ref(&value).cast::<u8>(), place, known);
            ptr::write_bytes(place.add(known), 0, self.size - known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! version {
        ($name:ident { $($field:ident),* }) => {
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq)]
            struct $name {
                struct_size: usize,
                $($field: u64),*
            }

            // SAFETY: integers only, and `struct_size` comes first.
            unsafe impl Versioned for $name {
                const NAME: &'static str = "toy";
                const FIRST_BYTES: usize = size_of::<First>();
            }
        };
    }

    version!(First { a });
    version!(Second { a, b });

    const FIRST: First = First { struct_size: size_of::<First>(), a: 7 };
    const SECOND: Second = Second { struct_size: size_of::<Second>(), a: 7, b: 8 };

    #[test]
    fn older_and_newer_callers_are_read() {
        let place: *const First = &FIRST;
        // SAFETY: as large as it says.
        let read_by_second = unsafe { read::<Second>(place.cast(), "toy") };
        assert_eq!(read_by_second.ok(), Some(Second { struct_size: size_of::<First>(), a: 7, b: 0 }));

        let place: *const Second = &SECOND;
        // SAFETY: as large as it says.
        let fault = unsafe { read::<First>(place.cast(), "toy") }.expect_err("b is not known");
        assert!(format!("{fault:?}").contains("byte 16 of toy"), "{fault:?}");
        let later_is_zero = Second { b: 0, ..SECOND };
        let place: *const Second = &later_is_zero;
        // SAFETY: as large as it says.
        assert_eq!(unsafe { read::<First>(place.cast(), "toy") }.ok(), Some(First { struct_size: size_of::<Second>(), a: 7 }));
    }

    #[test]
    fn older_and_newer_callers_are_filled() {
        let mut guarded = [Second { struct_size: size_of::<First>(), a: 0, b: 99 }];
        // SAFETY: larger than it says.
        let place = unsafe { Writing::begin(guarded.as_mut_ptr(), "toy") }.expect("a size that exists");
        place.finish(Second { struct_size: place.struct_size(), a: 1, b: 2 });
        assert_eq!(guarded[0], Second { struct_size: size_of::<First>(), a: 1, b: 99 }, "nothing beyond an older struct is touched");

        let mut newer = SECOND;
        // SAFETY: as large as it says.
        let place = unsafe { Writing::begin(ptr::from_mut(&mut newer).cast::<First>(), "toy") }.expect("a size that exists");
        place.finish(First { struct_size: place.struct_size(), a: 1 });
        assert_eq!(newer, Second { struct_size: size_of::<Second>(), a: 1, b: 0 });
    }
}
