//! The generator's command line: what `build.rs` and people rely on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn run(args: &[&str]) -> Result<String, String> {
    let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
    let mut out = Vec::new();
    ptx_gen::cli::run(&args, &mut out)?;
    Ok(String::from_utf8(out).expect("the output is UTF-8"))
}

/// An empty directory of this test.
fn dir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    dir
}

fn emit(dir: &Path, options: &[&str]) -> Result<BTreeMap<String, String>, String> {
    let mut args = vec!["emit", "--out", dir.to_str().expect("a UTF-8 path")];
    args.extend(options);
    run(&args)?;
    let read = |e: fs::DirEntry| (e.file_name().into_string().expect("UTF-8"), fs::read_to_string(e.path()).expect("readable"));
    Ok(fs::read_dir(dir).expect("written").map(|e| read(e.expect("an entry"))).collect())
}

fn names() -> Vec<String> {
    let list = run(&["list"]).expect("list");
    list.lines().skip(1).map(|l| l.split_whitespace().next().expect("a name").to_owned()).collect()
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let first = emit(&dir("same-1"), &[]).expect("emit");
    let second = emit(&dir("same-2"), &[]).expect("emit");
    let list = run(&["list"]).expect("list");
    let packaged = list.lines().skip(1).filter(|line| !line.contains("not packaged yet")).count();
    assert_eq!(first.len(), packaged + 2, "a file for each variant, the manifest and params.rs");
    assert!(first == second);
}

#[test]
fn names_are_unique_and_are_the_entry_points() {
    let mut names = names();
    for name in &names {
        let ptx = run(&["show", name]).expect("show");
        assert!(ptx.contains(&format!(".visible .entry {name}(")), "{name}");
        assert!(ptx.is_ascii(), "{name}");
    }
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn every_instruction_has_its_rust_line_and_nothing_of_this_machine() {
    for name in names() {
        let ptx = run(&["show", &name]).expect("show");
        for line in ptx.lines().filter(|l| l.starts_with('\t') && !l.starts_with("\t.reg") && *l != "\tret;") {
            let (_, origin) = line.split_once("\t// ").unwrap_or_else(|| panic!("{name}: no origin: {line}"));
            let (file, number) = origin.rsplit_once(':').expect("file:line");
            assert!(file.starts_with("ptx-gen/src/") && number.parse::<u32>().is_ok(), "{name}: {origin}");
            assert!(!file.starts_with("ptx-gen/src/ptx/"), "{name}: the builder's own line says nothing: {origin}");
        }
    }
}

#[test]
fn the_manifest_describes_what_was_written() {
    let files = emit(&dir("manifest"), &["--archs", "sm_90"]).expect("emit");
    let manifest = &files["manifest.txt"];
    let mut lines = manifest.lines();
    assert_eq!(lines.next(), Some(format!("attnpack-manifest\t{}", ptx_gen::manifest::FORMAT).as_str()));
    assert_eq!(lines.next(), Some(format!("params\t{:016x}", ptx_gen::params::layout_hash()).as_str()));
    for line in lines {
        let fields: BTreeMap<_, _> = line.split('\t').skip(1).map(|f| f.split_once('=').expect("key=value")).collect();
        let ptx = &files[&format!("{}.ptx", fields["name"])];
        assert!(ptx.starts_with(&format!(".version {}\n.target {}\n", fields["ptx_version"], fields["target"])), "{line}");
        assert!(ptx.contains(&format!(".reqntid {}, 1, 1", fields["threads"])), "{line}");
        assert!(fields["archs"].split(',').any(|a| a == "sm_90" || a == "sm_90a") || fields["portable"] == "1", "{line}");
    }
}

#[test]
fn every_head_dim_and_type_has_a_portable_variant_of_either_alignment() {
    let manifest = emit(&dir("portable"), &[]).expect("emit").remove("manifest.txt").expect("a manifest");
    for dtype in ["f16", "bf16", "f32"] {
        for head_dim in [64, 128] {
            for copy_bytes in [16, 4] {
                let wanted = [format!("dtype={dtype}"), format!("head_dim={head_dim}"), format!("copy_bytes={copy_bytes}")];
                let found = manifest.lines().any(|line| {
                    let fields: Vec<_> = line.split('\t').collect();
                    fields.contains(&"portable=1") && wanted.iter().all(|w| fields.contains(&w.as_str()))
                });
                assert!(found, "{wanted:?}");
            }
        }
    }
}

#[test]
fn patterns_select_variants() {
    let files = emit(&dir("pattern"), &["--variants", "prefill_mma_f32_*,*bf16_d64_g3_*"]).expect("emit");
    assert!(files.keys().any(|f| f.starts_with("prefill_mma_f32_d128")));
    assert!(files.keys().any(|f| f.contains("bf16_d64_g3_")));
    assert!(!files.keys().any(|f| f.contains("f16_d128")), "{:?}", files.keys());
}

#[test]
fn what_does_not_exist_is_an_error_that_names_what_does() {
    let error = emit(&dir("unknown-1"), &["--variants", "prefill_mma_*,nothing_*"]).expect_err("no such variant");
    assert!(error.contains("'nothing_*'") && error.contains("prefill_mma_bf16_d64_gany"), "{error}");
    let error = emit(&dir("unknown-2"), &["--archs", "sm_70"]).expect_err("no such architecture");
    assert!(error.contains("'sm_70'") && error.contains("ptx-gen list"), "{error}");
    let error = run(&["show", "prefill"]).expect_err("no such variant");
    assert!(error.contains("'prefill'") && error.contains("ptx-gen list"), "{error}");
    for bad in [&["emit"] as &[&str], &["emit", "--out"], &["emit", "--out", "x", "--what", "y"], &["frobnicate"], &[]] {
        assert!(run(bad).expect_err("bad usage").contains("usage:"), "{bad:?}");
    }
}
