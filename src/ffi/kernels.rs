//! The catalogue as C hosts see it: strings that end in NUL, made once.

use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

use super::structs::Versioned;
use super::values::{DTYPES, MASKS};
use crate::catalog::{Entry, Group, MaskSupport, build_info, catalog};
use crate::shape::Mask;

/// `attnpack_kernel_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelInfo {
    pub(super) struct_size: usize,
    pub(super) name: *const c_char,
    pub(super) family: *const c_char,
    pub(super) models: *const c_char,
    pub(super) cubins: *const c_char,
    pub(super) dtype: u32,
    pub(super) head_dim: u32,
    pub(super) v_head_dim: u32,
    pub(super) group: u32,
    pub(super) masks: u32,
    pub(super) row_alignment: u32,
    pub(super) block_q: u32,
    pub(super) block_kv: u32,
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
    pub(super) has_ptx: u32,
    pub(super) reserved: u32,
}

// SAFETY: numbers and addresses only, and `struct_size` comes first.
unsafe impl Versioned for KernelInfo {
    const NAME: &'static str = "attnpack_kernel_info";
    const FIRST_BYTES: usize = 88;
}

/// An entry of the catalogue with its strings.
pub(super) struct Kernel {
    entry: &'static Entry,
    name: CString,
    family: CString,
    models: CString,
    cubins: CString,
}

impl Kernel {
    fn new(entry: &'static Entry) -> Self {
        let cubins = words(entry.cubins.iter().map(|cubin| cubin.arch));
        Kernel { entry, name: text(entry.name), family: text(entry.family), models: text(entry.models), cubins: text(&cubins) }
    }

    /// What is told of it. The strings live until the process ends.
    pub(super) fn info(&'static self, struct_size: usize) -> KernelInfo {
        let Entry { dtype, head_dim, v_head_dim, group, mask, copy_bytes, block_q, block_kv, threads, shared_bytes, .. } = *self.entry;
        KernelInfo {
            struct_size,
            name: self.name.as_ptr(),
            family: self.family.as_ptr(),
            models: self.models.as_ptr(),
            cubins: self.cubins.as_ptr(),
            dtype: DTYPES.number(dtype),
            head_dim,
            v_head_dim,
            group: match group {
                Group::Packed(ratio) => ratio,
                Group::Any => 0,
            },
            masks: match mask {
                MaskSupport::Causal => 1 << MASKS.number(Mask::Causal),
                MaskSupport::Full => 1 << MASKS.number(Mask::Full),
                MaskSupport::Any => MASKS.all.iter().map(|(number, ..)| 1 << number).sum(),
            },
            row_alignment: copy_bytes,
            block_q,
            block_kv,
            threads,
            shared_bytes,
            has_ptx: u32::from(self.entry.ptx.is_some()),
            reserved: 0,
        }
    }
}

/// Every kernel, numbered as in the catalogue.
pub(super) fn all() -> &'static [Kernel] {
    static KERNELS: OnceLock<Vec<Kernel>> = OnceLock::new();
    KERNELS.get_or_init(|| catalog().iter().map(Kernel::new).collect())
}

/// How the kernels were built.
pub(super) fn build_text() -> &'static CStr {
    static TEXT: OnceLock<CString> = OnceLock::new();
    TEXT.get_or_init(|| {
        let build = build_info();
        let archs = words(build.archs);
        let code = match build.ptxas {
            Some(version) if archs.is_empty() => format!("PTX only, checked by ptxas {version}"),
            Some(version) => format!("machine code for {archs} by ptxas {version}"),
            None => "PTX only, built without ptxas".to_owned(),
        };
        text(&format!("attnpack {}, {} kernels, {code}", env!("CARGO_PKG_VERSION"), catalog().len()))
    })
}

fn words(items: impl IntoIterator<Item: ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}

fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}
