//! The build script's machinery; `build.rs` is the policy.

pub mod assemble;
pub mod cache;
pub mod catalog;
pub mod finding;
pub mod generator;
pub mod jobs;
pub mod kernel;
pub mod manifest;
pub mod ptxas;
pub mod report;
pub mod search;
pub mod settings;
pub mod shared_library;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use ptxas::Found;
use settings::Settings;

/// What the build accepts but tells: under `ATTNPACK_STRICT=1` the first one is an error.
pub struct Warnings {
    strict: bool,
    lines: Vec<String>,
}

impl Warnings {
    /// No warnings yet.
    pub fn new(strict: bool) -> Self {
        let lines = Vec::new();
        Warnings { strict, lines }
    }

    /// Adds a warning of one line.
    ///
    /// # Errors
    /// Under STRICT, with the warning as the message.
    pub fn add(&mut self, line: String) -> Result<()> {
        if self.strict {
            bail!("{line}\nATTNPACK_STRICT=1 makes this warning an error");
        }
        self.lines.push(line);
        Ok(())
    }

    /// The warnings in the order in which they came.
    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }
}

/// What a build that went well tells Cargo.
pub struct Outcome {
    /// Warnings of one line each.
    pub warnings: Vec<String>,
    /// Variables whose change runs the build again.
    pub variables: Vec<&'static str>,
    /// Files whose change runs the build again. All exist: Cargo takes a missing one for a changed one.
    pub files: Vec<PathBuf>,
    /// Arguments for linking the shared library.
    pub link_args: Vec<String>,
}

impl Outcome {
    /// Watches the settings and the external generator. Sources need no watching: a change of this script or
    /// of the generator rebuilds the script, and Cargo runs a rebuilt script.
    pub fn watching(settings: &Settings) -> Self {
        Outcome {
            warnings: Vec::new(),
            variables: settings::VARIABLES.to_vec(),
            files: settings.generator.iter().cloned().collect(),
            link_args: Vec::new(),
        }
    }

    /// Watches what decided which ptxas is used: its file, and the variables that the search read before it.
    ///
    /// `PATH` counts only while no ptxas is found: it differs between an editor and a terminal, and watching
    /// it would rebuild everything at each switch between them. To choose another ptxas set `ATTNPACK_PTXAS`.
    pub fn watch_tool(&mut self, tool: &Found) {
        match tool {
            Found::Off => {}
            Found::Ptxas(ptxas) => {
                self.files.push(ptxas.path.clone());
                self.variables.extend(ptxas.variables);
            }
            Found::Missing { .. } => {
                self.variables.push("PATH");
                self.variables.extend(search::VARIABLES);
            }
        }
    }
}

impl fmt::Display for Outcome {
    /// The lines that Cargo reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for variable in &self.variables {
            writeln!(f, "cargo::rerun-if-env-changed={variable}")?;
        }
        for file in &self.files {
            writeln!(f, "cargo::rerun-if-changed={}", file.display())?;
        }
        for arg in &self.link_args {
            writeln!(f, "cargo::rustc-cdylib-link-arg={arg}")?;
        }
        for warning in &self.warnings {
            writeln!(f, "cargo::warning={warning}")?;
        }
        Ok(())
    }
}

/// Makes `dir` exist and be empty.
pub fn empty_dir(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot empty {}", dir.display()))?;
    }
    create_dir(dir)
}

/// Makes `dir` exist.
pub fn create_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

/// Writes a file.
pub fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}
