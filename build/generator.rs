//! Runs the generator as a process: the built-in one or the program that `ATTNPACK_PTX_GEN` names.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::manifest::{self, Contract, Variant};
use super::settings::Settings;
use super::{Warnings, empty_dir};

/// Has the PTX, `manifest.txt` and `params.rs` written to `OUT_DIR/generated`, and reads the manifest.
///
/// `built_in` is the program that plays the generator when the settings name no other. What a generator that ends
/// well writes to its stderr are warnings.
///
/// # Errors
/// A generator that does not start, fails, writes less than it must, or speaks another contract.
pub fn emit(settings: &Settings, built_in: &Path, contract: &Contract, warnings: &mut Warnings) -> Result<Vec<Variant>> {
    let program = settings.generator.as_deref().unwrap_or(built_in);
    let dir = settings.out("generated");
    empty_dir(&dir)?;
    for line in run(settings, program, &dir)?.lines().map(str::trim).filter(|line| !line.is_empty()) {
        warnings.add(format!("{} warns: {line}", about(settings, program)))?;
    }
    let check = || -> Result<Vec<Variant>> {
        for file in ["manifest.txt", "params.rs"] {
            if !dir.join(file).is_file() {
                bail!("it ended well but wrote no {file} to its folder --out: is it attnpack's generator?");
            }
        }
        let text = fs::read_to_string(dir.join("manifest.txt")).context("cannot read manifest.txt")?;
        manifest::parse(&text, contract)
    };
    check().with_context(|| about(settings, program))
}

/// Returns what the generator wrote to its stderr.
///
/// The folder is named relative to the working directory, so that any path will do and none can end up in the output.
fn run(settings: &Settings, program: &Path, dir: &Path) -> Result<String> {
    let mut command = Command::new(program);
    command.args(["emit", "--out", "."]).current_dir(dir).stdin(Stdio::null());
    if !settings.archs.is_empty() {
        let archs: Vec<_> = settings.archs.iter().map(ToString::to_string).collect();
        command.args(["--archs", &archs.join(",")]);
    }
    if let Some(patterns) = &settings.variants {
        command.args(["--variants", patterns]);
    }
    let output = command.output().with_context(|| format!("{} does not start", about(settings, program)))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let said = [output.stderr, output.stdout].map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    let said: Vec<_> = said.iter().flat_map(|text| text.lines()).collect();
    let hint = settings.variants.as_ref().map(|v| format!("\n(ATTNPACK_VARIANTS={v} chooses the kernels)")).unwrap_or_default();
    bail!("{} failed ({}); it said:\n  {}{hint}", about(settings, program), output.status, said.join("\n  "))
}

fn about(settings: &Settings, program: &Path) -> String {
    match settings.generator {
        Some(_) => format!("the generator of ATTNPACK_PTX_GEN ({})", program.display()),
        None => "attnpack's built-in generator".to_owned(),
    }
}
