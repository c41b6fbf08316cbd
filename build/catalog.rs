//! Writes `OUT_DIR/catalog.rs`: the kernels as literals of the types in `src/catalog.rs`.
//!
//! The file holds no path and no time, and is the same whenever the kernels and ptxas are. It is included in a
//! module that imports the types and the macro `cubin!`, which includes a file of `OUT_DIR`, aligned.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};

use super::assemble::{Assembled, Cubin};
use super::kernel::Kernel;
use super::manifest::{Arch, Group, Schedule, TensorBox, Variant};
use super::ptxas::Found;
use super::settings::Settings;
use super::{empty_dir, write_file};

/// Writes the catalogue and the cubins that it includes, and puts the generator's `params.rs` beside it.
///
/// # Errors
/// A file that cannot be written.
pub fn write(settings: &Settings, tool: &Found, kernels: &[Kernel], assembled: &[Assembled]) -> Result<()> {
    let version = match tool {
        Found::Ptxas(ptxas) => Some(ptxas.version.as_str()),
        Found::Off | Found::Missing { .. } => None,
    };
    empty_dir(&settings.out("cubin"))?;
    for (kernel, assembled) in kernels.iter().zip(assembled) {
        for cubin in &assembled.cubins {
            write_file(&settings.out(&cubin_file(&kernel.variant, cubin)), &cubin.image)?;
        }
    }
    let params = settings.out("generated").join("params.rs");
    let params = fs::read(&params).with_context(|| format!("cannot read {}", params.display()))?;
    write_file(&settings.out("params.rs"), params)?;
    write_file(&settings.out("catalog.rs"), text(settings, version, kernels, assembled))
}

fn cubin_file(variant: &Variant, cubin: &Cubin) -> String {
    format!("cubin/{}.{}.cubin", variant.name, cubin.arch)
}

fn text(settings: &Settings, version: Option<&str>, kernels: &[Kernel], assembled: &[Assembled]) -> String {
    let archs: Vec<_> = settings.archs.iter().map(|arch| arch_literal(*arch)).collect();
    let mut text = format!(
        "// Written by build/catalog.rs.\n\n\
         /// What this library was built with.\n\
         pub const BUILD: Build = Build {{ ptxas: {version:?}, archs: &[{}], strict: {} }};\n\n\
         /// Every kernel of this build.\n\
         pub static ENTRIES: &[Entry] = &[\n",
        archs.join(", "),
        settings.strict
    );
    let checker = version.map(|version| format!("ptxas {version}")).unwrap_or_default();
    for (kernel, assembled) in kernels.iter().zip(assembled) {
        entry(&mut text, kernel, assembled, &checker);
    }
    text.push_str("];\n");
    text
}

fn entry(text: &mut String, kernel: &Kernel, assembled: &Assembled, checker: &str) {
    let v = &kernel.variant;
    let group = match v.group {
        Group::Packed(ratio) => format!("Group::Packed({ratio})"),
        Group::Any => "Group::Any".to_owned(),
    };
    let cubins: String = assembled.cubins.iter().map(|cubin| cubin_literal(v, cubin, checker)).collect();
    let ptx = kernel.embeds_ptx(&assembled.cubins).then(|| ptx_literal(v, assembled.is_checked.then_some(checker)));
    text.push_str("    Entry {\n");
    let mut field = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "        {name}: {value},");
    };
    field("name", &format!("{:?}", v.name));
    field("family", &format!("{:?}", v.family));
    field("dtype", &format!("DType::{}", v.dtype.to_ascii_uppercase()));
    field("head_dim", &v.head_dim);
    field("v_head_dim", &v.v_head_dim);
    field("group", &group);
    field("mask", &format!("MaskSupport::{:?}", v.mask));
    field("copy_bytes", &v.copy_bytes);
    field("block_q", &v.block_q);
    field("block_kv", &v.block_kv);
    field("threads", &v.threads);
    field("shared_bytes", &v.shared_bytes);
    field("blocks_per_sm", &v.blocks_per_sm);
    field("schedule", &schedule_literal(v));
    field("models", &format!("{:?}", v.models));
    field("cubins", &format!("&[{cubins}]"));
    field("ptx", &ptx.unwrap_or_else(|| "None".to_owned()));
    text.push_str("    },\n");
}

fn schedule_literal(variant: &Variant) -> String {
    match &variant.schedule {
        Schedule::Grid => "Schedule::Grid".to_owned(),
        Schedule::Persistent(boxes, cluster) => {
            let together: Vec<u32> = (1..=variant.blocks_per_sm).collect();
            format!("Schedule::Persistent {{ boxes: {}, cluster: {cluster}, together: &{together:?} }}", boxes_literal(boxes))
        }
        Schedule::Split(boxes, clusters) => {
            format!("Schedule::Split {{ boxes: {}, clusters: &{clusters:?} }}", boxes_literal(boxes))
        }
    }
}

fn boxes_literal(boxes: &[TensorBox; 4]) -> String {
    let [q, k, v, o] =
        boxes.map(|[columns, rows, chunks]| format!("TensorBox {{ columns: {columns}, heads: 1, rows: {rows}, chunks: {chunks} }}"));
    format!("Boxes {{ q: {q}, k: {k}, v: {v}, o: {o} }}")
}

fn cubin_literal(variant: &Variant, cubin: &Cubin, checker: &str) -> String {
    let (file, arch) = (cubin_file(variant, cubin), arch_literal(cubin.arch));
    let Cubin { registers, spill_bytes, .. } = cubin;
    format!(
        "Cubin {{ arch: {arch}, image: cubin!(concat!(env!(\"OUT_DIR\"), \"/{file}\")), registers: {registers}, spill_bytes: {spill_bytes}, \
         checked_by: {checker:?} }},"
    )
}

fn ptx_literal(variant: &Variant, checker: Option<&str>) -> String {
    let (name, target) = (&variant.name, arch_literal(variant.target));
    let (major, minor) = variant.ptx_version;
    format!(
        "Some(Ptx {{ text: include_str!(concat!(env!(\"OUT_DIR\"), \"/ptx/{name}.ptx\")), version: ({major}, {minor}), \
         target: {target}, checked_by: {checker:?} }})"
    )
}

fn arch_literal(arch: Arch) -> String {
    let Arch { major, minor, specific } = arch;
    format!("Arch {{ major: {major}, minor: {minor}, specific: {specific} }}")
}
