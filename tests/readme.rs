//! The README says what is so: its tables, its commands, its code and the messages that it quotes.

mod build_support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use attnpack::{Alignment, Capability, DType, Mask, Policy, Problem, Shape, dispatch};
use build_support::empty_folder;
use build_support::script::build::manifest::{self, Arch, Contract, Group, Mask as MaskKind, Variant};
use build_support::script::build::{search, settings};

const README: &str = include_str!("../README.md");
const CARGO_TOML: &str = include_str!("../Cargo.toml");
const CI: &str = include_str!("../.ci/run");
const HEADER: &str = include_str!("../include/attnpack.h");
const SETTINGS: &str = include_str!("../build/settings.rs");
const THIS: &str = include_str!("readme.rs");

/// The README's main job and its test command.
const COMMANDS: [&str; 2] = ["cargo run --release --example prefill", "cargo test --workspace --release"];

/// Settings that are no settings of the build.
const RUN_TIME_SETTINGS: [&str; 2] = ["ATTNPACK_REQUIRE_GPU", "ATTNPACK_LIBRARY"];

#[test]
fn the_support_table_is_the_catalogue() {
    assert_section("support", &support_table(&all_variants("readme_support")));
}

#[test]
fn the_table_of_packed_ratios_is_the_catalogue() {
    assert_section("packed", &packed_table(&all_variants("readme_packed")));
}

/// What the generator makes is what this build packaged, as far as its features and settings go.
#[test]
fn the_packaged_kernels_are_in_the_support_table() {
    let variants = all_variants("readme_packaged");
    for entry in attnpack::catalog() {
        assert!(variants.iter().any(|variant| variant.name == entry.name), "{}", entry.name);
    }
    if is_filtered() {
        return;
    }
    let packaged: BTreeSet<_> = attnpack::catalog().iter().map(|entry| (entry.dtype.to_string(), entry.head_dim)).collect();
    let generated: BTreeSet<_> = variants.iter().map(|variant| (variant.dtype.clone(), variant.head_dim)).collect();
    assert_eq!(packaged, generated);
}

#[test]
fn the_settings_are_those_of_the_build() {
    let rows: Vec<_> = SETTINGS.lines().filter_map(|line| line.strip_prefix("//! ")).filter(|line| line.starts_with('|')).collect();
    for name in settings::VARIABLES {
        assert!(rows.iter().any(|row| row.starts_with(&format!("| `{name}` |"))), "build/settings.rs documents {name}");
    }
    assert_section("settings", &rows.join("\n"));
    for name in search::VARIABLES {
        assert!(README.contains(&format!("`{name}`")), "README.md says that the search reads {name}");
    }
    let words = README.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    for name in words.filter(|word| word.starts_with("ATTNPACK_")) {
        let exists = settings::VARIABLES.contains(&name) || RUN_TIME_SETTINGS.contains(&name) || HEADER.contains(name);
        assert!(exists, "README.md names {name}, which does not exist");
    }
}

#[test]
fn the_features_are_those_of_the_crate() {
    let features = CARGO_TOML.split("\n[features]\n").nth(1).and_then(|rest| rest.split("\n[").next()).expect("a section");
    let names: BTreeSet<_> = features.lines().filter_map(|line| line.split_once(" = [")).map(|(name, _)| name).collect();
    let names: BTreeSet<_> = names.into_iter().filter(|name| *name != "default").collect();
    let rows = section("features").lines().skip(2);
    let told: BTreeSet<_> = rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(told, names, "the features in README.md and in Cargo.toml");
    let default = features.lines().find_map(|line| line.strip_prefix("default = [")).expect("default features");
    let default = format!("The default is {}.", default.trim_end_matches(']').replace('"', "`"));
    assert!(README.contains(&default), "README.md says: {default}");
}

#[test]
fn the_commands_are_those_of_ci() {
    for command in COMMANDS {
        assert!(README.lines().any(|line| line == command), "README.md has the command `{command}` on a line of its own");
        assert!(CI.contains(&format!("=\"{command}\"\n")), ".ci/run has the command `{command}`");
    }
}

/// Every piece of Rust in the README stands in this file too, between two marks, where it is compiled.
#[test]
fn the_code_is_compiled_here() {
    let compiled: Vec<_> =
        THIS.split("// README {\n").skip(1).filter_map(|rest| rest.split("// } README").next()).map(unindented).collect();
    let told: Vec<_> = README.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(told.len(), compiled.len(), "pieces of Rust in README.md and in tests/readme.rs");
    for (told, compiled) in told.iter().zip(&compiled) {
        assert_eq!(told, compiled, "put into README.md what tests/readme.rs compiles:\n\n{compiled}");
    }
}

