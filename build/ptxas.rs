//! NVIDIA's assembler: which one, what it can do, and how it is run.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::manifest::Arch;
use super::report;
use super::settings::{PtxasSetting, Settings};
use super::write_file;

/// The releases whose every line about spills and lost performance was looked at. A rejection by any release
/// is an error; these two are only warnings from a release that is not in this list.
pub const TESTED: [&str; 3] = ["12.9", "13.0", "13.5"];

/// What the search came to.
pub enum Found {
    /// This one.
    Ptxas(Ptxas),
    /// None, as the settings ask.
    Off,
    /// None.
    Missing {
        /// Files that are called ptxas and are not, and why.
        skipped: Vec<String>,
    },
}

/// A ptxas that works.
#[derive(Debug)]
pub struct Ptxas {
    /// The file.
    pub path: PathBuf,
    /// The variables, besides `PATH`, that the search for it read.
    pub variables: &'static [&'static str],
    /// Full version, such as 12.9.86.
    pub version: String,
    /// All that it says about itself.
    pub banner: String,
}

/// Finds the ptxas to use.
///
/// # Errors
/// If the one that `ATTNPACK_PTXAS` names is none. What the search comes across and is none is skipped.
pub fn find(settings: &Settings) -> Result<Found> {
    match &settings.ptxas {
        PtxasSetting::Off => Ok(Found::Off),
        PtxasSetting::Named(path) => {
            let ptxas = Ptxas::identify(path).context("ATTNPACK_PTXAS does not name a ptxas")?;
            Ok(Found::Ptxas(ptxas))
        }
        PtxasSetting::Search => {
            let mut skipped = Vec::new();
            for (path, variables) in settings.places.candidates() {
                match Ptxas::identify(&path) {
                    Ok(ptxas) => return Ok(Found::Ptxas(Ptxas { variables, ..ptxas })),
                    Err(why) => skipped.push(format!("{why:#}")),
                }
            }
            Ok(Found::Missing { skipped })
        }
    }
}

/// The warning, in one line, that no ptxas was found.
pub fn explain_missing(skipped: &[String]) -> String {
    let skipped = if skipped.is_empty() { String::new() } else { format!(" Skipped: {}.", skipped.join("; ")) };
    format!(
        "no ptxas found: attnpack embeds PTX only, which the GPU's driver compiles when a kernel is first used (about 0.3 s each). \
         Install the CUDA toolkit or the Python package nvidia-cuda-nvcc, then set ATTNPACK_PTXAS to its path, or run \
         `cargo clean -p attnpack`: Cargo notices a changed variable, but no new file. If PTX only is wanted, set ATTNPACK_PTXAS to \
         `off`. Searched: PATH, CUDA_HOME, CUDA_PATH, the usual folders, VIRTUAL_ENV, CONDA_PREFIX.{skipped}"
    )
}

/// What a run of ptxas came to.
pub struct Run {
    /// Whether it accepted the PTX.
    pub accepted: bool,
    /// All that it said.
    pub said: String,
}

impl Ptxas {
    /// Asks a program for its version.
    ///
    /// # Errors
    /// If it does not run or is no ptxas.
    pub fn identify(path: &Path) -> Result<Self> {
        let output = Command::new(path).arg("--version").stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("{} does not run", path.display()))?;
        let banner = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        // "Cuda compilation tools, release 12.9, V12.9.86"
        let version = banner.lines().find_map(|line| line.split_once(", V")).map(|(_, version)| version.trim());
        match version {
            Some(version) if output.status.success() && banner.contains("Ptx optimizing assembler") => {
                Ok(Ptxas { path: path.to_owned(), variables: &[], version: version.to_owned(), banner })
            }
            _ => {
                let said = banner.lines().next().unwrap_or("nothing");
                bail!("{} is not ptxas: asked for its --version it said: {said}", path.display())
            }
        }
    }

    /// Whether every variant was looked at with this release.
    pub fn is_tested(&self) -> bool {
        let release = |version: &str| version.split('.').take(2).map(str::to_owned).collect::<Vec<_>>();
        TESTED.iter().any(|tested| release(tested) == release(&self.version))
    }

    /// Assembles `file` of the folder `dir` into `cubin`. Run in the folder, ptxas says nothing of its path.
    ///
    /// # Errors
    /// If ptxas does not start. A rejection is no error here.
    pub fn assemble(&self, dir: &Path, file: &str, arch: Arch, cubin: &Path) -> Result<Run> {
        let mut command = Command::new(&self.path);
        command.args(FLAGS).arg(format!("-arch={arch}")).arg(file).arg("-o").arg(cubin);
        let output = command.current_dir(dir).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {}", self.path.display()))?;
        let mut said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stdout));
        if !output.status.success() && said.trim().is_empty() {
            said = format!("ptxas said nothing and ended with {}", output.status);
        }
        Ok(Run { accepted: output.status.success(), said })
    }

    /// Why it cannot build for `arch` from PTX of this version and target, or `None` if it can.
    ///
    /// An empty module of that kind is assembled: exact for every release, where a table of releases would end
    /// with the newest one known (12.9 has no `--list-arch`).
    ///
    /// # Errors
    /// If the probe cannot be written or run, or fails for another reason than that ptxas does not know the kind.
    pub fn refusal(&self, scratch: &Path, kind: Kind) -> Result<Option<String>> {
        let Kind { ptx_version: (major, minor), target, arch } = kind;
        let (file, cubin) = ("probe.ptx", scratch.join("probe.cubin"));
        write_file(&scratch.join(file), format!(".version {major}.{minor}\n.target {target}\n.address_size 64\n"))?;
        let run = self.assemble(scratch, file, arch, &cubin)?;
        match std::fs::remove_file(&cubin) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).context("cannot remove probe.cubin"),
            _ => {}
        }
        if run.accepted {
            return Ok(None);
        }
        let errors = report::parse(&run.said).errors;
        let refusal = errors.into_iter().find(|error| REFUSALS.iter().any(|words| error.words.contains(words)));
        let Some(refusal) = refusal else {
            let (version, path, said) = (&self.version, self.path.display(), run.said.trim().replace('\n', "\n  "));
            bail!(
                "ptxas {version} ({path}) failed at an empty module of .version {major}.{minor} and .target {target} for {arch}; \
                 it said:\n  {said}"
            )
        };
        Ok(Some(refusal.words))
    }
}

/// How every tested release speaks of an architecture, a PTX version or a target that it does not know.
const REFUSALS: [&str; 3] = ["for option 'gpu-name'", "Unsupported .version ", "Unsupported .target "];

/// Flags of every run: `-v` reports registers, spills and lost performance.
pub const FLAGS: [&str; 1] = ["-v"];

/// What a ptxas must be new enough for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// `.version` of the PTX.
    pub ptx_version: (u32, u32),
    /// `.target` of the PTX.
    pub target: Arch,
    /// Architecture to build for.
    pub arch: Arch,
}
