//! Every kernel through ptxas, for every enabled architecture.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::cache::{self, Assembly, Cache};
use super::finding::{self, Finding};
use super::jobs::Pool;
use super::kernel::Kernel;
use super::manifest::Arch;
use super::ptxas::{FLAGS, Kind, Ptxas};
use super::report::{self, Report};
use super::settings::Settings;
use super::{Warnings, empty_dir};

/// What ptxas made of one kernel.
#[derive(Clone, Debug, Default)]
pub struct Assembled {
    /// One for each enabled architecture that ptxas can build for.
    pub cubins: Vec<Cubin>,
    /// Whether ptxas accepted the PTX, for these or, if there are none, for its own target.
    pub is_checked: bool,
}

/// A cubin.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// What it runs on.
    pub arch: Arch,
    /// The file.
    pub image: Vec<u8>,
    /// Registers per thread; 0 if ptxas did not say.
    pub registers: u32,
    /// Spill stores and loads, in bytes.
    pub spill_bytes: u32,
}

impl Kernel {
    /// Whether its PTX is embedded beside these cubins: if it is portable, or stands in for a missing one.
    pub fn embeds_ptx(&self, cubins: &[Cubin]) -> bool {
        self.variant.portable || cubins.len() < self.archs.len()
    }

    fn kind(&self, arch: Arch) -> Kind {
        Kind { ptx_version: self.variant.ptx_version, target: self.variant.target, arch }
    }
}

/// Without ptxas: no cubins, and PTX that nobody checked.
pub fn nothing(kernels: &[Kernel]) -> Vec<Assembled> {
    vec![Assembled::default(); kernels.len()]
}

/// Assembles all kernels; the results are in their order.
///
/// # Errors
/// A kernel that ptxas rejects, or that has trouble which is not forgiven to this ptxas; a file that cannot be
/// read or written.
pub fn all(settings: &Settings, tool: &Ptxas, kernels: &[Kernel], pool: &Pool, warnings: &mut Warnings) -> Result<Vec<Assembled>> {
    let bench = Bench {
        tool,
        cache: Cache::open(&settings.cache_dir.clone().unwrap_or_else(|| settings.out("cache")))?,
        inputs: settings.out("ptx"),
        generated: settings.out("generated"),
        scratch: settings.out("scratch"),
    };
    empty_dir(&bench.scratch)?;
    let refusals = refusals(&bench, kernels)?;
    if let Some(warning) = too_old(tool, kernels, &refusals) {
        warnings.add(warning)?;
    }
    let jobs = jobs(kernels, &refusals);
    let done = pool.run(jobs.len(), |job| bench.assemble(&kernels[jobs[job].kernel], jobs[job].arch));
    let done = done.map_err(|failures| anyhow!(failures.iter().map(|e| format!("{e:#}")).collect::<Vec<_>>().join("\n\n")))?;
    fs::remove_dir_all(&bench.scratch).context("cannot remove OUT_DIR/scratch")?;
    if settings.cache_dir.is_none() {
        bench.cache.remove_unused()?;
    }
    let mut done: Vec<_> = jobs.into_iter().zip(done).collect();
    done.sort_by_key(|(job, _)| (job.kernel, job.arch));
    judge(tool, settings, kernels, &done, warnings)?;
    Ok(collect(kernels, done))
}

/// One run of ptxas.
struct Job {
    kernel: usize,
    arch: Arch,
    /// Whether the cubin is embedded; otherwise the run only checks the PTX.
    embed: bool,
}

/// Why ptxas cannot build the kinds that it cannot.
type Refusals = BTreeMap<Kind, String>;

fn refusals(bench: &Bench<'_>, kernels: &[Kernel]) -> Result<Refusals> {
    let kinds: BTreeSet<Kind> = kernels.iter().flat_map(|k| k.archs.iter().chain([&k.variant.target]).map(|arch| k.kind(*arch))).collect();
    let mut refusals = Refusals::new();
    for kind in kinds {
        if let Some(words) = bench.tool.refusal(&bench.scratch, kind)? {
            refusals.insert(kind, words);
        }
    }
    Ok(refusals)
}

/// The warning, in one line, about the enabled architectures that get PTX instead of cubins.
fn too_old(tool: &Ptxas, kernels: &[Kernel], refusals: &Refusals) -> Option<String> {
    let mut archs = BTreeMap::new();
    for kernel in kernels {
        for arch in &kernel.archs {
            if let Some(words) = refusals.get(&kernel.kind(*arch)) {
                archs.entry(arch.feature()).or_insert(words);
            }
        }
    }
    let names: Vec<_> = archs.keys().map(ToString::to_string).collect();
    let words = archs.values().next()?;
    Some(format!(
        "ptxas {} ({}) is too old for {}: kernels are embedded there as PTX, which the GPU's driver compiles when one is first \
         used. Use a newer ptxas, or disable these features. It said: {words}",
        tool.version,
        tool.path.display(),
        names.join(", "),
    ))
}

