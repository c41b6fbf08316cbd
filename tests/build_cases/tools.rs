//! Which ptxas: none, a false one, an old one.

use std::fs;
use std::path::PathBuf;

use crate::bench::{Bench, HOPPER, PORTABLE, archs, assert_tells};
use crate::build_support::script::build::settings::PtxasSetting;

#[test]
fn without_ptxas_ptx_is_embedded_and_one_warning_says_so() {
    let mut bench = Bench::new("no_ptxas", &[PORTABLE, HOPPER]);
    bench.settings.ptxas = PtxasSetting::Search;
    let outcome = bench.build().unwrap();
    assert_eq!(outcome.warnings.len(), 1);
    assert_tells(&outcome.warnings[0], &["no ptxas found", "PTX only", "nvidia-cuda-nvcc", "set ATTNPACK_PTXAS to `off`"]);
    assert_tells(&outcome.warnings[0], &["then set ATTNPACK_PTXAS to its path, or run `cargo clean -p attnpack`"]);
    assert!(!outcome.warnings[0].contains('\n'), "Cargo shows one line");
    assert!(outcome.variables.contains(&"PATH"), "a PATH that leads to a ptxas must be noticed");
    let catalog = bench.catalog();
    assert_tells(&catalog, &["ptxas: None", "/ptx/portable_sm80.ptx", "/ptx/hopper_sm90a.ptx", "checked_by: None"]);
    assert!(!catalog.contains("cubin!"));
}

#[test]
fn without_ptxas_strict_fails() {
    let mut bench = Bench::new("no_ptxas_strict", &[PORTABLE]);
    bench.settings.ptxas = PtxasSetting::Search;
    bench.settings.strict = true;
    assert_tells(&bench.failure(), &["no ptxas found", "ATTNPACK_STRICT=1"]);
}

#[test]
fn off_means_ptx_only_without_a_warning() {
    let mut bench = Bench::new("off", &[PORTABLE]);
    bench.settings.ptxas = PtxasSetting::Off;
    assert_eq!(bench.build().unwrap().warnings, Vec::<String>::new());
    assert_tells(&bench.catalog(), &["ptxas: None", "/ptx/portable_sm80.ptx"]);
}

#[test]
fn a_named_program_that_is_no_ptxas_is_refused() {
    let mut bench = Bench::new("false_ptxas", &[PORTABLE]);
    bench.settings.ptxas = PtxasSetting::Named(bench.script("ptxas", "echo I am a teapot"));
    assert_tells(&bench.failure(), &["ATTNPACK_PTXAS does not name a ptxas", "I am a teapot"]);
    bench.settings.ptxas = PtxasSetting::Named(bench.dir.join("nothing_here"));
    assert_tells(&bench.failure(), &["ATTNPACK_PTXAS does not name a ptxas", "does not run"]);
}

#[test]
fn the_search_skips_a_false_ptxas_and_says_so() {
    let mut bench = Bench::new("skip_false_ptxas", &[PORTABLE]);
    let PtxasSetting::Named(good) = bench.settings.ptxas.clone() else { panic!("the bench names one") };
    let toolkit_bin = bench.dir.join("toolkit/bin");
    fs::create_dir_all(&toolkit_bin).unwrap();
    fs::rename(good, toolkit_bin.join("ptxas")).unwrap();
    bench.script("ptxas", "echo I am a teapot");
    bench.settings.ptxas = PtxasSetting::Search;
    bench.settings.places.path = vec![PathBuf::from("relative"), bench.dir.clone()];
    let warnings = bench.build().unwrap().warnings;
    assert_tells(&warnings.concat(), &["no ptxas found", "Skipped", "I am a teapot"]);

    bench.settings.places.toolkits = vec![bench.dir.join("toolkit")];
    let outcome = bench.build().unwrap();
    assert_eq!(outcome.warnings, Vec::<String>::new());
    assert!(outcome.files.contains(&toolkit_bin.join("ptxas")), "the ptxas in use is watched");
    assert!(outcome.variables.contains(&"CUDA_HOME"));
    assert!(!outcome.variables.contains(&"PATH"));
}

