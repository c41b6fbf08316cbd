//! Generators that fail, or speak another language.

use crate::bench::{Bench, HOPPER, PORTABLE, assert_tells};

const FORMAT: u32 = ptx_gen::manifest::FORMAT;

#[test]
fn the_command_line_is_the_documented_one() {
    let mut bench = Bench::new("command_line", &[PORTABLE]);
    let (kernels, log) = (bench.dir.join("kernels"), bench.dir.join("arguments"));
    bench.set_generator(&format!("echo \"$@\" > {}; cp {}/* .", log.display(), kernels.display()));
    bench.settings.variants = Some("*_d64_*,x".to_owned());
    let outcome = bench.build().unwrap();
    assert_eq!(std::fs::read_to_string(log).unwrap(), "emit --out . --archs sm_80,sm_90 --variants *_d64_*,x\n");
    assert!(outcome.files.contains(&bench.dir.join("generator")), "an external generator is watched");
}

#[test]
fn a_generator_that_fails_is_quoted() {
    let mut bench = Bench::new("generator_fails", &[PORTABLE]);
    bench.set_generator("echo 'out of ideas' >&2; exit 3");
    let message = bench.failure();
    assert_tells(&message, &["ATTNPACK_PTX_GEN", "failed", "exit status: 3", "out of ideas"]);
    bench.settings.generator = Some(bench.dir.join("nothing_here"));
    assert_tells(&bench.failure(), &["ATTNPACK_PTX_GEN", "nothing_here", "does not start"]);
}

#[test]
fn what_a_generator_says_that_ends_well_is_a_warning() {
    let mut bench = Bench::new("generator_warns", &[PORTABLE]);
    bench.set_generator(&format!("cp {}/* .; printf 'a is slow\\n\\n  b is slow\\n' >&2", bench.dir.join("kernels").display()));
    let warnings = bench.build().unwrap().warnings;
    assert_eq!(warnings.len(), 2);
    assert_tells(&warnings[0], &["ATTNPACK_PTX_GEN", "warns: a is slow"]);
    assert_tells(&warnings[1], &["warns: b is slow"]);

    bench.settings.strict = true;
    assert_tells(&bench.failure(), &["warns: a is slow", "ATTNPACK_STRICT=1"]);
}

#[test]
fn an_unknown_filter_names_its_setting() {
    let mut bench = Bench::new("filter", &[PORTABLE]);
    bench.set_generator("echo \"no variant matches 'x'; there are: a b\" >&2; exit 1");
    bench.settings.variants = Some("x".to_owned());
    assert_tells(&bench.failure(), &["no variant matches 'x'; there are: a b", "ATTNPACK_VARIANTS=x"]);
}

#[test]
fn a_generator_that_writes_nothing_is_refused() {
    let mut bench = Bench::new("generator_idle", &[PORTABLE]);
    bench.build().unwrap();
    bench.set_generator("exit 0");
    assert_tells(&bench.failure(), &["ATTNPACK_PTX_GEN", "wrote no manifest.txt"]);
    bench.set_generator("echo > manifest.txt");
    assert_tells(&bench.failure(), &["wrote no params.rs"]);
}

#[test]
fn another_format_or_parameter_layout_is_refused() {
    let bench = Bench::new("contract", &[PORTABLE]);
    let hash = ptx_gen::params::layout_hash();
    bench.write_manifest(FORMAT + 1, hash, &[PORTABLE]);
    let theirs = format!("format {}", FORMAT + 1);
    assert_tells(&bench.failure(), &["ATTNPACK_PTX_GEN", &theirs, &format!("reads format {FORMAT}"), "same release"]);
    bench.write_manifest(FORMAT, hash ^ 1, &[PORTABLE]);
    assert_tells(&bench.failure(), &["parameters of layout", &format!("{hash:016x}"), &format!("{:016x}", hash ^ 1)]);
}

