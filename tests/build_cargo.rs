//! The build script under Cargo: an empty package has it as its own build script.
//!
//! This covers what a call of `run` cannot: the generator as the second role of the build script's binary, Cargo's
//! job server, and what makes Cargo run the script again.

#![cfg(unix)]

mod build_support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use build_support::empty_folder;
use build_support::scripts::{fake_ptxas, write_script};

struct Package {
    dir: PathBuf,
    ptxas: PathBuf,
    ptxas_log: PathBuf,
}

impl Package {
    /// A package beside the target folder's other content, so that a vendored registry is found from there.
    fn new() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let dir = empty_folder("cargo");
        let manifest = format!(
            "[package]\nname = \"host\"\nversion = \"0.1.0\"\nedition = \"2024\"\nbuild = {:?}\n[workspace]\n\
             [features]\ndefault = [\"sm_80\"]\nsm_80 = []\n\
             [build-dependencies]\nanyhow = \"1\"\njobserver = \"0.1\"\nattnpack-ptx-gen = {{ path = {:?} }}\n",
            root.join("build.rs"),
            root.join("ptx-gen")
        );
        fs::write(dir.join("Cargo.toml"), manifest).unwrap();
        fs::copy(root.join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();
        fs::create_dir(dir.join("src")).unwrap();
        fs::write(dir.join("src/lib.rs"), "").unwrap();

        let (ptxas, ptxas_log, fake) = (dir.join("ptxas"), dir.join("ptxas_log"), dir.join("fake_ptxas"));
        fake_ptxas(&fake, "13.0.88", Path::new("/dev/null"));
        write_script(&ptxas, &format!("echo \"$@\" >> {}\nexec {} \"$@\"", ptxas_log.display(), fake.display()));
        Package { dir, ptxas, ptxas_log }
    }

    /// Runs `cargo build`.
    fn cargo(&self, variants: &str) -> Output {
        let _ = fs::remove_file(&self.ptxas_log);
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--offline", "--quiet", "-j2"]).current_dir(&self.dir).env("CARGO_TARGET_DIR", self.dir.join("target"));
        for setting in build_support::script::build::settings::VARIABLES {
            cargo.env_remove(setting);
        }
        cargo.env("ATTNPACK_PTXAS", &self.ptxas).env("ATTNPACK_VARIANTS", variants).output().unwrap()
    }

    /// Runs a build that must go well; returns the command lines with which ptxas was started.
    #[track_caller]
    fn build(&self, variants: &str) -> Vec<String> {
        let output = self.cargo(variants);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read_to_string(&self.ptxas_log).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn out_dir(&self) -> PathBuf {
        let builds = fs::read_dir(self.dir.join("target/debug/build")).unwrap();
        builds.map(|entry| entry.unwrap().path().join("out")).find(|out| out.join("catalog.rs").exists()).unwrap()
    }
}

#[test]
fn cargo_runs_the_build_only_when_something_changed() {
    let package = Package::new();
    let calls = package.build("*_f32_*");
    assert!(calls.iter().any(|call| call.contains("_f32_")), "the kernels were assembled: {calls:?}");
    let catalog = fs::read_to_string(package.out_dir().join("catalog.rs")).unwrap();
    assert!(catalog.contains("DType::F32") && !catalog.contains("DType::BF16"), "the filter reached the generator");

    assert_eq!(package.build("*_f32_*"), Vec::<String>::new(), "an unchanged build runs nothing");

    let calls = package.build("*_f32_*,*_bf16_d64_*");
    assert!(calls.iter().any(|call| call.contains("_bf16_d64_")), "a changed setting counts");
    assert!(!calls.iter().any(|call| call.contains("_f32_")), "but what it leaves alone is not assembled again");

    let file = fs::File::options().append(true).open(&package.ptxas).unwrap();
    file.set_modified(std::time::SystemTime::now()).unwrap();
    drop(file);
    assert_eq!(package.build("*_f32_*,*_bf16_d64_*").first().map(String::as_str), Some("--version"), "a touched ptxas counts");

    let output = package.cargo("nothing*");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(message.contains("no variant matches 'nothing*'") && message.contains("_bf16_d64_"), "{message}");
}