/// Without a GPU the code of the README ends with the error that the README quotes; with one, it runs.
#[test]
fn the_code_runs() {
    if let Err(error) = prefill() {
        let error = error.downcast::<attnpack::Error>().expect("nothing else fails");
        assert!(matches!(*error, attnpack::Error::DriverMissing { .. } | attnpack::Error::NoDevice), "{error}");
    }
    packed_and_cached(3, 512).expect("a legal layout");
}

#[test]
fn the_messages_are_those_of_the_library() {
    if is_filtered() {
        return;
    }
    let shape = Shape { batch: 1, q_len: 1, kv_len: 1, q_heads: 1, kv_heads: 1, head_dim: 72 };
    let device = Capability { major: 8, minor: 9, shared_optin_bytes: 99 << 10, multiprocessors: 128 };
    let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build().expect("legal");
    let refused = dispatch(&problem, Alignment::of_strides(&problem), device, Policy::CubinFirst, attnpack::catalog());
    let message = refused.expect_err("no kernel has this head_dim").to_string();
    assert!(README.lines().any(|line| line == message), "README.md quotes:\n{message}");
}

// The code of the README.

fn prefill() -> Result<(), Box<dyn std::error::Error>> {
    // README {
    use attnpack::{DType, Device, Mask, Policy, Problem, Shape};
    use half::bf16;

    let device = Device::new(0)?.with_policy(Policy::CubinOnly);
    let stream = device.context().ok_or("this device has no context")?.default_stream();

    // Llama-3-8B: 512 new tokens after 1536 that are in the cache already.
    let shape = Shape { batch: 1, q_len: 512, kv_len: 2048, q_heads: 32, kv_heads: 8, head_dim: 128 };
    let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build()?;
    device.warm_up(&[problem])?;

    let q = stream.alloc_zeros::<bf16>(512 * 32 * 128)?;
    let k = stream.alloc_zeros::<bf16>(2048 * 8 * 128)?;
    let v = stream.alloc_zeros::<bf16>(2048 * 8 * 128)?;
    let mut o = stream.alloc_zeros::<bf16>(512 * 32 * 128)?;
    let launched = device.prefill(&stream, &problem, &q, &k, &v, &mut o, None)?;
    println!("{launched}"); // which kernel, which machine code, which grid
    stream.synchronize()?;
    // } README
    Ok(())
}

#[rustfmt::skip]
fn packed_and_cached(tokens: u32, capacity: u32) -> Result<attnpack::Problem, attnpack::Error> {
    // README {
    use attnpack::{DType, Mask, Problem, Shape, Strides};

    let shape = Shape { batch: 1, q_len: tokens, kv_len: tokens, q_heads: 12, kv_heads: 2, head_dim: 128 };
    // q is the first columns of a fused projection [tokens, (12 + 2 + 2) * 128].
    let packed = Strides::packed_rows((12 + 2 + 2) * 128, 128, tokens);
    // k and v are caches [batch, kv_heads, capacity, head_dim], of which the first tokens are filled.
    let cache = Strides::head_major(2, capacity, 128);
    let problem = Problem::prefill(DType::F16, shape)
        .mask(Mask::Causal)
        .q_strides(packed)
        .k_strides(cache)
        .v_strides(cache)
        .build()?;
    // } README
    Ok(problem)
}

// Reading and writing.

/// The text between two marks of the README.
fn section(name: &str) -> &'static str {
    let (begin, end) = (format!("<!-- {name}: checked by tests/readme.rs -->\n"), format!("<!-- end of {name} -->"));
    let text = README.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
    text.unwrap_or_else(|| panic!("README.md has no lines\n{begin}…\n{end}")).0.trim()
}

#[track_caller]
fn assert_section(name: &str, expected: &str) {
    assert!(section(name) == expected.trim(), "put this between the marks '{name}' of README.md:\n\n{expected}\n");
}

fn unindented(text: &str) -> String {
    let lines = text.lines().map(|line| line.strip_prefix("    ").unwrap_or(line).trim_end());
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned() + "\n"
}

/// Whether this build left out kernels, which the README knows nothing of.
fn is_filtered() -> bool {
    option_env!("ATTNPACK_VARIANTS").is_some_and(|patterns| !patterns.is_empty())
}

