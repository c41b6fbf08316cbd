//! What is built again, and what is not.

use std::fs;
use std::path::Path;

use crate::bench::{Bench, HOPPER, Kernel, PORTABLE, assert_tells};

/// Every file below `dir`, with its content.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}

const OTHER: Kernel = Kernel { name: "other_sm90a", body: "\tadd;", ..HOPPER };

#[test]
fn the_same_input_gives_the_same_bytes() {
    let bench = Bench::new("deterministic", &[PORTABLE, HOPPER]);
    bench.build().unwrap();
    let first = files(&bench.settings.out_dir);
    fs::remove_dir_all(&bench.settings.out_dir).unwrap();
    fs::create_dir(&bench.settings.out_dir).unwrap();
    bench.build().unwrap();
    assert_eq!(first, files(&bench.settings.out_dir));
    bench.build().unwrap();
    assert_eq!(first, files(&bench.settings.out_dir), "from the cache, too");
}

#[test]
fn a_change_of_one_kernel_assembles_only_that_one() {
    let bench = Bench::new("incremental", &[PORTABLE, HOPPER, OTHER]);
    bench.build().unwrap();
    assert_eq!(bench.calls(), ["hopper_sm90a.ptx sm_90a", "other_sm90a.ptx sm_90a", "portable_sm80.ptx sm_80", "portable_sm80.ptx sm_90"]);
    bench.build().unwrap();
    assert_eq!(bench.calls(), Vec::<String>::new());

    bench.set_kernels(&[PORTABLE, Kernel { body: "\twgmma;\n\twgmma;", ..HOPPER }, OTHER]);
    bench.build().unwrap();
    assert_eq!(bench.calls(), ["hopper_sm90a.ptx sm_90a"]);
    assert_eq!(fs::read_dir(bench.settings.out("cache")).unwrap().count(), 4, "the old cubin is gone");
    assert!(fs::read(bench.settings.out("cubin/other_sm90a.sm_90a.cubin")).unwrap().starts_with(b"cubin of other"));
}

#[test]
fn a_kernel_that_is_gone_leaves_nothing() {
    let bench = Bench::new("gone", &[PORTABLE, HOPPER]);
    bench.build().unwrap();
    bench.set_kernels(&[PORTABLE]);
    fs::remove_file(bench.dir.join("kernels/hopper_sm90a.ptx")).unwrap();
    bench.build().unwrap();
    let left = files(&bench.settings.out_dir);
    assert!(left.iter().all(|(path, _)| !path.contains("hopper")));
}

#[test]
fn another_ptxas_assembles_everything_again() {
    let mut bench = Bench::new("other_ptxas", &[HOPPER]);
    bench.build().unwrap();
    bench.calls();
    bench.set_ptxas("13.5.37");
    bench.build().unwrap();
    assert_eq!(bench.calls(), ["hopper_sm90a.ptx sm_90a"]);
    assert_tells(&bench.catalog(), &["ptxas 13.5.37"]);
}

#[test]
fn a_damaged_cache_entry_is_assembled_again() {
    let bench = Bench::new("damaged", &[HOPPER]);
    bench.build().unwrap();
    let good = files(&bench.settings.out_dir);
    let (entry, content) = good.iter().find(|(path, _)| path.contains("/cache/")).unwrap();
    let mut flipped = content.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [&content[..0], &content[..20], &content[..content.len() - 1], &flipped, b"attnpack-cubin 1 00 999999999999\n\xff"] {
        bench.calls();
        fs::write(entry, damaged).unwrap();
        bench.build().unwrap();
        assert_eq!(bench.calls(), ["hopper_sm90a.ptx sm_90a"]);
        assert_eq!(good, files(&bench.settings.out_dir));
    }
}

#[test]
fn a_shared_cache_serves_other_checkouts_and_keeps_what_is_not_ours() {
    let mut bench = Bench::new("shared_cache", &[HOPPER]);
    let shared = bench.dir.join("shared");
    bench.settings.cache_dir = Some(shared.clone());
    bench.build().unwrap();
    bench.calls();
    fs::write(shared.join("of another checkout"), "").unwrap();
    bench.settings.out_dir = bench.dir.join("other_checkout");
    fs::create_dir(&bench.settings.out_dir).unwrap();
    bench.build().unwrap();
    assert_eq!(bench.calls(), Vec::<String>::new());
    assert!(!bench.settings.out("cache").exists());
    assert!(shared.join("of another checkout").exists());
}

#[test]
fn what_is_left_of_a_build_that_was_killed_is_removed() {
    let bench = Bench::new("killed", &[HOPPER]);
    fs::create_dir_all(bench.settings.out("cache")).unwrap();
    fs::write(bench.settings.out("cache").join("abc.123.new"), "half an entry").unwrap();
    fs::create_dir_all(bench.settings.out("scratch")).unwrap();
    fs::write(bench.settings.out("scratch").join("hopper_sm90a.sm_90a.cubin"), "half a cubin").unwrap();
    bench.build().unwrap();
    assert_eq!(fs::read_dir(bench.settings.out("cache")).unwrap().count(), 1);
    assert!(!bench.settings.out("scratch").exists());
}
