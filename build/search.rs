//! Where a ptxas may be. Only the file system is looked at: no Python runs, no GPU is probed.

use std::cmp::Reverse;
use std::env::consts::EXE_SUFFIX;
use std::env::split_paths;
use std::fs;
use std::path::{Path, PathBuf};

use super::settings::Vars;

/// The variables that lead to a ptxas, besides `PATH`.
pub const VARIABLES: [&str; 4] = ["CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"];

/// Folders to search, in this order.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// `PATH`.
    pub path: Vec<PathBuf>,
    /// Toolkits that a variable names.
    pub toolkits: Vec<PathBuf>,
    /// Where toolkits usually are: a folder and the beginning of their names in it.
    pub usual: Vec<(PathBuf, &'static str)>,
    /// Active Python environments.
    pub pythons: Vec<PathBuf>,
}

impl Places {
    /// The places that the variables and the customs of the operating systems give.
    pub fn from_vars(vars: &Vars) -> Self {
        let dirs = |names: &[&str]| names.iter().filter_map(|name| vars.get(name)).map(PathBuf::from).collect();
        let mut usual: Vec<(PathBuf, &'static str)> = Vec::new();
        if let Some(programs) = vars.get("PROGRAMFILES") {
            usual.push((Path::new(programs).join("NVIDIA GPU Computing Toolkit").join("CUDA"), "v"));
        }
        if cfg!(unix) {
            usual.extend([("/usr/local", "cuda"), ("/opt", "cuda"), ("/usr/lib", "cuda")].map(|(dir, name)| (dir.into(), name)));
            usual.push(("/usr/lib".into(), "nvidia-cuda-toolkit"));
        }
        Places {
            path: vars.get("PATH").map(|path| split_paths(path).collect()).unwrap_or_default(),
            toolkits: dirs(&["CUDA_HOME", "CUDA_PATH"]),
            usual,
            pythons: dirs(&["VIRTUAL_ENV", "CONDA_PREFIX"]),
        }
    }

    /// Every file that may be a ptxas, the best first, with the variables that were read to get there.
    pub fn candidates(&self) -> Vec<(PathBuf, &'static [&'static str])> {
        let in_pythons = self.pythons.iter().flat_map(|python| python_dirs(python)).collect();
        let stages = [(self.path.clone(), &VARIABLES[..0]), (self.toolkit_dirs(), &VARIABLES[..2]), (in_pythons, &VARIABLES[..])];
        let dirs = stages.into_iter().flat_map(|(dirs, variables)| dirs.into_iter().map(move |dir| (dir, variables)));
        let absolute = dirs.filter(|(dir, _)| dir.is_absolute());
        let files = absolute.map(|(dir, variables)| (dir.join(format!("ptxas{EXE_SUFFIX}")), variables));
        files.filter(|(file, _)| file.is_file()).collect()
    }

    fn toolkit_dirs(&self) -> Vec<PathBuf> {
        let usual = self.usual.iter().flat_map(|(dir, name)| children(dir, name));
        self.toolkits.iter().cloned().chain(usual).map(|toolkit| toolkit.join("bin")).collect()
    }
}

/// Folders of the wheels `nvidia-cuda-nvcc` (13: `nvidia/cu13/bin`) and `nvidia-cuda-nvcc-cu12`
/// (`nvidia/cuda_nvcc/bin`), and of Conda's package `cuda-nvcc`.
fn python_dirs(prefix: &Path) -> Vec<PathBuf> {
    let mut packages = Vec::new();
    for lib in ["lib", "lib64"] {
        packages.extend(children(&prefix.join(lib), "python3").into_iter().map(|python| python.join("site-packages")));
    }
    packages.push(prefix.join("Lib").join("site-packages"));
    let wheels = packages.iter().flat_map(|packages| {
        let nvidia = packages.join("nvidia");
        let mut wheels: Vec<_> = children(&nvidia, "cu").into_iter().filter(|wheel| !version(wheel).is_empty()).collect();
        wheels.push(nvidia.join("cuda_nvcc"));
        wheels
    });
    let mut dirs: Vec<_> = wheels.map(|wheel| wheel.join("bin")).collect();
    dirs.extend([prefix.join("bin"), prefix.join("Library").join("bin")]);
    dirs
}

/// The entries of `dir` whose names begin with `name`: without a version first (a link to the preferred one),
/// then the newest.
fn children(dir: &Path, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(name));
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.sort_by_cached_key(|path| (!version(path).is_empty(), Reverse(version(path)), path.clone()));
    found
}

/// The numbers in a file's name: 12 and 9 of `cuda-12.9`.
fn version(path: &Path) -> Vec<u32> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}