#[test]
fn wheels_of_the_active_python_are_found() {
    for (test, folder) in [
        ("wheel_13", "lib/python3.12/site-packages/nvidia/cu13/bin"),
        ("wheel_12", "lib/python3.9/site-packages/nvidia/cuda_nvcc/bin"),
        ("wheel_windows", "Lib/site-packages/nvidia/cu13/bin"),
    ] {
        let mut bench = Bench::new(test, &[PORTABLE]);
        let PtxasSetting::Named(good) = bench.settings.ptxas.clone() else { panic!("the bench names one") };
        let bin = bench.dir.join("venv").join(folder);
        fs::create_dir_all(&bin).unwrap();
        fs::rename(good, bin.join("ptxas")).unwrap();
        bench.settings.ptxas = PtxasSetting::Search;
        bench.settings.places.pythons = vec![bench.dir.join("venv")];
        let outcome = bench.build().unwrap();
        assert_eq!(outcome.warnings, Vec::<String>::new(), "{folder}");
        assert!(outcome.variables.contains(&"VIRTUAL_ENV"));
    }
}

#[test]
fn a_ptxas_too_old_for_a_target_means_ptx_for_that_target() {
    let mut bench = Bench::new("too_old", &[PORTABLE, HOPPER]);
    bench.settings.archs = archs(&["sm_80", "sm_120"]);
    let outcome = bench.build().unwrap();
    assert_eq!(outcome.warnings.len(), 1);
    assert_tells(&outcome.warnings[0], &["13.0.88", "too old for sm_120", "'sm_120' is not defined"]);
    assert_eq!(bench.calls(), ["portable_sm80.ptx sm_80"]);
    assert!(!bench.catalog().contains("hopper"), "no enabled architecture is served by it");

    bench.settings.strict = true;
    assert_tells(&bench.failure(), &["too old for sm_120", "ATTNPACK_STRICT=1"]);
}

#[test]
fn every_word_of_a_ptxas_too_old_is_known() {
    let bench = Bench::new("refusals", &[PORTABLE]);
    for words in [
        "ptxas fatal   : Value 'sm_80' is not defined for option 'gpu-name'",
        "ptxas probe.ptx, line 1; fatal   : Unsupported .version 9.9; current version is '9.0'",
        "ptxas probe.ptx, line 2; fatal   : Unsupported .target 'sm_80'",
    ] {
        let said = format!("{words}\nptxas fatal   : Ptx assembly aborted due to errors");
        bench.script("ptxas.probe", &format!("echo \"{said}\" >&2; exit 255"));
        let warnings = bench.build().unwrap().warnings;
        assert_eq!(warnings.len(), 1);
        assert_tells(&warnings[0], &["too old for sm_80, sm_90", words.rsplit_once("fatal   : ").unwrap().1]);
    }
}

#[test]
fn a_ptxas_that_fails_is_not_taken_for_an_old_one() {
    let bench = Bench::new("probe_fails", &[PORTABLE]);
    for (commands, told) in [
        ("echo 'ptxas: error while loading shared libraries: libx.so' >&2; exit 127", "shared libraries: libx.so"),
        ("echo \"ptxas fatal   : Could not open output file 'probe.cubin'\" >&2; exit 255", "Could not open output file 'probe.cubin'"),
        ("kill -KILL $$", "signal: 9"),
    ] {
        bench.script("ptxas.probe", commands);
        assert_tells(&bench.failure(), &["ptxas 13.0.88", "failed at an empty module", ".target sm_80 for sm_80", told]);
    }
}

#[test]
fn ptx_that_no_cubin_came_from_is_checked_once_for_its_target() {
    let mut bench = Bench::new("check_only", &[PORTABLE]);
    bench.settings.archs = archs(&["sm_120"]);
    bench.build().unwrap();
    assert_eq!(bench.calls(), ["portable_sm80.ptx sm_80"]);
    let catalog = bench.catalog();
    assert_tells(&catalog, &["cubins: &[],", "checked_by: Some(\"ptxas 13.0.88\")"]);

    bench.settings.archs.clear();
    assert_eq!(bench.build().unwrap().warnings, Vec::<String>::new(), "no architecture enabled: PTX only by choice");
    assert_tells(&bench.catalog(), &["archs: &[]", "/ptx/portable_sm80.ptx"]);
}
