//! Kernel parameters, written once: the PTX offsets and the Rust struct come from this table.

use std::fmt::Write;

use crate::ptx::types::Ty;

/// One field of a parameter block.
#[derive(Debug)]
pub struct Field {
    /// Name, in PTX builder calls and in the Rust struct.
    pub name: &'static str,
    /// Type.
    pub ty: Ty,
    /// Meaning, shape and unit.
    pub doc: &'static str,
}

/// A kernel's parameter block: fields in order, each aligned to its size.
#[derive(Debug)]
pub struct Layout {
    /// Name of the Rust struct.
    pub name: &'static str,
    /// What kernels take it.
    pub doc: &'static str,
    /// The fields.
    pub fields: &'static [Field],
}

const fn field(name: &'static str, ty: Ty, doc: &'static str) -> Field {
    Field { name, ty, doc }
}

/// Parameters of the prefill kernels that address tensors by pointer and strides.
#[rustfmt::skip]
pub static PREFILL: Layout = Layout {
    name: "PrefillParams",
    doc: "Parameters of the prefill kernels that address tensors by pointer and strides.",
    fields: &[
        field("q",              Ty::U64, "Device address of the queries, `[batch, q_len, q_heads, head_dim]`."),
        field("k",              Ty::U64, "Device address of the keys, `[batch, kv_len, kv_heads, head_dim]`."),
        field("v",              Ty::U64, "Device address of the values, `[batch, kv_len, kv_heads, head_dim]`."),
        field("o",              Ty::U64, "Device address of the output, shaped like the queries."),
        field("lse",            Ty::U64, "Device address of the log-sum-exp, f32 `[batch, q_heads, q_len]` contiguous, natural log; 0: not wanted."),
        field("q_batch_stride", Ty::U64, "Elements between batches of q."),
        field("q_seq_stride",   Ty::U64, "Elements between tokens of q."),
        field("q_head_stride",  Ty::U64, "Elements between heads of q."),
        field("k_batch_stride", Ty::U64, "Elements between batches of k."),
        field("k_seq_stride",   Ty::U64, "Elements between tokens of k."),
        field("k_head_stride",  Ty::U64, "Elements between heads of k."),
        field("v_batch_stride", Ty::U64, "Elements between batches of v."),
        field("v_seq_stride",   Ty::U64, "Elements between tokens of v."),
        field("v_head_stride",  Ty::U64, "Elements between heads of v."),
        field("o_batch_stride", Ty::U64, "Elements between batches of o."),
        field("o_seq_stride",   Ty::U64, "Elements between tokens of o."),
        field("o_head_stride",  Ty::U64, "Elements between heads of o."),
        field("group_reciprocal", Ty::U64, "2^32 / (query heads per KV head), rounded up: turns a query head into its KV head without a division."),
        field("q_len",          Ty::U32, "Query tokens."),
        field("kv_len",         Ty::U32, "Key and value tokens."),
        field("q_heads",        Ty::U32, "Query heads."),
        field("longest_first",  Ty::U32, "Tiles of a head that blocks take from the last one down; the others follow from the first one up."),
        field("causal",         Ty::U32, "1: causal mask aligned to the bottom right; 0: every key is visible."),
        field("scale_log2",     Ty::F32, "Softmax scale times log2(e)."),
    ],
};

/// Every layout, in the order in which they are written.
static LAYOUTS: [&Layout; 1] = [&PREFILL];

impl Layout {
    /// Byte offset and type of a field.
    ///
    /// # Panics
    /// If the layout has no such field: a mistake in a kernel, found by generating it.
    pub fn field(&self, name: &str) -> (u32, Ty) {
        self.offsets()
            .find(|(f, _)| f.name == name)
            .map(|(f, offset)| (offset, f.ty))
            .unwrap_or_else(|| panic!("{} has no field {name}", self.name))
    }

    /// Size in bytes, a multiple of 8.
    pub fn size(&self) -> u32 {
        self.offsets().last().map_or(0, |(f, offset)| (offset + bytes(f.ty)).next_multiple_of(8))
    }

    fn offsets(&self) -> impl Iterator<Item = (&Field, u32)> {
        let mut end = 0_u32;
        self.fields.iter().map(move |f| {
            let offset = end.next_multiple_of(bytes(f.ty));
            end = offset + bytes(f.ty);
            (f, offset)
        })
    }
}

fn bytes(ty: Ty) -> u32 {
    match ty {
        Ty::U64 => 8,
        Ty::U32 | Ty::S32 | Ty::B32 | Ty::F32 => 4,
        Ty::B16 => 2,
        Ty::Pred => unreachable!("a predicate is not a parameter"),
    }
}

fn rust_type(ty: Ty) -> &'static str {
    match ty {
        Ty::U64 => "u64",
        Ty::U32 | Ty::B32 => "u32",
        Ty::S32 => "i32",
        Ty::F32 => "f32",
        Ty::B16 => "u16",
        Ty::Pred => unreachable!("a predicate is not a parameter"),
    }
}

/// The `#[repr(C)]` structs, as Rust source.
pub(crate) fn rust_source() -> String {
    let mut source = String::new();
    for layout in LAYOUTS {
        let _ = writeln!(source, "/// {}", layout.doc);
        let _ = writeln!(source, "#[repr(C)]\n#[derive(Clone, Copy, Debug)]\npub struct {} {{", layout.name);
        for field in layout.fields {
            let _ = writeln!(source, "    /// {}\n    pub {}: {},", field.doc, field.name, rust_type(field.ty));
        }
        let _ = writeln!(source, "}}");
        let _ = writeln!(
            source,
            "const _: () = assert!(core::mem::size_of::<{}>() == {} && core::mem::align_of::<{}>() == 8);",
            layout.name,
            layout.size(),
            layout.name
        );
        for (field, offset) in layout.offsets() {
            let _ = writeln!(source, "const _: () = assert!(core::mem::offset_of!({}, {}) == {offset});", layout.name, field.name);
        }
    }
    source
}

/// A hash of every layout's names, types and offsets (FNV-1a): a build script and a generator that
/// disagree about it must not work together.
pub fn layout_hash() -> u64 {
    let mut text = String::new();
    for layout in LAYOUTS {
        for (field, offset) in layout.offsets() {
            let _ = writeln!(text, "{} {} {} {offset}", layout.name, field.name, rust_type(field.ty));
        }
    }
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
