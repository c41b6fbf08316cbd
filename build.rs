//! Builds the kernels: settings in, `OUT_DIR` out. The settings are listed in `build/settings.rs`.
//!
//! Stable Cargo cannot hand a build script another package's binary (cargo#9096), and a nested `cargo build`
//! deadlocks, ignores `--offline` and loses sub-packages when published (cargo#6412, cargo#6917). So this
//! program is two in one: started by Cargo, without arguments, it runs the build; started by itself, with
//! the generator's command line, it is the generator. `ATTNPACK_PTX_GEN` replaces the second role by another
//! program with the same command line.

#[path = "build/mod.rs"]
pub mod build;

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use build::jobs::Pool;
use build::manifest::Contract;
use build::ptxas::Found;
use build::settings::Settings;
use build::{Outcome, Warnings, assemble, catalog, generator, kernel, ptxas, shared_library};
use jobserver::Client;

fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().skip(1).collect();
    let (role, result) = if args.is_empty() { ("attnpack", build_kernels()) } else { ("ptx-gen", generate(args)) };
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("{role}: {error:#}");
    ExitCode::FAILURE
}

/// The first role: the build script.
fn build_kernels() -> Result<()> {
    // SAFETY: this process has opened no file yet, so the descriptors that Cargo names can only be its job server's.
    let jobserver = unsafe { Client::from_env() };
    let settings = Settings::from_vars(env::vars_os())?;
    let pool = Pool::new(jobserver, settings.jobs);
    let itself = env::current_exe().context("cannot tell the build script's own path")?;
    print!("{}", run(&settings, &itself, &pool)?);
    Ok(())
}

/// The second role: the generator.
fn generate(args: Vec<OsString>) -> Result<()> {
    let args = args.into_iter().map(OsString::into_string).collect::<Result<Vec<_>, _>>();
    let args = args.map_err(|arg| anyhow!("the argument {arg:?} is not valid Unicode"))?;
    ptx_gen::cli::run(&args, &mut std::io::stdout().lock()).map_err(|message| anyhow!(message))
}

/// The build, as policy.
///
/// Fatal always: a generator that fails or speaks another contract, a ptxas that fails, and PTX that it rejects.
/// Fatal unless ptxas is of a release never tested: spills above what the kernel declares, and performance-loss
/// lines. A warning: no ptxas, or one too old for an enabled architecture, where PTX stands in for the cubins that
/// are missing; and what the generator or ptxas warns of. `ATTNPACK_STRICT=1` makes every warning fatal.
pub fn run(settings: &Settings, built_in: &Path, pool: &Pool) -> Result<Outcome> {
    let contract = Contract { format: ptx_gen::manifest::FORMAT, params_hash: ptx_gen::params::layout_hash() };
    let mut warnings = Warnings::new(settings.strict);
    let mut outcome = Outcome::watching(settings);

    let tool = ptxas::find(settings)?;
    outcome.watch_tool(&tool);
    if let Found::Missing { skipped } = &tool {
        warnings.add(ptxas::explain_missing(skipped))?;
    }
    let manifest = generator::emit(settings, built_in, &contract, &mut warnings)?;
    let kernels = kernel::load(settings, manifest)?;
    let assembled = match &tool {
        Found::Ptxas(ptxas) => assemble::all(settings, ptxas, &kernels, pool, &mut warnings)?,
        Found::Off | Found::Missing { .. } => assemble::nothing(&kernels),
    };
    catalog::write(settings, &tool, &kernels, &assembled)?;

    outcome.link_args = shared_library::link_args(settings)?;
    outcome.warnings = warnings.into_lines();
    Ok(outcome)
}