/// Every variant that the generator knows, whatever the features and settings of this build.
fn all_variants(folder: &str) -> Vec<Variant> {
    let dir = empty_folder(folder);
    let args = ["emit", "--out", dir.to_str().expect("a UTF-8 path")].map(str::to_owned);
    ptx_gen::cli::run(&args, &mut std::io::sink()).expect("the generator runs");
    let text = fs::read_to_string(dir.join("manifest.txt")).expect("a manifest");
    let contract = Contract { format: ptx_gen::manifest::FORMAT, params_hash: ptx_gen::params::layout_hash() };
    manifest::parse(&text, &contract).expect("the manifest of this release")
}

/// One row for the element types that have the same support, for each head_dim.
///
/// A row claims its full product: every ratio, mask, alignment and architecture together.
fn support_table(variants: &[Variant]) -> String {
    // Element types by head_dims, architectures and alignments.
    type Row = ([u32; 2], Vec<Arch>, Vec<u32>);
    let mut rows: BTreeMap<Row, Vec<&str>> = BTreeMap::new();
    for dtype in ["f16", "bf16", "f32"] {
        let sizes = |v: &Variant| [v.head_dim, v.v_head_dim];
        let head_dims: BTreeSet<_> = variants.iter().filter(|v| v.dtype == dtype).map(sizes).collect();
        for head_dim in head_dims {
            let of_row: Vec<_> = variants.iter().filter(|v| v.dtype == dtype && sizes(v) == head_dim).collect();
            let archs: BTreeSet<_> = of_row.iter().flat_map(|v| &v.archs).map(|arch| arch.feature()).collect();
            let alignments: BTreeSet<_> = of_row.iter().map(|v| v.copy_bytes).collect();
            for (arch, copy_bytes) in archs.iter().flat_map(|arch| alignments.iter().map(move |bytes| (arch, *bytes))) {
                // Kernels that copy by 4 bytes serve rows on 16, too.
                let serves = |v: &&&Variant| v.archs.iter().any(|a| a.feature() == *arch) && v.copy_bytes <= copy_bytes;
                let served = [MaskKind::Causal, MaskKind::Full].into_iter().all(|mask| {
                    let mut serving = of_row.iter().filter(serves);
                    serving.any(|v| v.group == Group::Any && (v.mask == mask || v.mask == MaskKind::Any))
                });
                assert!(
                    served,
                    "{dtype}, head_dim {head_dim:?}, {arch}: not every ratio and mask for rows on {copy_bytes} bytes; rewrite the table"
                );
            }
            // README: what is for Hopper only has no PTX for other GPUs.
            let portable = of_row.iter().any(|v| v.portable);
            assert_eq!(portable, archs.len() > 1, "{dtype}, head_dim {head_dim:?}: portable PTX; rewrite the README");
            let alignments = alignments.into_iter().rev().collect();
            rows.entry((head_dim, archs.into_iter().collect(), alignments)).or_default().push(dtype);
        }
    }
    let mut text = String::from(
        "| head_dim | element types | query heads per KV head | masks | rows start on | machine code for |\n|---|---|---|---|---|---|\n",
    );
    for (([head_dim, v_head_dim], archs, alignments), dtypes) in rows {
        let head_dim = if head_dim == v_head_dim { head_dim.to_string() } else { format!("{head_dim}, of v and o {v_head_dim}") };
        let archs = archs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let starts = if alignments == [16, 4] { "16 bytes, or 4" } else { "16 bytes" };
        text.push_str(&format!("| {head_dim} | {} | any | full, causal | {starts} | {archs} |\n", dtypes.join(", ")));
    }
    text
}

/// The ratios with kernels of their own.
fn packed_table(variants: &[Variant]) -> String {
    let mut rows: BTreeMap<(u32, u32), (BTreeSet<&str>, &str)> = BTreeMap::new();
    for variant in variants {
        if let Group::Packed(ratio) = variant.group {
            assert!(variant.mask == MaskKind::Causal, "{}: the table says that packed kernels are causal; rewrite it", variant.name);
            let row = rows.entry((variant.head_dim, ratio)).or_default();
            row.0.insert(&variant.dtype);
            row.1 = &variant.models;
        }
    }
    let mut text = String::from("| head_dim | query heads per KV head | element types | heads shaped like those of |\n|---|---|---|---|\n");
    for ((head_dim, ratio), (dtypes, models)) in rows {
        let dtypes = dtypes.into_iter().rev().collect::<Vec<_>>().join(", ");
        text.push_str(&format!("| {head_dim} | {ratio} | {dtypes} | {models} |\n"));
    }
    text
}
