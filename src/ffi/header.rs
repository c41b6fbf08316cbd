//! Compares `include/attnpack.h`, as a C compiler reads it, with the Rust side: every function, struct and value.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::io::Write;
use std::mem::{align_of, size_of};
use std::panic;
use std::path::Path;

use quote::ToTokens;

use super::fault::Status;
use super::values::{CODES, DTYPES, MASKS, POLICIES, Values};
use super::*;
use crate::ffi::params::TensorStrides;

/// A type as both sides name it: `u32`, `*const attnpack_device`.
trait CType {
    fn c_name() -> String;
}

macro_rules! c_names {
    ($($rust:ty = $c:literal),* $(,)?) => {
        $(impl CType for $rust {
            fn c_name() -> String {
                $c.to_owned()
            }
        })*
    };
}

// Enumerations have the type of their numbers.
c_names! {
    () = "()", u32 = "u32", u64 = "u64", i64 = "i64", usize = "usize", f32 = "f32", c_char = "c_char", c_void = "c_void", Status = "u32",
    Device = "attnpack_device", PrefillParams = "attnpack_prefill_params", TensorStrides = "attnpack_strides",
    CapabilityInfo = "attnpack_capability", KernelInfo = "attnpack_kernel_info", cudarc::driver::sys::CUstream_st = "CUstream_st",
}

impl<T: CType> CType for *const T {
    fn c_name() -> String {
        format!("*const {}", T::c_name())
    }
}

impl<T: CType> CType for *mut T {
    fn c_name() -> String {
        format!("*mut {}", T::c_name())
    }
}

/// The signature of an exported function.
trait Signature {
    fn signature(self) -> String;
}

macro_rules! signatures {
    ($($argument:ident)*) => {
        impl<$($argument: CType,)* R: CType> Signature for unsafe extern "C" fn($($argument),*) -> R {
            fn signature(self) -> String {
                let arguments: &[String] = &[$($argument::c_name()),*];
                format!("({}) -> {}", arguments.join(", "), R::c_name())
            }
        }
    };
}

signatures!();
signatures!(A);
signatures!(A B);
signatures!(A B C);
signatures!(A B C D);

/// What a side has, by name.
type Side = BTreeMap<String, String>;

macro_rules! functions {
    ($($name:ident as fn($($argument:tt),*);)*) => {
        [$((stringify!($name).to_owned(), ($name as unsafe extern "C" fn($($argument),*) -> _).signature())),*]
    };
}

fn rust_functions() -> Side {
    functions! {
        attnpack_status_string as fn(_);
        attnpack_last_error as fn();
        attnpack_version as fn();
        attnpack_build_info as fn();
        attnpack_device_create as fn(_, _);
        attnpack_device_destroy as fn(_);
        attnpack_device_capability as fn(_, _);
        attnpack_prefill as fn(_, _, _);
        attnpack_supports as fn(_, _, _, _);
        attnpack_warm_up as fn(_, _);
        attnpack_warm_up_all as fn(_);
        attnpack_jit_stats as fn(_, _);
        attnpack_kernel_count as fn();
        attnpack_kernel_at as fn(_, _);
    }
    .into()
}

/// The type of a field.
fn field<S, T: CType>(_: fn(&S) -> &T) -> String {
    T::c_name()
}

macro_rules! structs {
    ($($rust:ident { $($field:ident),* })*) => {{
        let mut side = Side::new();
        $({
            let name = $rust::c_name();
            side.insert(format!("size of {name}"), size_of::<$rust>().to_string());
            side.insert(format!("alignment of {name}"), align_of::<$rust>().to_string());
            $(
                let key = format!("{name}::{}", stringify!($field));
                side.insert(key, format!("{} at {}", field(|it: &$rust| &it.$field), std::mem::offset_of!($rust, $field)));
            )*
            // Every field is named above: this pattern has no rest.
            let _ = |$rust { $($field: _),* }: $rust| ();
        })*
        side
    }};
}

fn rust_structs() -> Side {
    structs! {
        CapabilityInfo { struct_size, ordinal, major, minor, shared_optin_bytes, multiprocessors, reserved }
        TensorStrides { batch, seq, head }
        PrefillParams {
            struct_size, dtype, mask, batch, q_len, kv_len, q_heads, kv_heads, head_dim, scale, v_head_dim, q, k, v, o, lse,
            q_strides, k_strides, v_strides, o_strides, programmatic_launch, reserved
        }
        KernelInfo {
            struct_size, name, family, models, cubins, dtype, head_dim, v_head_dim, group, masks, row_alignment, block_q, block_kv,
            threads, shared_bytes, has_ptx, reserved
        }
    }
}

