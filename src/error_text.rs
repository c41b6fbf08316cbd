//! The words of [`Error`]: what was asked, what exists, what to do. One arm per variant, in their order.

use std::fmt::{self, Display, Formatter};

use crate::dispatch::Capability;
use crate::error::{DriverError, Error};

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Error::ZeroSize { what } => write!(f, "{what} is 0: there is nothing to compute; skip the launch"),
            Error::HeadRatio { q_heads, kv_heads } => {
                write!(f, "{q_heads} query heads cannot share {kv_heads} KV heads evenly; kv_heads must divide q_heads")
            }
            Error::TooLarge { what, value, limit } => {
                write!(f, "{what} is {value}; one launch takes at most {limit}; split it into several launches")
            }
            Error::Scale { scale } => {
                write!(
                    f,
                    "scale {scale} is not usable; it must be positive, and finite when multiplied by log2(e), by default 1/sqrt(head_dim)"
                )
            }
            Error::ExtentOverflow { operand } => {
                write!(f, "an offset in {operand} does not fit 64 bits; check the strides, which count elements")
            }
            Error::OutputOverlapsItself { strides, shape, v_head_dim } => write!(
                f,
                "o [{}, {}, {}, {}] with strides {}, {}, {} (batch, sequence, head; elements) may write an element twice; \
                 each stride must span everything inside it",
                shape.batch, shape.q_len, shape.q_heads, v_head_dim, strides.batch, strides.seq, strides.head
            ),

            Error::UnsupportedDType { dtype, device, available } => {
                write!(f, "no kernel for {dtype} on {device}; this build has {}; convert q, k and v", List(available))
            }
            Error::UnsupportedHeadDim { head_dim, dtype, device, available } => {
                write!(f, "no kernel for head_dim {head_dim} in {dtype} on {device}; this build has {}; ", List(available))?;
                match available.iter().find(|&larger| larger > head_dim) {
                    Some(larger) => write!(f, "pad to {larger} with zeros and keep the scale of {head_dim}"),
                    None => write!(f, "larger heads need another library"),
                }
            }
            Error::UnsupportedVHeadDim { v_head_dim, head_dim, dtype, device, available } => {
                write!(f, "no kernel for head_dim {head_dim} with values of {v_head_dim} in {dtype} on {device}; ")?;
                write!(f, "this build has values of {}; ", List(available))?;
                match available.iter().find(|&larger| larger > v_head_dim) {
                    Some(larger) => write!(f, "pad v and o to {larger}"),
                    None => write!(f, "larger values need another library"),
                }
            }
            Error::UnsupportedMask { mask, head_dim, dtype, device } => write!(
                f,
                "no kernel for the {mask} mask with head_dim {head_dim} in {dtype} on {device}; \
                 build without ATTNPACK_VARIANTS to have them all"
            ),
            Error::UnsupportedGroup { group, head_dim, dtype, device, available } => write!(
                f,
                "no kernel for {group} query heads per KV head with head_dim {head_dim} in {dtype} on {device}; this build has {}; \
                 build without ATTNPACK_VARIANTS to have every ratio",
                List(available)
            ),
            Error::Misaligned { operand, part, bytes, required } => write!(
                f,
                "the {part} of {operand}, {bytes} bytes, is not a multiple of {required} bytes, as the kernels for this problem need; \
                 align it, or copy {operand} to a layout that is aligned"
            ),
            Error::UnsupportedDevice { device, available } => {
                write!(f, "no code for {device}; this build has {}; {}", List(available), Enable(device))
            }
            Error::SharedMemory { device, required } => write!(
                f,
                "the kernels for this problem need {required} bytes of shared memory per block, and {device} has {}; {}",
                device.shared_optin_bytes,
                Enable(device)
            ),
            Error::JitRefused { device, kernel } => write!(
                f,
                "{kernel} exists for {device} as PTX only, and Policy::CubinOnly refuses just-in-time compilation; {}, \
                 or choose Policy::CubinFirst",
                Enable(device)
            ),

            Error::NullPointer { operand } => write!(f, "the address of {operand} is 0; allocate it, or skip the launch"),
            Error::AddressOverflow { operand, address } => {
                write!(f, "{operand} at {address:#x} would end beyond 64 bits; check its address, shape and strides")
            }
            Error::Overlap { output, other } => write!(
                f,
                "{output} shares elements with {other}, or interleaves with it in more than one dimension; give {output} a place of its own \
                 (columns of the same packed rows are fine)"
            ),
            Error::LseMismatch { wanted: true } => {
                write!(f, "the problem wants the LSE and there is no buffer for it; pass one, or build the problem without with_lse()")
            }
            Error::LseMismatch { wanted: false } => {
                write!(f, "there is a buffer for the LSE and the problem does not want it; build the problem with with_lse()")
            }
            Error::ElementType { problem, slices } => {
                write!(f, "the problem is in {problem} and the slices hold {slices}; build the problem with the DType of the slices")
            }
            Error::TooShort { operand, required, actual } => write!(
                f,
                "{operand} has {actual} elements and the problem's shape and strides span {required}; \
                 pass a longer slice, or correct the strides"
            ),
            Error::ForeignSlice { operand } => {
                write!(f, "{operand} lives in another context than the stream; use a stream of {operand}'s context")
            }
            Error::WrongDevice { context, device } => write!(
                f,
                "the context belongs to GPU {context} and this Device is GPU {device}; make one Device per GPU and use its own streams"
            ),
            Error::NoContext => write!(
                f,
                "no CUDA context is current on this thread; make one current, or launch on a stream of one that is not the default stream"
            ),
            Error::NotLoaded { kernel } => write!(
                f,
                "{kernel} is not loaded in this context, and a stream under capture cannot load it; call Device::warm_up before the capture"
            ),

            Error::DriverMissing { library, reason } => write!(
                f,
                "the CUDA driver library {library} cannot be opened ({reason}); install an NVIDIA driver, \
                 or give the container access to it (--gpus all)"
            ),
            Error::DriverTooOld { version, function } => {
                match version {
                    Some((major, minor)) => write!(f, "the driver is for CUDA {major}.{minor} and lacks {function}; ")?,
                    None => write!(f, "the driver lacks {function}; ")?,
                }
                write!(f, "attnpack needs a driver for CUDA 12.0 or newer (525 or newer): update it")
            }
            Error::NoDevice => write!(f, "the driver sees no GPU; check nvidia-smi, CUDA_VISIBLE_DEVICES and, in a container, --gpus all"),
            Error::NoSuchDevice { ordinal, count } => {
                write!(f, "there is no GPU {ordinal}; the driver sees {count}, numbered from 0; check CUDA_VISIBLE_DEVICES")
            }
            Error::Load { kernel, source } => {
                write!(f, "the driver cannot load the cubin of {kernel}: {source}{}", remedy(source))
            }
            Error::Jit { kernel, version, log, source } => {
                let (major, minor) = version;
                write!(f, "the driver cannot compile {kernel} (PTX {major}.{minor}): {source}{}", remedy(source))?;
                if log.is_empty() { Ok(()) } else { write!(f, "\n{log}") }
            }
            Error::Driver { call, source } => write!(f, "{call} failed: {source}{}", remedy(source)),
        }
    }
}