/// All runs, the longest texts first, so that no long one is left over for the end.
fn jobs(kernels: &[Kernel], refusals: &Refusals) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (index, kernel) in kernels.iter().enumerate() {
        let can = |arch: &&Arch| !refusals.contains_key(&kernel.kind(**arch));
        let before = jobs.len();
        jobs.extend(kernel.archs.iter().filter(can).map(|arch| Job { kernel: index, arch: *arch, embed: true }));
        let target = kernel.variant.target;
        if jobs.len() == before && can(&&target) {
            jobs.push(Job { kernel: index, arch: target, embed: false });
        }
    }
    jobs.sort_by_key(|job| std::cmp::Reverse(kernels[job.kernel].ptx.stripped.len()));
    jobs
}

/// What one job came to.
struct Done {
    image: Vec<u8>,
    report: Report,
    findings: Vec<Finding>,
}

/// The tool and the folders that a run needs.
struct Bench<'a> {
    tool: &'a Ptxas,
    cache: Cache,
    inputs: PathBuf,
    generated: PathBuf,
    scratch: PathBuf,
}

impl Bench<'_> {
    fn assemble(&self, kernel: &Kernel, arch: Arch) -> Result<Done> {
        let kept = self.generated.join(format!("{}.ptx", kernel.variant.name));
        let key = cache::key(&kernel.ptx.stripped, &self.tool.banner, arch, &FLAGS);
        let Assembly { image, said } = match self.cache.get(&key) {
            Some(assembly) => assembly,
            None => {
                let assembly = self.run(kernel, arch)?;
                self.cache.put(&key, &assembly)?;
                assembly
            }
        };
        let report = report::parse(&said);
        let findings = Finding::all(self.tool, kernel, arch, &report, &kept);
        Ok(Done { image, report, findings })
    }

    fn run(&self, kernel: &Kernel, arch: Arch) -> Result<Assembly> {
        let name = &kernel.variant.name;
        let cubin = self.scratch.join(format!("{name}.{arch}.cubin"));
        let run = self.tool.assemble(&self.inputs, &format!("{name}.ptx"), arch, &cubin)?;
        if !run.accepted {
            let kept = self.generated.join(format!("{name}.ptx"));
            let errors = report::parse(&run.said).errors;
            return Err(anyhow!(Finding::rejected(self.tool, kernel, arch, &run.said, &errors, &kept).to_string()));
        }
        let image = fs::read(&cubin).with_context(|| format!("ptxas accepted {name} for {arch}, but wrote no cubin"))?;
        ensure!(!image.is_empty(), "ptxas accepted {name} for {arch}, but wrote an empty cubin");
        fs::remove_file(&cubin).with_context(|| format!("cannot remove {}", cubin.display()))?;
        Ok(Assembly { image, said: run.said })
    }
}

/// Passes on what ptxas says of kernels that it accepts: as errors, or as warnings.
fn judge(tool: &Ptxas, settings: &Settings, kernels: &[Kernel], done: &[(Job, Done)], warnings: &mut Warnings) -> Result<()> {
    let findings: Vec<_> = done.iter().flat_map(|(_, done)| &done.findings).collect();
    if !findings.is_empty() && (tool.is_tested() || settings.strict) {
        bail!(finding::list(&findings));
    }
    for finding in findings {
        warnings.add(finding.one_line())?;
    }
    // The same warning about many kernels is told once.
    let mut told = BTreeMap::new();
    for (job, done) in done {
        let name = &kernels[job.kernel].variant.name;
        for warning in &done.report.warnings {
            told.entry(warning.words.replace(name, "…")).or_insert((name, 0)).1 += 1;
        }
    }
    for (words, (first, count)) in told {
        warnings.add(format!("ptxas warns: {words} ({count} times, first in {first})"))?;
    }
    Ok(())
}

fn collect(kernels: &[Kernel], done: Vec<(Job, Done)>) -> Vec<Assembled> {
    let mut all = nothing(kernels);
    for (job, Done { image, report, .. }) in done {
        let assembled = &mut all[job.kernel];
        assembled.is_checked = true;
        if job.embed {
            let (registers, spill_bytes) = (report.registers.unwrap_or(0), report.spill_bytes.unwrap_or(0));
            assembled.cubins.push(Cubin { arch: job.arch, image, registers, spill_bytes });
        }
    }
    all
}
