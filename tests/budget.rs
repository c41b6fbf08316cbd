//! The budget of the default features: 70 CPU-seconds of ptxas, 15 MB embedded, 110 CPU-seconds of clean build.
//!
//! Times are those of the processes, user and system, and not of the clock, which would count other work on the machine. Two
//! cores to themselves make the clean build in a minute.
//!
//! It downloads nothing, and runs only when asked for, in CI: `cargo test --test budget -- --ignored`.

#![cfg(unix)]

mod build_support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use build_support::script::build::jobs::Pool;
use build_support::script::build::manifest::Arch;
use build_support::script::build::settings::{PtxasSetting, Settings};
use build_support::scripts::write_script;
use build_support::{empty_folder, real_ptxas, script};

const PTXAS_CPU_SECONDS: f64 = 70.0;
const EMBEDDED_BYTES: u64 = 15_000_000;
const CLEAN_BUILD_CPU_SECONDS: f64 = 110.0;

/// How often ptxas's time is taken before it counts as too long: a neighbour on the same core was seen to add a quarter to it.
const ATTEMPTS: u32 = 3;

#[test]
fn the_default_features_keep_to_the_budget() {
    let Some(ptxas) = real_ptxas("the_default_features_keep_to_the_budget") else { return };
    let dir = empty_folder("budget");
    let settings = |attempt: u32| Settings {
        archs: default_archs(),
        ptxas: PtxasSetting::Named(ptxas.path.clone()),
        strict: false,
        variants: None,
        generator: None,
        cache_dir: None,
        jobs: 2,
        shared_library: None,
        out_dir: dir.join(format!("out{attempt}")),
        places: Default::default(),
    };
    let generator = generator(&dir, &settings(0).archs);
    let mut seconds = f64::INFINITY;
    for settings in (0..ATTEMPTS).map(settings) {
        fs::create_dir(&settings.out_dir).unwrap();
        let before = children_cpu_seconds();
        script::run(&settings, &generator, &Pool::new(None, settings.jobs)).unwrap_or_else(|error| panic!("{error:#}"));
        let after = children_cpu_seconds();
        let bytes = embedded_bytes(&settings);
        println!("ptxas {}: {bytes} bytes embedded", ptxas.version);
        assert!(bytes <= EMBEDDED_BYTES, "{bytes} bytes embedded, budget {EMBEDDED_BYTES}");
        let (Some(before), Some(after)) = (before, after) else { return };
        println!("ptxas {}: {:.1} CPU-seconds", ptxas.version, after - before);
        seconds = seconds.min(after - before);
        if seconds <= PTXAS_CPU_SECONDS {
            return;
        }
    }
    panic!("{seconds:.1} CPU-seconds of ptxas at least, budget {PTXAS_CPU_SECONDS}");
}

#[test]
#[ignore = "takes a minute; CI asks for it"]
fn a_clean_build_keeps_to_the_budget() {
    let Some(ptxas) = real_ptxas("a_clean_build_keeps_to_the_budget") else { return };
    let target = empty_folder("clean_build");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--offline", "--quiet", "-j2"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    for setting in script::build::settings::VARIABLES {
        cargo.env_remove(setting);
    }
    let before = children_cpu_seconds();
    let status = cargo.env("CARGO_TARGET_DIR", &target).env("ATTNPACK_PTXAS", ptxas.path).status().unwrap();
    let after = children_cpu_seconds();
    assert!(status.success());
    fs::remove_dir_all(target).unwrap();
    if let (Some(before), Some(after)) = (before, after) {
        let seconds = after - before;
        println!("clean build with ptxas {}: {seconds:.1} CPU-seconds", ptxas.version);
        assert!(seconds <= CLEAN_BUILD_CPU_SECONDS, "a clean build took {seconds:.1} CPU-seconds, budget {CLEAN_BUILD_CPU_SECONDS}");
    }
}

/// A generator that copies what the real one wrote in this process: its time is not ptxas's.
fn generator(dir: &Path, archs: &[Arch]) -> PathBuf {
    let kernels = dir.join("kernels");
    let archs = archs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let args = ["emit", "--out", kernels.to_str().unwrap(), "--archs", &archs].map(str::to_owned);
    ptx_gen::cli::run(&args, &mut std::io::sink()).unwrap();
    let generator = dir.join("generator");
    write_script(&generator, &format!("cp '{}'/* .", kernels.display()));
    generator
}

/// The architectures among the default features in Cargo.toml.
fn default_archs() -> Vec<Arch> {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let line = manifest.lines().find(|line| line.starts_with("default = [")).unwrap();
    let names = line.split('"').filter(|name| name.starts_with("sm_"));
    names.map(|name| Arch::parse(name).unwrap()).collect()
}

/// The size of all that the catalogue includes.
fn embedded_bytes(settings: &Settings) -> u64 {
    let catalog = fs::read_to_string(settings.out("catalog.rs")).unwrap();
    let files = catalog.split("concat!(env!(\"OUT_DIR\"), \"/").skip(1).map(|rest| rest.split('"').next().unwrap());
    let sizes: Vec<_> = files.map(|file| fs::metadata(settings.out(file)).unwrap().len()).collect();
    assert!(!sizes.is_empty(), "the catalogue includes nothing");
    sizes.iter().sum()
}

/// CPU time of the processes that this one started and that ended: fields 16 and 17 of `/proc/self/stat`, in
/// hundredths of a second. `None` where there is no such file.
fn children_cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Field 2 is the program's name in parentheses, spaces and all.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: Vec<f64> = fields.split(' ').skip(13).take(2).map(|field| field.parse().unwrap()).collect();
    Some(ticks.iter().sum::<f64>() / 100.0)
}
