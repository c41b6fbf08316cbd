//! What `ptxas -v` says, read.

/// A line about a place in the PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Line of the text that ptxas was given, from 1.
    pub line: Option<usize>,
    /// ptxas's words.
    pub words: String,
}

/// The facts of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Registers per thread.
    pub registers: Option<u32>,
    /// Spill stores and loads in bytes; of the worst function if there are several.
    pub spill_bytes: Option<u32>,
    /// `C75xx` lines that tell of lost performance. ptxas calls them information, and yet a kernel whose
    /// matrix products it serialises takes twice the time.
    pub losses: Vec<Complaint>,
    /// Warnings.
    pub warnings: Vec<Complaint>,
    /// Errors.
    pub errors: Vec<Complaint>,
}

/// Reads a report. Lines of other kinds are passed over.
pub fn parse(said: &str) -> Report {
    let mut report = Report::default();
    for line in said.lines() {
        if let Some(spill_bytes) = spill_bytes(line) {
            report.spill_bytes = report.spill_bytes.max(Some(spill_bytes));
        }
        let Some((kind, complaint)) = message(line) else { continue };
        if complaint.words.contains("(C75") && complaint.words.contains("Potential Performance Loss") {
            report.losses.push(complaint);
            continue;
        }
        match kind {
            "error" => report.errors.push(complaint),
            // Says only that there were errors.
            "fatal" if complaint.words == "Ptx assembly aborted due to errors" => {}
            "fatal" => report.errors.push(complaint),
            "warning" => report.warnings.push(complaint),
            _ => report.registers = report.registers.max(registers(&complaint.words)),
        }
    }
    report
}

/// `ptxas info    : words` or `ptxas file.ptx, line 7; error   : words`. ptxas begins with the name that it was started
/// by, such as `ptxas-12.9`.
fn message(line: &str) -> Option<(&str, Complaint)> {
    let (_, rest) = line.strip_prefix("ptxas")?.split_once(' ')?;
    let (line, rest) = match rest.split_once(';') {
        Some((place, rest)) if place.contains(", line ") => (number_after(place, ", line "), rest),
        _ => (None, rest),
    };
    let (kind, words) = rest.split_once(':')?;
    let words = words.trim().to_owned();
    // "… is injected in around line 19 by compiler …", "… due to … in line 14"
    let line = line.or_else(|| number_after(&words, " line "));
    Some((kind.trim(), Complaint { line, words }))
}

/// `    288 bytes stack frame, 284 bytes spill stores, 284 bytes spill loads`
fn spill_bytes(line: &str) -> Option<u32> {
    let (_, spills) = line.split_once(" bytes stack frame, ")?;
    let (stores, loads) = spills.split_once(" bytes spill stores, ")?;
    let loads = loads.strip_suffix(" bytes spill loads")?;
    Some(stores.parse::<u32>().ok()?.saturating_add(loads.parse().ok()?))
}

/// `Used 24 registers, used 1 barriers, …`
fn registers(words: &str) -> Option<u32> {
    words.strip_prefix("Used ")?.split_once(" registers")?.0.parse().ok()
}

fn number_after<T: std::str::FromStr>(text: &str, mark: &str) -> Option<T> {
    let (_, rest) = text.split_once(mark)?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    rest[..digits].parse().ok()
}
