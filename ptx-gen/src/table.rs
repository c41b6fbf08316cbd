//! The tilings and the pairs of head_dim and ratio, as data. A row here is all that a new variant of a
//! family needs.

use crate::kernels::{prefill_mma, prefill_wgmma};
use crate::variant::{DType, Family, Form, Group, Mask, Tiles, Tiling, Variant};

/// A head_dim, the query heads per KV head, and published models that have both.
pub struct Pair {
    /// Elements of a head.
    pub head_dim: u32,
    /// Query heads per KV head.
    pub group: u32,
    /// Models.
    pub models: &'static str,
}

const fn pair(head_dim: u32, group: u32, models: &'static str) -> Pair {
    Pair { head_dim, group, models }
}

/// The pairs that published models use.
#[rustfmt::skip]
pub static PAIRS: &[Pair] = &[
    pair( 64,  1, "GPT-2, Whisper"),
    pair( 64,  3, "SmolLM2-135M, SmolLM2-360M"),
    pair( 64,  4, "Llama-3.2-1B"),
    pair( 64,  7, "Qwen2.5-0.5B"),
    pair( 64,  8, "gpt-oss, TinyLlama"),
    pair( 80,  1, "Phi-2"),
    pair( 96,  1, "Phi-3-mini"),
    pair(128,  1, "Llama-2"),
    pair(128,  2, "Qwen3-0.6B, Qwen3-1.7B"),
    pair(128,  3, "Llama-3.2-3B, Phi-4-mini"),
    pair(128,  4, "Llama-3-8B, Mistral-7B, Qwen3-8B"),
    pair(128,  5, "Qwen2.5-14B"),
    pair(128,  6, "Qwen2.5-1.5B"),
    pair(128,  7, "Qwen2.5-7B"),
    pair(128,  8, "Llama-3-70B, Qwen3-32B"),
    pair(128, 16, "Llama-3-405B, Qwen3-235B"),
    pair(192,  1, "DeepSeek-V3 (MLA prefill)"),
    pair(256,  1, "Gemma-7B"),
    pair(256,  2, "Gemma-2-9B, Gemma-3-4B, Gemma-3-12B"),
    pair(256,  4, "Gemma-3-270M, Gemma-3-1B"),
    pair(256,  8, "Gemma-2B"),
];

/// Which ratios a row serves.
#[derive(Clone, Copy)]
enum Heads {
    /// One variant for each ratio above 1 of [`PAIRS`], causal: the ratio shapes the tile. It pays where a
    /// head has fewer query tokens than a tile has rows (2.3 times at 16 tokens over 4,096 keys, ratio 4,
    /// batch 16; H200, 2026-11-30) and nowhere else, so only the short form has it.
    Packed,
    /// One variant that takes ratio and mask as launch parameters; its models are those without groups.
    Parameter,
    /// One variant for each mask that takes the ratio as a launch parameter.
    ByMask,
    /// One variant, for the causal mask, that takes the ratio as a launch parameter.
    CausalOnly,
    /// The same for the full mask.
    FullOnly,
}

/// Element types that a row serves.
#[derive(Clone, Copy)]
enum Precision {
    /// f16 and bf16.
    Half,
    /// f32.
    Single,
}

impl Precision {
    const fn dtypes(self) -> &'static [DType] {
        match self {
            Precision::Half => &[DType::F16, DType::Bf16],
            Precision::Single => &[DType::F32],
        }
    }
}

struct Row {
    precision: Precision,
    heads: Heads,
    tiling: Tiling,
}

/// Tile sizes: (block_q, block_kv, warps, blocks per multiprocessor).
type Blocks = (u32, u32, u32, u32);

const fn row(precision: Precision, head_dim: u32, heads: Heads, form: Form, tiles: Tiles, blocks: Blocks) -> Row {
    let (block_q, block_kv, warps, blocks_per_sm) = blocks;
    let tiling = Tiling { head_dim, value_dim: head_dim, block_q, block_kv, warps, form, blocks_per_sm, tiles };
    prefill_mma::assert_legal(&tiling, precision.dtypes()[0]);
    Row { precision, heads, tiling }
}

/// A row of the Hopper family.
const fn hopper((head_dim, value_dim): (u32, u32), heads: Heads, form: Form, blocks: Blocks) -> Row {
    let (block_q, block_kv, warps, blocks_per_sm) = blocks;
    let tiling = Tiling { head_dim, value_dim, block_q, block_kv, warps, form, blocks_per_sm, tiles: Tiles::Hopper };
    prefill_wgmma::assert_legal(&tiling);
    Row { precision: Precision::Half, heads, tiling }
}

use Form::{Long, Main, Medium, Paired, Short, ShortSplit, Split, Unaligned};
use Heads::{ByMask, CausalOnly, FullOnly, Packed, Parameter};
use Precision::{Half, Single};
use Tiles::{Everywhere, Large, Small};

/// Every family and its rows.
static FAMILIES: &[(&Family, &[Row])] =
    &[(&prefill_mma::PREFILL_MMA, PREFILL_MMA_ROWS), (&prefill_wgmma::PREFILL_WGMMA, PREFILL_WGMMA_ROWS)];

