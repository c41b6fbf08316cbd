//! Kernels that ptxas does not like.

use std::path::Path;

use crate::bench::{Bench, HOPPER, Kernel, PORTABLE, assert_tells};

const BAD: Kernel = Kernel { name: "bad_sm80", body: "\tmov;\n\tbad_instruction;", archs: "sm_80", portable: false, ..PORTABLE };
const SPILLS: Kernel = Kernel { name: "spills_sm80", body: "\tspill 24;", archs: "sm_80", portable: false, ..PORTABLE };
const SLOW: Kernel = Kernel { name: "slow_sm90a", body: "\tloss;", ..HOPPER };
const SILENT: Kernel = Kernel { name: "silent_sm90a", body: "\tsilent;", ..HOPPER };
const WARNS: Kernel = Kernel { name: "warns_sm90a", body: "\twarn;", ..HOPPER };
const WARNS_TOO: Kernel = Kernel { name: "warns_too_sm90a", body: "\twarn;", ..HOPPER };

#[test]
fn a_rejection_leads_to_the_rust_line() {
    let bench = Bench::new("rejected", &[PORTABLE, BAD]);
    let message = bench.failure();
    assert_tells(
        &message,
        &[
            "bad_sm80: ptxas 13.0.88 rejects it for sm_80",
            "Not a name of any known instruction: 'bad_instruction'",
            // Line 9 of the file as generated, line 8 of the stripped one that ptxas was given.
            "line 9: bad_instruction;",
            "emitted by ptx-gen/src/kernels/bad_sm80.rs:7",
            "remedy:",
            "ATTNPACK_PTXAS=off",
        ],
    );
    let kept = bench.settings.out("generated").join("bad_sm80.ptx");
    assert_tells(&message, &[&kept.display().to_string()]);
    assert!(kept.is_file(), "the message names a file that is there");
}

#[test]
fn a_rejection_is_fatal_from_an_untested_release_too() {
    let mut bench = Bench::new("rejected_untested", &[BAD]);
    bench.set_ptxas("13.9.1");
    assert_tells(&bench.failure(), &["ptxas 13.9.1 rejects it"]);
}

#[test]
fn a_spill_above_what_is_declared_fails() {
    let bench = Bench::new("spill", &[SPILLS]);
    assert_tells(&bench.failure(), &["spills_sm80", "spills 24 bytes", "at most 0", "kernels/spills_sm80.rs:7", "PTX: ", "remedy: "]);
    assert_tells(&bench.failure(), &["spills 24 bytes", "SPILL_BYTES in ptx-gen/src/manifest.rs"]);
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx-gen/src/manifest.rs");
    assert_tells(&std::fs::read_to_string(manifest).unwrap(), &["const SPILL_BYTES: u32 ="]);
    bench.set_kernels(&[Kernel { spill_bytes: 24, ..SPILLS }]);
    bench.build().unwrap();
    assert_tells(&bench.catalog(), &["registers: 42, spill_bytes: 24"]);
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let names = ["a_sm80", "b_sm80", "c_sm80", "d_sm80"];
    let bench = Bench::new("all_at_once", &names.map(|name| Kernel { name, ..SPILLS }));
    let message = bench.failure();
    assert_tells(&message, &names);
    assert_eq!(message.matches("remedy: ").count(), 3, "the first three in full:\n{message}");
}

#[test]
fn lost_performance_fails() {
    let bench = Bench::new("loss", &[SLOW]);
    assert_tells(&bench.failure(), &["slow_sm90a", "lost performance", "(C7510)", "kernels/slow_sm90a.rs:7", "remedy: "]);
}

#[test]
fn a_report_that_cannot_be_read_is_not_trusted() {
    let bench = Bench::new("silent", &[SILENT]);
    assert_tells(&bench.failure(), &["silent_sm90a", "reports no registers or spills"]);
}

#[test]
fn an_untested_release_is_forgiven_outside_strict() {
    let mut bench = Bench::new("untested", &[PORTABLE, SPILLS, SLOW]);
    bench.set_ptxas("13.9.1");
    let warnings = bench.build().unwrap().warnings;
    assert_eq!(warnings.len(), 2);
    assert_tells(&warnings[0], &["spills_sm80", "spills 24 bytes"]);
    assert_tells(&warnings[1], &["slow_sm90a", "(C7510)"]);
    assert!(warnings.iter().all(|warning| !warning.contains('\n')), "Cargo shows one line");

    bench.settings.strict = true;
    assert_tells(&bench.failure(), &["13.9.1", "remedy: "]);
}

#[test]
fn warnings_of_ptxas_are_told_once() {
    let mut bench = Bench::new("warns", &[WARNS, WARNS_TOO]);
    let warnings = bench.build().unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert_tells(&warnings[0], &["Something about '…'", "2 times", "warns_sm90a"]);

    bench.settings.strict = true;
    assert_tells(&bench.failure(), &["Something about", "ATTNPACK_STRICT=1"]);
}
