//! A kernel's PTX: as generated, with the Rust origin of each instruction, and stripped, as it is embedded.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::manifest::{Arch, Variant};
use super::settings::Settings;
use super::{empty_dir, write_file};

/// A variant that this build embeds, with its PTX.
pub struct Kernel {
    /// Its line of the manifest.
    pub variant: Variant,
    /// Its PTX.
    pub ptx: Ptx,
    /// The enabled architectures that it serves, by the names that ptxas takes.
    pub archs: Vec<Arch>,
}

/// Reads the PTX of every variant that the enabled features need, and writes it stripped to `OUT_DIR/ptx`.
///
/// # Errors
/// A file that is missing, or that is not what the manifest says.
pub fn load(settings: &Settings, variants: Vec<Variant>) -> Result<Vec<Kernel>> {
    let dir = settings.out("ptx");
    empty_dir(&dir)?;
    let mut kernels = Vec::new();
    for variant in variants {
        let is_enabled = |arch: &Arch| settings.archs.contains(&arch.feature());
        let archs: Vec<_> = variant.archs.iter().copied().filter(is_enabled).collect();
        if archs.is_empty() && !variant.portable {
            continue;
        }
        let file = format!("{}.ptx", variant.name);
        let text = fs::read_to_string(settings.out("generated").join(&file));
        let ptx = Ptx::new(text.with_context(|| format!("the manifest names {}, but {file} cannot be read", variant.name))?);
        ptx.check(&variant).with_context(|| format!("the manifest contradicts {file}"))?;
        write_file(&dir.join(&file), &ptx.stripped)?;
        kernels.push(Kernel { variant, ptx, archs });
    }
    Ok(kernels)
}

/// PTX text in both forms.
pub struct Ptx {
    /// As generated.
    generated: String,
    /// Without comments: what ptxas checks and the library embeds.
    pub stripped: String,
    /// For each line of `stripped` its number in `generated`, from 1.
    numbers: Vec<usize>,
}

/// A line of generated PTX.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Its number, from 1.
    pub number: usize,
    /// The instruction.
    pub code: &'a str,
    /// The Rust file and line that emitted it.
    pub origin: Option<&'a str>,
}

impl Ptx {
    /// Strips what the generator writes for readers: `<tab>// …` after an instruction, and lines of comment.
    pub fn new(generated: String) -> Self {
        let (mut stripped, mut numbers) = (String::with_capacity(generated.len()), Vec::new());
        for (index, line) in generated.lines().enumerate() {
            let (code, origin) = split(line);
            if line.starts_with("//") || (code.trim().is_empty() && origin.is_some()) {
                continue;
            }
            stripped.push_str(code);
            stripped.push('\n');
            numbers.push(index + 1);
        }
        Ptx { generated, stripped, numbers }
    }

    /// The generated line behind line `number` (from 1) of the stripped text.
    pub fn line(&self, number: usize) -> Option<Line<'_>> {
        let number = *self.numbers.get(number.checked_sub(1)?)?;
        let (code, origin) = split(self.generated.lines().nth(number - 1)?);
        Some(Line { number, code: code.trim(), origin })
    }

    /// Where the kernel is written: the first origin that is a kernel's file, or else the first of all.
    pub fn kernel_origin(&self) -> Option<&str> {
        let origins = || self.generated.lines().filter_map(|line| split(line).1);
        origins().find(|origin| origin.contains("/kernels/")).or_else(|| origins().next())
    }

    /// The runtime launches by the manifest's word, so the text must agree with it.
    fn check(&self, variant: &Variant) -> Result<()> {
        let (major, minor) = variant.ptx_version;
        let has_line = |wanted: &str| {
            // Other directives may follow.
            let mut rests = self.stripped.lines().filter_map(|line| line.trim().strip_prefix(wanted));
            rests.any(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let (version, target) = (format!(".version {major}.{minor}"), format!(".target {}", variant.target));
        for wanted in [version, target, format!(".reqntid {}, 1, 1", variant.threads)] {
            ensure!(has_line(&wanted), "no line '{wanted}'");
        }
        let entry = format!(".entry {}(", variant.name);
        ensure!(self.stripped.contains(&entry), "no entry point '{}'", variant.name);
        Ok(())
    }
}

/// Code and comment of a line.
fn split(line: &str) -> (&str, Option<&str>) {
    match line.split_once("\t//") {
        Some((code, comment)) => (code.trim_end(), Some(comment.trim())),
        None => (line, None),
    }
}