/// What to do about a driver's error, where there is something; the numbers are those of `CUresult`.
fn remedy(source: &DriverError) -> &'static str {
    match source.code {
        2 => "; free memory on the device",
        34 => "; a stub of libcuda was opened: remove the toolkit's stubs folder from the library path",
        201 | 709 => "; the context was destroyed: use another one, and new streams",
        209 => "; enable the cargo feature of this GPU's architecture",
        221 | 223 => "; this driver cannot compile PTX here: enable the cargo feature of this GPU's architecture to have cubins",
        222 => "; the driver is older than this PTX: update it, or enable the cargo feature of this GPU's architecture to have cubins",
        400 => "; check that the stream is alive",
        // Those that CUDA documents as leaving the context unusable.
        700 | 702 | 710 | 714..=719 => "; work launched earlier may have failed: the context is unusable, start the process anew",
        803 => "; the driver's library and kernel module differ: reboot, or repair the installation",
        900..=908 => "; the capture of a stream forbids it",
        _ => "",
    }
}

/// What to do for machine code.
struct Enable<'a>(&'a Capability);

impl Display for Enable<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.cargo_feature() {
            Some(feature) => write!(f, "build with the cargo feature {feature} and ptxas"),
            None if self.0.major < 8 => f.write_str("use a GPU of compute capability 8.0 or newer"),
            None => f.write_str("no cargo feature has machine code for it"),
        }
    }
}

/// `a, b, c`.
struct List<'a, T>(&'a [T]);

impl<T: Display> Display for List<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (i, item) in self.0.iter().enumerate() {
            write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
