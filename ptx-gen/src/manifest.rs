//! The manifest that `emit` writes beside the PTX: what the build script reads, and nothing else.

use std::fmt::Write;

use crate::params;
use crate::ptx::inst::PtxVersion;
use crate::variant::{Boxes, Launch, Variant};

/// Version of the manifest's format. A build script refuses any other.
pub const FORMAT: u32 = 5;

/// Largest spill (stores and loads, bytes) that `ptxas` may report: the kernels are spill-free.
const SPILL_BYTES: u32 = 0;

/// The first lines: format and parameter layout.
pub(crate) fn header() -> String {
    format!("attnpack-manifest\t{FORMAT}\nparams\t{:016x}\n", params::layout_hash())
}

/// The line of a variant: tab-separated `key=value` fields.
pub(crate) fn line(variant: &Variant, version: PtxVersion) -> String {
    let tiling = &variant.tiling;
    let mut line = String::from("variant");
    let mut field = |key: &str, value: &dyn std::fmt::Display| {
        let _ = write!(line, "\t{key}={value}");
    };
    field("name", &variant.name());
    field("family", &variant.family.name);
    field("dtype", &variant.dtype);
    field("head_dim", &tiling.head_dim);
    field("value_dim", &tiling.value_dim);
    field("group", &variant.group);
    field("mask", &variant.mask);
    field("form", &tiling.form);
    field("copy_bytes", &tiling.form.copy_bytes());
    field("block_q", &tiling.block_q);
    field("block_kv", &tiling.block_kv);
    field("blocks_per_sm", &tiling.blocks_per_sm);
    field("threads", &tiling.threads());
    field("shared_bytes", &variant.shared_bytes());
    field("params", &variant.family.params.name);
    field("launch", &launch(variant));
    field("spill_bytes", &SPILL_BYTES);
    field("ptx_version", &version);
    field("target", &variant.family.target);
    field("archs", &variant.archs().collect::<Vec<_>>().join(","));
    field("portable", &u32::from(variant.is_portable()));
    field("models", &variant.models);
    line.push('\n');
    line
}

/// `grid`; `persistent:`, how many blocks take neighbouring tiles together, `:` and the boxes of the tensor maps, columns x
/// rows x chunks of q, k, v and o; or, where the keys of a tile are split, `split:`, the sizes that a cluster can have, `:` and
/// the boxes.
fn launch(variant: &Variant) -> String {
    match variant.family.launch {
        Launch::Grid => "grid".to_owned(),
        Launch::ByMap { boxes, clusters } => {
            let Boxes { q, k, v, o } = boxes(variant);
            let boxes = [q, k, v, o].map(|b| format!("{}x{}x{}", b.columns, b.rows, b.chunks));
            let sizes = |blocks: &[u32]| blocks.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let split = clusters(&variant.tiling).map(|clusters| format!("split:{}", sizes(clusters)));
            let schedule = split.unwrap_or_else(|| format!("persistent:{}", variant.tiling.form.neighbours()));
            format!("{schedule}:{}", boxes.join(","))
        }
    }
}
