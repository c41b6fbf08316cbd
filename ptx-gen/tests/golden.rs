//! The instructions that decide a kernel's speed, counted in its PTX and compared with `golden/opcodes.txt`.
//!
//! A change that moves these numbers is either meant, and blessed, or a mistake.

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// What is counted: an opcode's beginning.
const OPCODES: [&str; 8] = ["mma.sync", "ldmatrix", "ld.shared", "cp.async.c", "ex2", "bar.sync", "shfl.sync", "st.global"];

fn run(args: &[&str]) -> String {
    let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
    let mut out = Vec::new();
    ptx_gen::cli::run(&args, &mut out).expect("the generator runs");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn opcode_counts_are_as_blessed() {
    let mut counts = format!("{:<52}", "variant");
    for opcode in OPCODES {
        let _ = write!(counts, " {opcode:>10}");
    }
    counts.push('\n');
    let list = run(&["list"]);
    for name in list.lines().skip(1).map(|l| l.split_whitespace().next().expect("a name")) {
        let ptx = run(&["show", name]);
        let _ = write!(counts, "{name:<52}");
        for opcode in OPCODES {
            let count = ptx.lines().filter_map(|l| l.strip_prefix('\t')).filter(|l| unguarded(l).starts_with(opcode)).count();
            let _ = write!(counts, " {count:>10}");
        }
        counts.push('\n');
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/opcodes.txt");
    if std::env::var_os("PTX_GEN_BLESS").is_some() {
        fs::write(&path, &counts).expect("the golden file can be written");
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    for (expected, counted) in golden.lines().zip(counts.lines()) {
        assert_eq!(expected, counted, "if the change is meant: PTX_GEN_BLESS=1 cargo test -p attnpack-ptx-gen --test golden");
    }
    assert_eq!(golden.lines().count(), counts.lines().count(), "PTX_GEN_BLESS=1 cargo test -p attnpack-ptx-gen --test golden");
}

/// An instruction without its guard predicate.
fn unguarded(line: &str) -> &str {
    match line.strip_prefix('@') {
        Some(rest) => rest.split_once(' ').map_or(rest, |(_, instruction)| instruction),
        None => line,
    }
}