fn rust_values() -> Side {
    fn add<T>(side: &mut Side, values: &Values<T>) {
        let prefix = values.name.to_uppercase();
        side.extend(values.all.iter().map(|(number, name, _)| (format!("{prefix}_{name}"), format!("{} {number}", values.name))));
    }
    let mut side = Side::new();
    for status in Status::ALL {
        let name = match status {
            Status::Ok => "ATTNPACK_OK".to_owned(),
            error => format!("ATTNPACK_ERROR{}", shouted(&format!("{error:?}"))),
        };
        side.insert(name, format!("attnpack_status {}", *status as u32));
    }
    add(&mut side, &DTYPES);
    add(&mut side, &MASKS);
    add(&mut side, &POLICIES);
    add(&mut side, &CODES);
    side
}

/// `HeadRatio` to `_HEAD_RATIO`.
fn shouted(name: &str) -> String {
    name.chars()
        .fold(String::new(), |all, c| if c.is_uppercase() { format!("{all}_{c}") } else { format!("{all}{}", c.to_ascii_uppercase()) })
}

/// The header as bindgen, which is libclang, reads it.
struct Header {
    text: String,
    file: syn::File,
}

impl Header {
    /// `None`, and a line that says so, without libclang.
    ///
    /// # Panics
    /// Without libclang under `ATTNPACK_STRICT=1`.
    fn read(test: &str) -> Option<Self> {
        // It panics where libclang is not found.
        let libclang = panic::catch_unwind(bindgen::clang_version);
        if libclang.is_err() {
            let strict = std::env::var("ATTNPACK_STRICT").is_ok_and(|value| value == "1");
            assert!(!strict, "ATTNPACK_STRICT=1 and no libclang to read the C header with; install it, or set LIBCLANG_PATH to its folder");
            // Past the capture of `println!`, so that it shows.
            let _ = writeln!(std::io::stderr(), "SKIPPED {test}: there is no libclang to read the C header with");
            return None;
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/attnpack.h");
        let bindings = bindgen::builder().header(path.to_str().expect("a path in Unicode")).allowlist_item("(?i)attnpack_.*");
        let bindings = bindings.prepend_enum_name(false).formatter(bindgen::Formatter::None).generate().expect("valid C");
        let text = bindings.to_string();
        let file = syn::parse_str(&text).expect("bindgen writes Rust");
        Some(Header { text, file })
    }

    fn functions(&self) -> Side {
        let blocks = self.file.items.iter().filter_map(|item| match item {
            syn::Item::ForeignMod(block) => Some(&block.items),
            _ => None,
        });
        let functions = blocks.flatten().map(|item| match item {
            syn::ForeignItem::Fn(function) => {
                let arguments = function.sig.inputs.iter().map(|argument| match argument {
                    syn::FnArg::Typed(argument) => self.c_name(&argument.ty),
                    syn::FnArg::Receiver(_) => panic!("C has no methods"),
                });
                let result = match &function.sig.output {
                    syn::ReturnType::Default => "()".to_owned(),
                    syn::ReturnType::Type(_, result) => self.c_name(result),
                };
                let arguments: Vec<_> = arguments.collect();
                (function.sig.ident.to_string(), format!("({}) -> {result}", arguments.join(", ")))
            }
            other => panic!("the header declares {}", other.to_token_stream()),
        });
        functions.collect()
    }

    /// The name of a type, without bindgen's paths; the type of its numbers for an enumeration.
    fn c_name(&self, ty: &syn::Type) -> String {
        match ty {
            syn::Type::Ptr(pointer) => {
                let kind = if pointer.mutability.is_some() { "mut" } else { "const" };
                format!("*{kind} {}", self.c_name(&pointer.elem))
            }
            syn::Type::Path(path) => {
                let name = path.path.segments.last().expect("a name").ident.to_string();
                let alias = self.file.items.iter().find_map(|item| match item {
                    syn::Item::Type(alias) if alias.ident == name => Some(&alias.ty),
                    _ => None,
                });
                match (alias, name.as_str()) {
                    (Some(aliased), _) => self.c_name(aliased),
                    (None, "c_uint") => "u32".to_owned(),
                    (None, _) => name,
                }
            }
            other => panic!("a type that no function of the header should have: {}", other.to_token_stream()),
        }
    }

    /// bindgen computes the layouts with clang and writes `["Size of name"][… - 24usize];`.
    fn structs(&self) -> Side {
        let facts = self.text.split("[\"").skip(1).filter_map(|fact| {
            let (label, rest) = fact.split_once("\"]")?;
            let value = rest.split_once("usize]")?.0.rsplit(['-', ' ']).next()?;
            Some((label, value.to_owned()))
        });
        let mut side = Side::new();
        for (label, value) in facts {
            if let Some(name) = label.strip_prefix("Size of ") {
                side.insert(format!("size of {name}"), value);
            } else if let Some(name) = label.strip_prefix("Alignment of ") {
                side.insert(format!("alignment of {name}"), value);
            } else if let Some(name) = label.strip_prefix("Offset of field: ") {
                side.insert(name.to_owned(), format!("{} at {value}", self.field(name)));
            }
        }
        side
    }

    fn field(&self, name: &str) -> String {
        let (owner, field) = name.split_once("::").expect("struct::field");
        let found = self.file.items.iter().find_map(|item| match item {
            syn::Item::Struct(item) if item.ident == owner => {
                item.fields.iter().find(|it| it.ident.as_ref().is_some_and(|ident| ident == field))
            }
            _ => None,
        });
        self.c_name(&found.expect("the field of an offset").ty)
    }

    fn values(&self) -> Side {
        let values = self.file.items.iter().filter_map(|item| match item {
            syn::Item::Const(value) if value.ident.to_string().starts_with("ATTNPACK_") && !value.ident.to_string().contains("VERSION") => {
                Some((value.ident.to_string(), format!("{} {}", type_text(&value.ty), value.expr.to_token_stream())))
            }
            _ => None,
        });
        values.collect()
    }

    /// A macro of the header.
    fn number(&self, name: &str) -> u32 {
        let value = self.file.items.iter().find_map(|item| match item {
            syn::Item::Const(value) if value.ident == name => Some(value.expr.to_token_stream().to_string()),
            _ => None,
        });
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("the header defines {name} as a number"))
    }
}

