//! What is wrong with a kernel, in words that lead to its source.

use std::fmt;
use std::path::Path;

use super::kernel::{Kernel, Ptx};
use super::manifest::Arch;
use super::ptxas::{Ptxas, TESTED};
use super::report::{Complaint, Report};

/// The kinds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// ptxas does not accept the PTX.
    Rejected,
    /// More bytes spilled than the kernel declares.
    Spill {
        /// Allowed.
        declared: u32,
        /// Reported.
        found: u32,
    },
    /// A `C75xx … Potential Performance Loss` line.
    Loss,
    /// Nothing about registers and spills in the report: they cannot be vouched for.
    Unreadable,
}

/// Trouble with one kernel on one architecture.
pub struct Finding {
    /// What.
    pub trouble: Trouble,
    headline: String,
    /// ptxas's words, each with the PTX line and the Rust line that it is about.
    details: Vec<String>,
    kept: String,
}

impl Finding {
    /// All that is wrong with an accepted kernel.
    pub fn all(tool: &Ptxas, kernel: &Kernel, arch: Arch, report: &Report, kept: &Path) -> Vec<Self> {
        let make = |trouble, complaints: &[Complaint]| Self::new(tool, kernel, arch, trouble, complaints, kept);
        let declared = kernel.variant.spill_bytes;
        let mut findings = Vec::new();
        match (report.spill_bytes, report.registers) {
            (Some(found), Some(_)) if found > declared => findings.push(make(Trouble::Spill { declared, found }, &[])),
            (Some(_), Some(_)) => {}
            _ => findings.push(make(Trouble::Unreadable, &[])),
        }
        if !report.losses.is_empty() {
            findings.push(make(Trouble::Loss, &report.losses));
        }
        findings
    }

    /// A rejection.
    pub fn rejected(tool: &Ptxas, kernel: &Kernel, arch: Arch, said: &str, errors: &[Complaint], kept: &Path) -> Self {
        let unread = Complaint { line: None, words: said.trim().replace('\n', "\n      ") };
        let complaints = if errors.is_empty() { std::slice::from_ref(&unread) } else { errors };
        Self::new(tool, kernel, arch, Trouble::Rejected, complaints, kept)
    }

    fn new(tool: &Ptxas, kernel: &Kernel, arch: Arch, trouble: Trouble, complaints: &[Complaint], kept: &Path) -> Self {
        let (name, version) = (&kernel.variant.name, &tool.version);
        let headline = match trouble {
            Trouble::Rejected => format!("{name}: ptxas {version} rejects it for {arch}"),
            Trouble::Spill { declared, found } => {
                format!("{name}: ptxas {version} spills {found} bytes of registers for {arch}; the kernel declares at most {declared}")
            }
            Trouble::Loss => format!("{name}: ptxas {version} tells of lost performance for {arch}"),
            Trouble::Unreadable => format!("{name}: ptxas {version} reports no registers or spills for {arch} in a form known here"),
        };
        let mut details: Vec<_> = complaints.iter().map(|complaint| detail(complaint, &kernel.ptx)).collect();
        if complaints.iter().all(|complaint| complaint.line.is_none()) {
            details.extend(kernel.ptx.kernel_origin().map(|origin| format!("the kernel is written at {origin}")));
        }
        Finding { trouble, headline, details, kept: kept.display().to_string() }
    }

    fn remedy(&self) -> &'static str {
        match self.trouble {
            Trouble::Rejected => {
                "correct the Rust line; if the instruction is right, its row in ptx-gen/src/ptx/inst.rs states too low a target or \
                 PTX version"
            }
            Trouble::Spill { .. } => {
                "give the kernel a smaller tile or more registers (its row in ptx-gen/src/table.rs), or, if a measurement says that \
                 the spill pays, raise the bound of all kernels (SPILL_BYTES in ptx-gen/src/manifest.rs)"
            }
            Trouble::Loss => {
                "ptxas put waits around asynchronous instructions: touch no register of one in flight, and need fewer registers; an \
                 equivalent form of the kernel often compiles clean"
            }
            Trouble::Unreadable => "teach build/report.rs this release's words",
        }
    }

    /// For Cargo's warnings, which have one line.
    pub fn one_line(&self) -> String {
        let on_one_line = |text: &String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        std::iter::once(&self.headline).chain(&self.details).map(on_one_line).collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.headline)?;
        for detail in &self.details {
            writeln!(f, "    {detail}")?;
        }
        writeln!(f, "  PTX: {}", self.kept)?;
        writeln!(f, "  remedy: {}", self.remedy())?;
        let tested = TESTED.join(", ");
        write!(
            f,
            "  if you changed no kernel: report it, and use a ptxas of a tested release ({tested}), or set ATTNPACK_PTXAS=off for PTX only"
        )
    }
}

/// Many findings in one message: the first in full, the others in a line each.
pub fn list(findings: &[&Finding]) -> String {
    let (full, brief) = findings.split_at(findings.len().min(3));
    let full = full.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n\n");
    let brief: String = brief.iter().map(|finding| format!("\n{}", finding.one_line())).collect();
    if brief.is_empty() { full } else { format!("{full}\n{brief}") }
}

/// ptxas's words, the line of the kept PTX, and the Rust line that emitted it.
fn detail(complaint: &Complaint, ptx: &Ptx) -> String {
    let Some(line) = complaint.line.and_then(|number| ptx.line(number)) else {
        return complaint.words.clone();
    };
    let origin = line.origin.map(|origin| format!("\n      emitted by {origin}")).unwrap_or_default();
    format!("{}\n      line {}: {}{origin}", complaint.words, line.number, line.code)
}
