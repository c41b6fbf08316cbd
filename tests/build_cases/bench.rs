//! A build with a generator and a ptxas that do what the test says.
//!
//! Both are shell scripts. The fake generator copies a folder that the test filled.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use anyhow::Result;

use crate::build_support::empty_folder;
use crate::build_support::script::build::Outcome;
use crate::build_support::script::build::jobs::Pool;
use crate::build_support::script::build::manifest::Arch;
use crate::build_support::script::build::search::Places;
use crate::build_support::script::build::settings::{PtxasSetting, Settings};
use crate::build_support::script::run;
use crate::build_support::scripts::{fake_ptxas, write_script};

/// A kernel of the fake generator.
pub struct Kernel {
    pub name: &'static str,
    /// Its body: lines of PTX.
    pub body: &'static str,
    pub spill_bytes: u32,
    pub archs: &'static str,
    pub target: &'static str,
    pub ptx_version: &'static str,
    pub portable: bool,
}

/// A kernel of the mma.sync family, which serves everything.
pub const PORTABLE: Kernel = Kernel {
    name: "portable_sm80",
    body: "\tmov;",
    spill_bytes: 0,
    archs: "sm_80,sm_90,sm_120",
    target: "sm_80",
    ptx_version: "7.0",
    portable: true,
};

/// A kernel for one architecture.
pub const HOPPER: Kernel =
    Kernel { name: "hopper_sm90a", body: "\twgmma;", spill_bytes: 0, archs: "sm_90a", target: "sm_90a", portable: false, ..PORTABLE };

/// One build at a time: a script that another thread's child still holds open for writing cannot be run.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The folders and settings of one build.
pub struct Bench {
    pub dir: PathBuf,
    pub settings: Settings,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    /// Kernels, a ptxas 13.0.88 that knows sm_80 and sm_90, and these two enabled.
    pub fn new(test: &str, kernels: &[Kernel]) -> Self {
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let dir = empty_folder(test);
        for folder in ["kernels", "out"] {
            fs::create_dir(dir.join(folder)).unwrap();
        }
        let settings = Settings {
            archs: archs(&["sm_80", "sm_90"]),
            ptxas: PtxasSetting::Search,
            strict: false,
            variants: None,
            generator: None,
            cache_dir: None,
            jobs: 2,
            shared_library: None,
            out_dir: dir.join("out"),
            places: Places::default(),
        };
        let mut bench = Bench { dir, settings, _turn };
        bench.set_kernels(kernels);
        bench.set_generator(&format!("cp {}/* .", bench.dir.join("kernels").display()));
        bench.set_ptxas("13.0.88");
        bench
    }

    /// What the generator writes.
    pub fn set_kernels(&self, kernels: &[Kernel]) {
        self.write_manifest(ptx_gen::manifest::FORMAT, ptx_gen::params::layout_hash(), kernels);
        for k in kernels {
            let origin = format!("\t// ptx-gen/src/kernels/{}.rs:7", k.name);
            let body: String = k.body.lines().map(|line| format!("{line}{origin}\n")).collect();
            let text = format!(
                ".version {}\n.target {}\n.address_size 64\n.visible .entry {}()\n.reqntid 128, 1, 1 .minnctapersm 1\n{{\n\
                 // a note\n{body}\tret;\n}}\n",
                k.ptx_version, k.target, k.name
            );
            fs::write(self.dir.join("kernels").join(format!("{}.ptx", k.name)), text).unwrap();
        }
        fs::write(self.dir.join("kernels/params.rs"), "").unwrap();
    }

    pub fn write_manifest(&self, format: u32, params_hash: u64, kernels: &[Kernel]) {
        let mut manifest = format!("attnpack-manifest\t{format}\nparams\t{params_hash:016x}\n");
        for k in kernels {
            manifest.push_str(&manifest_line(k));
        }
        fs::write(self.dir.join("kernels/manifest.txt"), manifest).unwrap();
    }

    /// Makes the generator a script, run in the folder that it must fill.
    pub fn set_generator(&mut self, commands: &str) {
        self.settings.generator = Some(self.script("generator", commands));
    }

    /// Makes ptxas the fake one, of this version.
    pub fn set_ptxas(&mut self, version: &str) {
        let path = self.dir.join("ptxas");
        fake_ptxas(&path, version, &self.dir.join("calls"));
        self.settings.ptxas = PtxasSetting::Named(path);
    }

    pub fn script(&self, name: &str, commands: &str) -> PathBuf {
        let path = self.dir.join(name);
        write_script(&path, commands);
        path
    }

    pub fn build(&self) -> Result<Outcome> {
        run(&self.settings, Path::new("/no/built-in/generator"), &Pool::new(None, self.settings.jobs))
    }

    /// The message of a build that must fail.
    #[track_caller]
    pub fn failure(&self) -> String {
        match self.build() {
            Ok(_) => panic!("the build went well"),
            Err(error) => format!("{error:#}"),
        }
    }

    /// What the fake ptxas assembled since the last call, sorted.
    pub fn calls(&self) -> Vec<String> {
        let log = self.dir.join("calls");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log);
        let mut calls: Vec<_> = text.lines().map(str::to_owned).collect();
        calls.sort();
        calls
    }

    pub fn catalog(&self) -> String {
        fs::read_to_string(self.settings.out("catalog.rs")).unwrap()
    }
}

pub fn archs(names: &[&str]) -> Vec<Arch> {
    names.iter().map(|name| Arch::parse(name).unwrap()).collect()
}

fn manifest_line(k: &Kernel) -> String {
    let fields = [
        format!("name={}", k.name),
        "family=prefill_mma\tdtype=bf16\thead_dim=128\tvalue_dim=128\tgroup=4\tmask=causal\tcopy_bytes=16".to_owned(),
        "block_q=128\tblock_kv=64\tthreads=128\tshared_bytes=65536\tblocks_per_sm=2\tlaunch=grid".to_owned(),
        format!("spill_bytes={}\tptx_version={}\ttarget={}\tarchs={}", k.spill_bytes, k.ptx_version, k.target, k.archs),
        format!("portable={}\tmodels=Llama-3-8B, \"quoted\"", u32::from(k.portable)),
    ];
    format!("variant\t{}\n", fields.join("\t"))
}

/// Fails unless `text` holds every part.
#[track_caller]
pub fn assert_tells(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
}