fn type_text(ty: &syn::Type) -> String {
    ty.to_token_stream().to_string()
}

#[test]
fn the_header_is_the_rust_side() {
    let Some(header) = Header::read("ffi::header::the_header_is_the_rust_side") else { return };
    assert_eq!(header.functions(), rust_functions());
    assert_eq!(header.structs(), rust_structs());
    assert_eq!(header.values(), rust_values());
    assert_eq!(attnpack_version(), header.number("ATTNPACK_VERSION"));
    let parts = ["MAJOR", "MINOR", "PATCH"].map(|part| header.number(&format!("ATTNPACK_VERSION_{part}")));
    assert_eq!(parts.map(|part| part.to_string()).join("."), env!("CARGO_PKG_VERSION"));
}

/// What the functions above export is all that `ffi.rs` exports: the text has as many marks as the table has rows.
#[test]
fn every_export_is_compared() {
    let source = include_str!("../ffi.rs");
    assert_eq!(source.matches("#[unsafe(no_mangle)]").count(), rust_functions().len(), "add the function to rust_functions()");
    let bodies: Vec<_> = source.split("#[unsafe(no_mangle)]").skip(1).filter(|body| body.contains("-> Status {")).collect();
    assert!(bodies.len() > 5 && bodies.iter().all(|body| body.contains("-> Status {\n    guarded(")), "a panic must not reach C");
}

/// What the header fixed once and for all: the first versions of the structs, where pointers have 64 bits.
#[cfg(target_pointer_width = "64")]
#[test]
fn structs_have_not_shrunk() {
    use super::structs::Versioned;
    assert_eq!([PrefillParams::FIRST_BYTES, KernelInfo::FIRST_BYTES, CapabilityInfo::FIRST_BYTES], [184, 88, 32]);
    assert!(size_of::<PrefillParams>() >= 184 && size_of::<KernelInfo>() >= 88 && size_of::<CapabilityInfo>() >= 32);
}

#[test]
fn every_value_has_a_number() {
    use super::values::CodeKind::{Cubin, Ptx};
    use crate::dispatch::Policy::{CubinFirst, CubinOnly};
    use crate::shape::{DType, Mask};
    assert_eq!([DType::F16, DType::BF16, DType::F32].map(|dtype| DTYPES.number(dtype)), [1, 2, 3]);
    assert_eq!([Mask::Full, Mask::Causal].map(|mask| MASKS.number(mask)), [0, 1]);
    assert_eq!([CubinFirst, CubinOnly].map(|policy| POLICIES.number(policy)), [0, 1]);
    assert_eq!([Cubin, Ptx].map(|code| CODES.number(code)), [1, 2]);
}

#[test]
fn every_status_has_a_text_of_its_own() {
    let texts: Vec<_> = Status::ALL.iter().map(|status| Status::text_of(*status as u32)).collect();
    assert!(texts.iter().enumerate().all(|(i, text)| !texts[..i].contains(text)));
    assert_eq!(Status::text_of(7), Status::text_of(u32::MAX), "no status");
}
