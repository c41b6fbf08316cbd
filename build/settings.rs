//! Everything that the build takes from its environment, read once.
//!
//! | variable | meaning |
//! |---|---|
//! | `ATTNPACK_PTXAS` | absolute path of the `ptxas` to use, or `off`: embed PTX only. Unset: search (`build/search.rs`) |
//! | `ATTNPACK_STRICT` | `1`: a missing `ptxas`, or any other warning, is an error |
//! | `ATTNPACK_VARIANTS` | name patterns, comma-separated (`*` is any text): build only these, for quick builds |
//! | `ATTNPACK_PTX_GEN` | absolute path of a generator to run in place of the built-in one |
//! | `ATTNPACK_CACHE_DIR` | absolute path of a folder that shares cubins between profiles and checkouts. Unset: `OUT_DIR/cache` |
//!
//! From Cargo: `OUT_DIR`, `NUM_JOBS`, `CARGO_FEATURE_SM_*` for the architectures, and for the shared library's name
//! `CARGO_FEATURE_CAPI`, `CARGO_CFG_TARGET_OS`, `CARGO_CFG_TARGET_ENV`, `HOST`, `TARGET` and the package's
//! version. For the search only: `PATH`, `CUDA_HOME`, `CUDA_PATH`, `VIRTUAL_ENV`, `CONDA_PREFIX`, and on Windows `PROGRAMFILES`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use super::manifest::Arch;
use super::search::Places;

/// The settings of this crate: Cargo runs the build again when one changes.
pub const VARIABLES: [&str; 5] = ["ATTNPACK_PTXAS", "ATTNPACK_STRICT", "ATTNPACK_VARIANTS", "ATTNPACK_PTX_GEN", "ATTNPACK_CACHE_DIR"];

/// The value of `ATTNPACK_PTXAS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PtxasSetting {
    /// Not set: look for one.
    Search,
    /// This one and no other.
    Named(PathBuf),
    /// None: PTX only, by choice.
    Off,
}

/// How the shared library for C hosts is to be linked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLibrary {
    /// The name that programs know it by.
    pub soname: String,
    /// Whether the machine that builds is of the kind that runs it, with the C library of GNU.
    pub native: bool,
}

/// The settings of one build.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The enabled architecture features, ascending.
    pub archs: Vec<Arch>,
    /// Which ptxas.
    pub ptxas: PtxasSetting,
    /// Whether every warning is an error.
    pub strict: bool,
    /// Name patterns; `None`: all variants.
    pub variants: Option<String>,
    /// External generator.
    pub generator: Option<PathBuf>,
    /// Shared folder for cubins.
    pub cache_dir: Option<PathBuf>,
    /// Processes at a time.
    pub jobs: usize,
    /// The shared library for C hosts; `None` where its linking is not ours to arrange.
    pub shared_library: Option<SharedLibrary>,
    /// Where everything is written.
    pub out_dir: PathBuf,
    /// Where a ptxas may be.
    pub places: Places,
}

/// The variables of one process, read once.
pub struct Vars(BTreeMap<OsString, OsString>);

impl Vars {
    /// Takes the variables. Windows ignores case in their names (`Path`), so names are upper case there.
    pub fn new(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let upper = |name: OsString| if cfg!(windows) { name.to_ascii_uppercase() } else { name };
        Vars(vars.into_iter().map(|(name, value)| (upper(name), value)).collect())
    }

    /// A variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&OsString> {
        self.0.get(&OsString::from(name)).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str) -> Result<Option<&str>> {
        let value = self.get(name);
        value.map(|value| value.to_str().with_context(|| format!("{name}={value:?} is not valid Unicode"))).transpose()
    }

    /// A relative path would start at the folder of the package being built, which is never what is meant.
    fn absolute(&self, name: &str) -> Result<Option<PathBuf>> {
        let path = self.get(name).map(PathBuf::from);
        if let Some(path) = &path {
            ensure!(path.is_absolute(), "{name}={} must be an absolute path", path.display());
        }
        Ok(path)
    }

    /// Enabled architectures: Cargo.toml's features of the form `sm_90`.
    fn archs(&self) -> Result<Vec<Arch>> {
        let names = self.0.keys().filter_map(|name| name.to_str());
        let numbers = names.filter_map(|name| name.strip_prefix("CARGO_FEATURE_SM_"));
        let mut archs = numbers.map(|number| Arch::parse(&format!("sm_{number}"))).collect::<Result<Vec<_>>>()?;
        archs.sort();
        Ok(archs)
    }

    fn jobs(&self) -> Result<usize> {
        let jobs = self.text("NUM_JOBS")?.unwrap_or("1");
        jobs.parse().with_context(|| format!("NUM_JOBS={jobs} is not a number"))
    }

    /// A version that may break the interface has a name of its own: a minor one before 1.0. cargo-c gives the same name.
    fn shared_library(&self) -> Result<Option<SharedLibrary>> {
        if self.text("CARGO_CFG_TARGET_OS")? != Some("linux") || self.get("CARGO_FEATURE_CAPI").is_none() {
            return Ok(None);
        }
        let part = |name| self.text(name)?.with_context(|| format!("{name} is not set: Cargo sets it for a build script"));
        let (major, minor) = (part("CARGO_PKG_VERSION_MAJOR")?, part("CARGO_PKG_VERSION_MINOR")?);
        let breaking = if major == "0" { format!("0.{minor}") } else { major.to_owned() };
        let native = self.get("HOST") == self.get("TARGET") && self.text("CARGO_CFG_TARGET_ENV")? == Some("gnu");
        Ok(Some(SharedLibrary { soname: format!("libattnpack.so.{breaking}"), native }))
    }

    fn strict(&self) -> Result<bool> {
        match self.text("ATTNPACK_STRICT")? {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => bail!("ATTNPACK_STRICT={other} means nothing: it is 1 or 0"),
        }
    }

    fn ptxas(&self) -> Result<PtxasSetting> {
        if self.get("ATTNPACK_PTXAS").is_some_and(|value| value == "off") {
            return Ok(PtxasSetting::Off);
        }
        let path = self.absolute("ATTNPACK_PTXAS").context("ATTNPACK_PTXAS is a path or the word `off`")?;
        Ok(path.map_or(PtxasSetting::Search, PtxasSetting::Named))
    }
}

impl Settings {
    /// Reads the settings from the variables of a build script's environment.
    ///
    /// # Errors
    /// A value that means nothing, or two that contradict each other.
    pub fn from_vars(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self> {
        let vars = Vars::new(vars);
        let (ptxas, strict) = (vars.ptxas()?, vars.strict()?);
        ensure!(
            !(strict && ptxas == PtxasSetting::Off),
            "ATTNPACK_STRICT=1 demands a ptxas and ATTNPACK_PTXAS=off refuses one: unset either"
        );
        Ok(Settings {
            archs: vars.archs()?,
            ptxas,
            strict,
            variants: vars.text("ATTNPACK_VARIANTS")?.map(str::to_owned),
            generator: vars.absolute("ATTNPACK_PTX_GEN")?,
            cache_dir: vars.absolute("ATTNPACK_CACHE_DIR")?,
            jobs: vars.jobs()?,
            shared_library: vars.shared_library()?,
            out_dir: vars.absolute("OUT_DIR")?.context("OUT_DIR is not set: Cargo sets it for a build script")?,
            places: Places::from_vars(&vars),
        })
    }

    /// A path below `OUT_DIR`.
    pub fn out(&self, name: &str) -> PathBuf {
        self.out_dir.join(name)
    }
}
