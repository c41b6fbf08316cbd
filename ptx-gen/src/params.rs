//! Kernel parameters, written once: the PTX offsets and the Rust struct come from this table.

use std::fmt::Write;

use crate::ptx::types::Ty;

/// One field of a parameter block.
#[derive(Debug)]
pub struct Field {
    /// Name, in PTX builder calls and in the Rust struct.
    pub name: &'static str,
    /// Type.
    pub ty: FieldType,
    /// Meaning, shape and unit.
    pub doc: &'static str,
}

/// Type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// A number.
    Scalar(Ty),
    /// A tensor map: 128 bytes, aligned to 64, as `cuTensorMapEncodeTiled` writes it.
    TensorMap,
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
    Field { name, ty: FieldType::Scalar(ty), doc }
}

const fn tensor_map(name: &'static str, doc: &'static str) -> Field {
    Field { name, ty: FieldType::TensorMap, doc }
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

/// Parameters of the prefill kernels that address tensors by tensor maps.
#[rustfmt::skip]
pub static PREFILL_TMA: Layout = Layout {
    name: "PrefillTmaParams",
    doc: "Parameters of the prefill kernels that address tensors by tensor maps of rank 5: `[batch, head_dim / chunk, seq, heads, chunk]`, innermost last.",
    fields: &[
        tensor_map("q", "The queries."),
        tensor_map("k", "The keys."),
        tensor_map("v", "The values."),
        tensor_map("o", "The output."),
        field("lse",            Ty::U64, "Device address of the log-sum-exp, f32 `[batch, q_heads, q_len]` contiguous, natural log; 0: not wanted."),
        field("section_tiles_factor", Ty::U32, "Divides by `section_heads * q_tiles`: x / d = (2x * factor) >> 32 >> shift for x below 2^31, if shift is log2(d), rounded up, and factor is 2^(31 + shift) / d, rounded up."),
        field("section_tiles_shift",  Ty::U32, "See `section_tiles_factor`."),
        field("section_heads_factor", Ty::U32, "Divides by `section_heads`."),
        field("section_heads_shift",  Ty::U32, "Divides by `section_heads`."),
        field("heads_factor",   Ty::U32, "Divides by `heads`."),
        field("heads_shift",    Ty::U32, "Divides by `heads`."),
        field("group_factor",   Ty::U32, "Divides by the query heads per KV head."),
        field("group_shift",    Ty::U32, "Divides by the query heads per KV head."),
        field("cluster_factor", Ty::U32, "Divides by the blocks of a cluster."),
        field("cluster_shift",  Ty::U32, "Divides by the blocks of a cluster."),
        field("tiles",          Ty::U32, "Tiles of the problem, `q_tiles * heads * batch`; below 2^23 where blocks claim them, below 2^31 where keys are split. Where blocks take neighbouring tiles together, these count as one."),
        field("q_tiles",        Ty::U32, "Tiles of a head: `q_len / tile_tokens`, rounded up; as many neighbours as blocks take together count as one."),
        field("section_heads",  Ty::U32, "Heads (of all batches) whose tiles are taken together, longest first; divides `heads * batch`."),
        field("heads",          Ty::U32, "Query heads; KV heads where keys are split."),
        field("q_len",          Ty::U32, "Query tokens."),
        field("kv_len",         Ty::U32, "Key and value tokens, at least 1."),
        field("scale_log2",     Ty::F32, "Softmax scale times log2(e), above 0."),
        field("packed_heads",   Ty::U32, "Query heads whose rows share a tile: those of a group where keys are split, else 1."),
        field("tile_tokens",    Ty::U32, "Query tokens of a tile."),
    ],
};

/// Every layout, in the order in which they are written.
static LAYOUTS: [&Layout; 2] = [&PREFILL, &PREFILL_TMA];

impl Layout {
    /// Byte offset and type of a field.
    ///
    /// # Panics
    /// If the layout has no such field: a mistake in a kernel, found by generating it.
    pub fn field(&self, name: &str) -> (u32, FieldType) {
        self.offsets()
            .find(|(f, _)| f.name == name)
            .map(|(f, offset)| (offset, f.ty))
            .unwrap_or_else(|| panic!("{} has no field {name}", self.name))
    }

    /// Size in bytes, a multiple of the alignment.
    pub fn size(&self) -> u32 {
        self.offsets().last().map_or(0, |(f, offset)| (offset + f.ty.bytes()).next_multiple_of(self.align()))
    }

    /// Alignment in bytes.
    pub fn align(&self) -> u32 {
        self.fields.iter().map(|f| f.ty.align()).max().unwrap_or(1)
    }

    fn offsets(&self) -> impl Iterator<Item = (&Field, u32)> {
        let mut end = 0_u32;
        self.fields.iter().map(move |f| {
            let offset = end.next_multiple_of(f.ty.align());
            end = offset + f.ty.bytes();
            (f, offset)
        })
    }
}

impl FieldType {
    fn bytes(self) -> u32 {
        match self {
            FieldType::TensorMap => 128,
            FieldType::Scalar(Ty::U64) => 8,
            FieldType::Scalar(Ty::U32 | Ty::S32 | Ty::B32 | Ty::F32) => 4,
            FieldType::Scalar(Ty::B16) => 2,
            FieldType::Scalar(Ty::Pred) => unreachable!("a predicate is not a parameter"),
        }
    }

    fn align(self) -> u32 {
        if self == FieldType::TensorMap { 64 } else { self.bytes() }
    }

    fn rust_type(self) -> &'static str {
        match self {
            FieldType::TensorMap => "TensorMap",
            FieldType::Scalar(Ty::U64) => "u64",
            FieldType::Scalar(Ty::U32 | Ty::B32) => "u32",
            FieldType::Scalar(Ty::S32) => "i32",
            FieldType::Scalar(Ty::F32) => "f32",
            FieldType::Scalar(Ty::B16) => "u16",
            FieldType::Scalar(Ty::Pred) => unreachable!("a predicate is not a parameter"),
        }
    }
}

/// The type of a tensor map field.
const TENSOR_MAP: &str = "/// A tensor map, as `cuTensorMapEncodeTiled` writes it.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct TensorMap(pub [u64; 16]);
";

/// The `#[repr(C)]` structs, as Rust source.
pub(crate) fn rust_source() -> String {
    let mut source = String::from(TENSOR_MAP);
    for layout in LAYOUTS {
        let _ = writeln!(source, "/// {}", layout.doc);
        let _ = writeln!(source, "#[repr(C)]\n#[derive(Clone, Copy, Debug)]\npub struct {} {{", layout.name);
        for field in layout.fields {
            let _ = writeln!(source, "    /// {}\n    pub {}: {},", field.doc, field.name, field.ty.rust_type());
        }
        let _ = writeln!(source, "}}");
        let _ = writeln!(
            source,
            "const _: () = assert!(core::mem::size_of::<{}>() == {} && core::mem::align_of::<{}>() == {});",
            layout.name,
            layout.size(),
            layout.name,
            layout.align()
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
            let _ = writeln!(text, "{} {} {} {offset}", layout.name, field.name, field.ty.rust_type());
        }
    }
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