#[test]
fn a_manifest_that_is_not_understood_is_refused() {
    let bench = Bench::new("manifest", &[PORTABLE]);
    let path = bench.dir.join("kernels/manifest.txt");
    let good = std::fs::read_to_string(&path).unwrap();
    let line = good.lines().nth(2).unwrap();
    for (from, to, told) in [
        ("head_dim=128\t", "", "the field 'head_dim' is missing"),
        ("head_dim=128", "head_dim=many", "head_dim=many is not a number"),
        ("head_dim=128", "head_dim=128\thead_dim=64", "head_dim appears twice"),
        ("mask=causal", "mask=sliding", "mask=sliding: expected causal, full or any"),
        ("target=sm_80", "target=gfx90a", "'gfx90a' is no architecture"),
        ("name=portable_sm80", "name=../../etc", "name=../../etc is not a lower-case name"),
        ("name=portable_sm80", "name=other", "other.ptx cannot be read"),
        ("target=sm_80", "target=sm_90", "no line '.target sm_90'"),
        ("threads=128", "threads=256", "no line '.reqntid 256, 1, 1'"),
        ("ptx_version=7.0", "ptx_version=8.0", "no line '.version 8.0'"),
        ("launch=grid", "launch=shared", "launch=shared: expected grid, persistent:… or split:…"),
        ("launch=grid", "launch=persistent:0:64x128x2", "launch=persistent:0:64x128x2: '0': expected the size of a cluster, 1 to 8 blocks"),
        ("launch=grid", "launch=split::64x128x2", "launch: '': expected sizes of clusters"),
        ("launch=grid", "launch=split:1,0:64x128x2", "launch: '1,0': expected sizes of clusters"),
        ("launch=grid", "launch=split:1,9:64x128x2", "launch: '1,9': expected sizes of clusters such as 1,2,4, of 1 to 8 blocks"),
        ("launch=grid", "launch=split:1,8:64x128x2", "launch: '64x128x2': expected four boxes"),
        (line, "", "expected 'variant'"),
        (line, "variant\tx=1", "the field 'name' is missing"),
    ] {
        std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
        assert_tells(&bench.failure(), &[told]);
    }
    std::fs::write(&path, good.replace("head_dim=128", "colour=red\thead_dim=128")).unwrap();
    bench.build().unwrap();
    std::fs::write(&path, format!("{good}{line}\n")).unwrap();
    assert_tells(&bench.failure(), &["names portable_sm80 twice"]);
    std::fs::write(&path, good.replace(&format!("{line}\n"), "")).unwrap();
    assert_tells(&bench.failure(), &["names no kernel"]);
    std::fs::write(&path, "<html>").unwrap();
    assert_tells(&bench.failure(), &["attnpack-manifest"]);
}

#[test]
fn the_catalogue_is_literal_and_names_what_checked_it() {
    let bench = Bench::new("catalogue", &[PORTABLE, HOPPER]);
    assert_eq!(bench.build().unwrap().warnings, Vec::<String>::new());
    let catalog = bench.catalog();
    assert_tells(
        &catalog,
        &[
            "ptxas: Some(\"13.0.88\")",
            "archs: &[Arch { major: 8, minor: 0, specific: false }, Arch { major: 9, minor: 0, specific: false }]",
            "name: \"portable_sm80\",\n        family: \"prefill_mma\",\n        dtype: DType::BF16,",
            "group: Group::Packed(4),\n        mask: MaskSupport::Causal,",
            "models: \"Llama-3-8B, \\\"quoted\\\"\"",
            "arch: Arch { major: 9, minor: 0, specific: true }, image: cubin!(concat!(env!(\"OUT_DIR\"), \"/cubin/hopper_sm90a.sm_90a.cubin\"))",
            "registers: 42, spill_bytes: 0, checked_by: \"ptxas 13.0.88\"",
            "ptx: None",
        ],
    );
    assert!(!catalog.contains("/ptx/hopper"), "a cubin makes its PTX needless");
    assert!(!catalog.contains(env!("CARGO_TARGET_TMPDIR")), "no path");
    let embedded = std::fs::read_to_string(bench.settings.out("ptx/portable_sm80.ptx")).unwrap();
    assert!(!embedded.contains("//"), "comments are stripped: {embedded}");
    assert!(embedded.contains("\tmov;\n\tret;\n"));
}

#[test]
fn every_literal_has_the_image_of_its_architecture() {
    let bench = Bench::new("images", &[PORTABLE, HOPPER]);
    for from in ["ptxas", "the cache"] {
        bench.build().unwrap();
        let catalog = bench.catalog();
        assert_eq!(catalog.matches("cubin!(").count(), 3);
        for (name, arch, literal) in [
            ("portable_sm80", "sm_80", "Arch { major: 8, minor: 0, specific: false }"),
            ("portable_sm80", "sm_90", "Arch { major: 9, minor: 0, specific: false }"),
            ("hopper_sm90a", "sm_90a", "Arch { major: 9, minor: 0, specific: true }"),
        ] {
            let file = format!("cubin/{name}.{arch}.cubin");
            assert_tells(&catalog, &[&format!("arch: {literal}, image: cubin!(concat!(env!(\"OUT_DIR\"), \"/{file}\"))")]);
            let image = std::fs::read_to_string(bench.settings.out(&file)).unwrap();
            assert_eq!(image, format!("cubin of {name}.ptx for {arch}\n"), "from {from}");
        }
    }
}
