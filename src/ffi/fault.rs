//! What went wrong, as C hosts see it: a status and a text.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use crate::error::Error;

/// Declares `attnpack_status`: numbers and general meanings.
macro_rules! statuses {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// `attnpack_status`.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Status {
            $($name = $number,)*
        }

        impl Status {
            /// All of them.
            #[cfg(test)]
            pub(super) const ALL: &[Status] = &[$(Status::$name),*];

            /// What a number means; numbers that are no status say so.
            pub(super) fn text_of(number: u32) -> &'static CStr {
                match number {
                    $($number => $text,)*
                    _ => c"no status of this version of attnpack",
                }
            }
        }
    };
}

statuses! {
    Ok = 0, c"success";
    NullArgument = 1, c"a pointer argument that must not be null is null";
    StructSize = 2, c"struct_size is not the size of any version of the struct";
    EnumValue = 3, c"a dtype, mask or policy is not one of its values";
    UnknownField = 4, c"a reserved field, or one that this library is too old to know, is not 0";
    KernelIndex = 5, c"there is no kernel of this number";

    ZeroSize = 20, c"a size is 0";
    TooLarge = 21, c"a size exceeds what one launch takes";
    HeadRatio = 22, c"kv_heads does not divide q_heads";
    Scale = 23, c"the scale is negative, NaN, or not finite once multiplied by log2(e)";
    NegativeStride = 24, c"a stride is negative";
    ExtentOverflow = 25, c"an offset in a tensor does not fit 64 bits";
    OutputOverlapsItself = 26, c"two rows of o share an element";

    UnsupportedDtype = 40, c"no kernel for the element type";
    UnsupportedHeadDim = 41, c"no kernel for head_dim, or for v_head_dim with it";
    UnsupportedMask = 42, c"no kernel for the mask";
    UnsupportedGroup = 43, c"no kernel for the ratio of query heads to KV heads";
    UnsupportedDevice = 44, c"no code that this GPU can run";
    SharedMemory = 45, c"the kernels need more shared memory than the GPU has";
    JitRefused = 46, c"only PTX serves, and the policy refuses to compile it";

    NullTensor = 60, c"q, k, v or o is null";
    Misaligned = 61, c"an address or a stride is not a multiple of what the kernels copy by";
    AddressOverflow = 62, c"a tensor would end beyond the address space";
    Overlap = 63, c"o or lse shares elements with another tensor";
    NoContext = 64, c"no context is current on this thread";
    WrongDevice = 65, c"the context belongs to another GPU";
    NotLoaded = 66, c"the stream is captured and the kernel is not loaded";

    DriverMissing = 80, c"the driver's library cannot be opened";
    DriverTooOld = 81, c"the driver lacks a function of CUDA 12.0";
    NoDevice = 82, c"the driver sees no GPU";
    Load = 83, c"the driver cannot load a kernel's machine code";
    Jit = 84, c"the driver cannot compile a kernel's PTX";
    Driver = 85, c"a function of the driver failed";

    Internal = 100, c"a bug in attnpack";
}

/// A failed call.
#[derive(Debug)]
pub(super) struct Fault {
    status: Status,
    text: String,
}

impl Fault {
    pub(super) fn null_argument(name: &str) -> Self {
        Fault { status: Status::NullArgument, text: format!("the argument {name} is null; pass the address of one") }
    }

    pub(super) fn struct_size(name: &str, size: usize, expected: usize) -> Self {
        let text = format!("struct_size is {size}, and no version of {name} has that size; set it to sizeof({name}), here {expected}");
        Fault { status: Status::StructSize, text }
    }

    pub(super) fn unknown_field(name: &str, offset: usize) -> Self {
        let text = format!(
            "byte {offset} of {name} is not 0, and this library, version {}, knows no field there; \
             start from a struct of zeros, or use a library as new as the header",
            env!("CARGO_PKG_VERSION")
        );
        Fault { status: Status::UnknownField, text }
    }

    pub(super) fn enum_value(name: &str, value: u32, known: &str) -> Self {
        Fault { status: Status::EnumValue, text: format!("{value} is no {name}; there are {known}") }
    }

    pub(super) fn negative_stride(operand: impl std::fmt::Display, part: &str, value: i64) -> Self {
        let text = format!("the {part} stride of {operand} is {value}; strides count elements and are not negative");
        Fault { status: Status::NegativeStride, text }
    }

    pub(super) fn kernel_index(index: usize, count: usize) -> Self {
        let text = format!("there is no kernel {index}; attnpack_kernel_count() is {count}, and they are numbered from 0");
        Fault { status: Status::KernelIndex, text }
    }