#[rustfmt::skip]
static PREFILL_MMA_ROWS: &[Row] = &[
    //  precision  D   ratio      made for   serves      (q,  kv, warps, blocks per SM)
    row(Half,      64, Packed,    Short,     Everywhere, ( 64,  64, 4, 3)),
    row(Half,      64, Parameter, Main,      Everywhere, (128, 128, 4, 2)),
    row(Half,      64, Parameter, Short,     Everywhere, ( 64,  64, 4, 3)),
    row(Half,     128, Packed,    Short,     Everywhere, ( 64,  64, 4, 2)),
    row(Half,     128, Parameter, Main,      Large,      (128,  64, 4, 2)),
    row(Half,     128, Parameter, Main,      Small,      (128,  32, 4, 2)),
    row(Half,     128, Parameter, Short,     Everywhere, ( 64,  64, 4, 2)),
    row(Single,    64, Parameter, Main,      Large,      ( 64,  64, 4, 2)),
    row(Single,    64, Parameter, Main,      Small,      ( 64,  32, 4, 2)),
    row(Single,   128, Parameter, Main,      Everywhere, ( 64,  32, 4, 2)),
    row(Half,      64, Parameter, Unaligned, Everywhere, ( 64,  64, 4, 3)),
    row(Half,     128, Parameter, Unaligned, Everywhere, ( 64,  64, 4, 2)),
    row(Single,    64, Parameter, Unaligned, Everywhere, ( 64,  32, 4, 2)),
    row(Single,   128, Parameter, Unaligned, Everywhere, ( 64,  32, 4, 2)),
];

#[rustfmt::skip]
static PREFILL_WGMMA_ROWS: &[Row] = &[
    //     (D,  value) ratio       made for    (q,  kv, warps, blocks per SM)
    hopper(( 64,  64), ByMask,     ShortSplit, ( 64, 128,  8, 2)),
    hopper(( 64,  64), ByMask,     Split,      (128, 128, 12, 1)),
    // 200 tokens of 40 heads, causal: 4.8 us with steps of 64 keys, 5.2 with 128; 1,500 of 20, full: 31.8 and 28.7.
    hopper(( 64,  64), CausalOnly, Short,      ( 64,  64,  8, 2)),
    hopper(( 64,  64), FullOnly,   Short,      ( 64, 128,  8, 2)),
    hopper(( 64,  64), ByMask,     Medium,     (128, 128, 12, 1)),
    hopper(( 64,  64), ByMask,     Main,       (192, 128, 16, 1)),
    hopper(( 80,  80), ByMask,     Main,       (128, 128, 12, 1)),
    hopper(( 80,  80), ByMask,     Long,       (192,  96, 16, 1)),
    hopper(( 96,  96), ByMask,     ShortSplit, ( 64, 128,  8, 2)),
    hopper(( 96,  96), ByMask,     Split,      (128, 128, 12, 1)),
    hopper(( 96,  96), ByMask,     Short,      ( 64,  64,  8, 2)),
    hopper(( 96,  96), ByMask,     Main,       (128, 128, 12, 1)),
    hopper(( 96,  96), ByMask,     Long,       (192, 112, 16, 1)),
    // 96 keys are the most for which two blocks have room.
    hopper((128, 128), ByMask,     ShortSplit, ( 64,  96,  8, 2)),
    hopper((128, 128), ByMask,     Split,      (128, 128, 12, 1)),
    hopper((128, 128), ByMask,     Short,      ( 64,  64,  8, 2)),
    hopper((128, 128), ByMask,     Main,       (128, 128, 12, 1)),
    hopper((128, 128), ByMask,     Long,       (192,  64, 16, 1)),
    hopper((128, 128), CausalOnly, Paired,     (128, 128, 12, 1)),
    hopper((192, 128), ByMask,     Main,       (128, 128, 12, 1)),
    hopper((192, 192), ByMask,     Main,       (128,  64, 12, 1)),
    hopper((256, 256), ByMask,     ShortSplit, ( 64,  64,  8, 1)),
    hopper((256, 256), ByMask,     Split,      (128,  64, 12, 1)),
    hopper((256, 256), ByMask,     Short,      ( 64,  64,  8, 1)),
    hopper((256, 256), ByMask,     Main,       (128,  64, 12, 1)),
    hopper((256, 256), ByMask,     Paired,     (128,  64, 12, 1)),
];

/// Every variant that is packaged, in the order of the table.
pub fn variants() -> Vec<Variant> {
    let mut variants = of(FAMILIES);
    let all = variants.clone();
    let sizes = |v: &Variant| (v.dtype, v.tiling.head_dim, v.tiling.value_dim);
    for variant in &mut variants {
        let on_hopper = |v: &Variant| v.tiling.tiles == Tiles::Hopper && sizes(v) == sizes(variant);
        let is_older = variant.tiling.form != Unaligned && variant.tiling.tiles != Tiles::Hopper;
        variant.superseded_on_hopper = is_older && all.iter().any(on_hopper);
    }
    variants
}

fn of(families: &'static [(&'static Family, &'static [Row])]) -> Vec<Variant> {
    let mut variants = Vec::new();
    for (family, row) in families.iter().flat_map(|(family, rows)| rows.iter().map(move |row| (*family, row))) {
        for &dtype in row.precision.dtypes() {
            let variant =
                |group, mask, models| Variant { family, dtype, group, mask, tiling: row.tiling, models, superseded_on_hopper: false };
            let pairs = PAIRS.iter().filter(|pair| pair.head_dim == row.tiling.head_dim);
            if matches!(row.heads, Heads::Packed) {
                let packed = pairs.clone().filter(|pair| pair.group > 1);
                variants.extend(packed.map(|pair| variant(Group::Packed(pair.group), Mask::Causal, pair.models)));
            }
            let masks: &[Mask] = match row.heads {
                Heads::Packed => &[],
                Heads::Parameter => &[Mask::Any],
                Heads::ByMask => &[Mask::Causal, Mask::Full],
                Heads::CausalOnly => &[Mask::Causal],
                Heads::FullOnly => &[Mask::Full],
            };
            let mut ungrouped = pairs.filter(|pair| pair.group == 1).map(|pair| pair.models);
            let models = ungrouped.next_back().unwrap_or_default();
            variants.extend(masks.iter().map(|mask| variant(Group::Any, *mask, models)));
        }
    }
    variants
}