    pub(super) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let words = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = format!("a bug in attnpack {}, please report it: {}", env!("CARGO_PKG_VERSION"), words.unwrap_or("no message"));
        Fault { status: Status::Internal, text }
    }

    /// Makes this the last error of the thread.
    pub(super) fn remember(self) -> Status {
        let text = CString::new(self.text.replace('\0', " ")).unwrap_or_default();
        // A thread that is ending has no place for it any more; the status still tells.
        let _ = LAST.try_with(|last| last.replace(text));
        self.status
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// The text of this thread's last error.
pub(super) fn last() -> *const c_char {
    // The string lies on the heap: its address holds until the next `remember` of this thread.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// What the texts of [`Error`] advise a Rust program to do, and what a C program does instead.
const RUST_TO_C: [(&str, &str); 5] = [
    ("Device::warm_up", "attnpack_warm_up()"),
    ("Policy::CubinOnly", "ATTNPACK_POLICY_CUBIN_ONLY"),
    ("Policy::CubinFirst", "ATTNPACK_POLICY_CUBIN_FIRST"),
    ("this Device is", "this attnpack_device is for"),
    ("Device", "attnpack_device"),
];

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let text = match &error {
            // The log is in the words of the driver's compiler.
            Error::Jit { .. } => error.to_string(),
            _ => RUST_TO_C.iter().fold(error.to_string(), |text, (rust, c)| text.replace(rust, c)),
        };
        Fault { status: status(&error), text }
    }
}

fn status(error: &Error) -> Status {
    match error {
        Error::ZeroSize { .. } => Status::ZeroSize,
        Error::HeadRatio { .. } => Status::HeadRatio,
        Error::TooLarge { .. } => Status::TooLarge,
        Error::Scale { .. } => Status::Scale,
        Error::ExtentOverflow { .. } => Status::ExtentOverflow,
        Error::OutputOverlapsItself { .. } => Status::OutputOverlapsItself,
        Error::UnsupportedDType { .. } => Status::UnsupportedDtype,
        Error::UnsupportedHeadDim { .. } | Error::UnsupportedVHeadDim { .. } => Status::UnsupportedHeadDim,
        Error::UnsupportedMask { .. } => Status::UnsupportedMask,
        Error::UnsupportedGroup { .. } => Status::UnsupportedGroup,
        Error::Misaligned { .. } => Status::Misaligned,
        Error::UnsupportedDevice { .. } => Status::UnsupportedDevice,
        Error::SharedMemory { .. } => Status::SharedMemory,
        Error::JitRefused { .. } => Status::JitRefused,
        Error::NullPointer { .. } => Status::NullTensor,
        Error::AddressOverflow { .. } => Status::AddressOverflow,
        Error::Overlap { .. } => Status::Overlap,
        Error::WrongDevice { .. } => Status::WrongDevice,
        Error::NoContext => Status::NoContext,
        Error::NotLoaded { .. } => Status::NotLoaded,
        Error::DriverMissing { .. } => Status::DriverMissing,
        Error::DriverTooOld { .. } => Status::DriverTooOld,
        Error::NoDevice => Status::NoDevice,
        Error::Load { .. } => Status::Load,
        Error::Jit { .. } => Status::Jit,
        Error::Driver { .. } => Status::Driver,
        // Those of slices, of ordinals, and of an LSE that was announced: C has none of these.
        Error::LseMismatch { .. }
        | Error::ElementType { .. }
        | Error::TooShort { .. }
        | Error::ForeignSlice { .. }
        | Error::NoSuchDevice { .. } => Status::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Capability;

    const H200: Capability = Capability { major: 9, minor: 0, shared_optin_bytes: 232_448, multiprocessors: 132 };

    #[test]
    fn advice_is_for_c() {
        let kernel = "prefill_mma_f32_d64_gany_anymask_sm80";
        for (error, advice) in [
            (Error::NotLoaded { kernel }, "call attnpack_warm_up() before the capture"),
            (Error::JitRefused { device: H200, kernel }, "choose ATTNPACK_POLICY_CUBIN_FIRST"),
            (Error::JitRefused { device: H200, kernel }, "and ATTNPACK_POLICY_CUBIN_ONLY refuses"),
            (Error::WrongDevice { context: 0, device: 1 }, "this attnpack_device is for GPU 1; make one attnpack_device per GPU"),
        ] {
            let text = Fault::from(error).text;
            assert!(text.contains(advice) && !text.contains("::"), "{text}");
        }
    }

    /// No Rust path is left in a text that a C host can get.
    #[test]
    fn texts_name_nothing_of_rust() {
        let sources = [include_str!("../error_text.rs"), include_str!("../jit.rs")];
        let literals = sources.iter().flat_map(|source| source.split('"').skip(1).step_by(2));
        for literal in literals {
            let in_c = RUST_TO_C.iter().fold(literal.to_owned(), |text, (rust, c)| text.replace(rust, c));
            // The LSE's announcement, and slices, exist in Rust only.
            let rust_only = ["LSE", "DType of the slices"].iter().any(|words| in_c.contains(words));
            let is_rust = ["::", "with_", "Device", "Policy"].iter().any(|word| in_c.contains(word));
            assert!(rust_only || !is_rust, "{in_c}");
        }
    }

    #[test]
    fn a_panic_is_a_text() {
        let status = super::super::guarded(|| panic!("seven"));
        assert_eq!(status, Status::Internal);
        // SAFETY: never null, and ends in NUL.
        let text = unsafe { CStr::from_ptr(last()) };
        assert!(text.to_str().is_ok_and(|text| text.ends_with("please report it: seven")), "{text:?}");
    }
}
