//! Golden files: the instructions that decide a kernel's speed, counted in every variant's PTX (in the hot loop of the
//! Hopper kernels, too), and the whole PTX of one variant for each way to multiply.
//!
//! A change that moves them is either meant, and blessed, or a mistake; the difference is there to be read. They prove
//! nothing about results: that takes a GPU (`tests/numerics.rs` of the root package).

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// What is counted: an opcode's beginning.
const OPCODES: [&str; 9] = ["mma.sync", "ldmatrix", "ld.shared", "cp.async.ca", "cp.async.cg", "ex2", "bar.sync", "shfl.sync", "st.global"];

/// What is counted in the Hopper kernels.
const HOPPER_OPCODES: [&str; 11] = [
    "wgmma.mma",
    "wgmma.fence",
    "wgmma.wait",
    "ex2",
    "fma.rn",
    "cvt.rn",
    "add.rn",
    "bar.sync",
    "mbarrier",
    "cp.async.bulk.tensor",
    "mma.sync",
];

/// The loop over the blocks of keys that need no mask, by the word in its labels.
const HOT_LOOP: &str = "_whole_block:";

/// Variants whose whole PTX is kept: the small tiling of each body.
const WHOLE: [&str; 2] = ["prefill_mma_bf16_d64_g3_causal_short_sm80", "prefill_mma_f32_d64_gany_anymask_sm86"];

fn run(args: &[&str]) -> String {
    let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
    let mut out = Vec::new();
    ptx_gen::cli::run(&args, &mut out).expect("the generator runs");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn opcode_counts_are_as_blessed() {
    let mut counts = header(&OPCODES);
    for name in names("prefill_mma_") {
        counts.push_str(&count(&name, &OPCODES, &run(&["show", &name])));
    }
    compare("opcodes.txt", &counts);
}

#[test]
fn opcode_counts_of_hopper_kernels_are_as_blessed() {
    let mut counts = header(&HOPPER_OPCODES);
    for name in names("prefill_wgmma_") {
        let ptx = run(&["show", &name]);
        let mut loops = ptx.split('\n').skip_while(|l| !l.ends_with(HOT_LOOP)).skip(1);
        let hot: Vec<_> = loops.by_ref().take_while(|l| !l.ends_with(HOT_LOOP)).collect();
        assert!(!loops.any(|l| l.ends_with(HOT_LOOP)), "{name} has one hot loop");
        counts.push_str(&count(&name, &HOPPER_OPCODES, &ptx));
        counts.push_str(&count("  hot loop", &HOPPER_OPCODES, &hot.join("\n")));
    }
    compare("hopper_opcodes.txt", &counts);
}

fn names(prefix: &str) -> Vec<String> {
    let list = run(&["list"]);
    let names = list.lines().skip(1).map(|l| l.split_whitespace().next().expect("a name").to_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
}

fn header(opcodes: &[&str]) -> String {
    let mut line = format!("{:<52}", "variant");
    for opcode in opcodes {
        let _ = write!(line, " {opcode:>10}");
    }
    line + "\n"
}

fn count(name: &str, opcodes: &[&str], ptx: &str) -> String {
    let mut line = format!("{name:<52}");
    for opcode in opcodes {
        let count = places(&instructions(ptx), opcode).len();
        let _ = write!(line, " {count:>10}");
    }
    line + "\n"
}

/// The instructions of a kernel, without their guards.
fn instructions(ptx: &str) -> Vec<&str> {
    ptx.lines().filter_map(|l| l.strip_prefix('\t')).map(unguarded).collect()
}

/// Which of them begin so.
fn places(insts: &[&str], opcode: &str) -> Vec<usize> {
    (0..insts.len()).filter(|at| insts[*at].starts_with(opcode)).collect()
}

#[test]
fn whole_kernels_are_as_blessed() {
    for name in WHOLE {
        // Without the Rust origins, which move with every line of the generator.
        let ptx: String =
            run(&["show", name]).lines().map(|l| l.split_once("\t// ").map_or(l, |(inst, _)| inst).to_owned() + "\n").collect();
        compare(&format!("{name}.ptx"), &ptx);
    }
}

/// Every wait for copies is followed by a barrier before anything reads what they brought: a thread's wait says
/// nothing of the other threads' copies.
#[test]
fn a_barrier_follows_every_wait_for_copies() {
    for name in names("prefill_mma_") {
        let ptx = run(&["show", &name]);
        let mut waits = 0;
        let mut awaits_barrier = false;
        for inst in instructions(&ptx) {
            if let Some(pending) = inst.strip_prefix("cp.async.wait_group ") {
                assert!(pending.starts_with("0;"), "{name}: {inst} leaves copies in flight that the next reads need");
                (waits, awaits_barrier) = (waits + 1, true);
            }
            awaits_barrier &= !inst.starts_with("bar.sync");
            let reads_shared = inst.starts_with("ldmatrix") || inst.starts_with("ld.shared");
            assert!(!(awaits_barrier && reads_shared), "{name}: {inst} follows a wait without a barrier");
        }
        // Two in each of the two loops, and one for the copies of a block that saw no key.
        assert_eq!(waits, 5, "{name}");
    }
}

/// A Hopper kernel waits once for the grid before it, in front of all copies, and once lets the grid after it start: behind that
/// wait, so that who waits for this grid has waited for the one before.
#[test]
fn hopper_kernels_wait_before_they_copy() {
    for name in names("prefill_wgmma_") {
        let ptx = run(&["show", &name]);
        let insts = instructions(&ptx);
        let all = |opcode: &str| places(&insts, opcode);
        let [waits, launches] = ["griddepcontrol.wait", "griddepcontrol.launch_dependents"].map(all);
        assert!(waits.len() == 1 && launches.len() == 1, "{name}: {waits:?} {launches:?}");
        let (copies, loads) = (all("cp.async.bulk.tensor"), all("ld.global"));
        assert!(copies.iter().chain(&launches).all(|at| waits[0] < *at) && loads.is_empty(), "{name}: {waits:?} {launches:?} {copies:?}");
        let is_elected = |at: usize| insts[..at].iter().filter(|inst| inst.starts_with("elect.sync")).count() == 1;
        assert!(is_elected(waits[0]) && is_elected(launches[0]), "{name}: another thread than the one that copies waits");
    }
}

/// Blocks of a cluster access each other's memory between two barriers of the cluster only, each one arrival and one wait behind
/// it. Where they split keys, the first says that every block is ready, and orders no writes; the second, that all shares are
/// there. Where they take neighbouring tiles, the first says that both run, with their barriers initialised, and the second that
/// neither accesses the other any more. Other kernels have nothing of that. Those that split keys claim no tiles.
#[test]
fn clusters_access_each_other_between_two_barriers() {
    for name in names("prefill_wgmma_") {
        let ptx = run(&["show", &name]);
        let insts = instructions(&ptx);
        let all = |opcode: &str| places(&insts, opcode);
        let (splits_keys, is_paired) = (name.contains("split"), name.contains("_paired_"));
        assert_eq!(ptx.contains("tile_claims"), !splits_keys, "{name}: a table of claims");

        let copies: Vec<_> = all("cp.async.bulk.tensor").into_iter().filter(|at| insts[*at].contains("multicast::cluster")).collect();
        let [stores, shared_numbers, releases] = ["st.shared::cluster.", "st.async.", "mbarrier.arrive.shared::cluster."].map(all);
        let accesses = [&copies, &stores, &shared_numbers, &releases];
        let present = accesses.map(|places| !places.is_empty());
        assert_eq!(present, [is_paired, splits_keys, is_paired, is_paired], "{name}: {accesses:?}");

        let barriers: Vec<_> = all("barrier.cluster.").into_iter().map(|at| (at, insts[at])).collect();
        if !splits_keys && !is_paired {
            assert!(barriers.is_empty() && all("mapa").is_empty(), "{name}: {barriers:?}");
            continue;
        }
        let opcodes: Vec<_> = barriers.iter().map(|(_, inst)| inst.split_once(';').map_or(*inst, |(opcode, _)| opcode)).collect();
        let [relaxed, release] = ["relaxed", "release"].map(|order| format!("barrier.cluster.arrive.{order}.aligned"));
        let wait = "barrier.cluster.wait.acquire.aligned";
        assert_eq!(opcodes, [&relaxed, wait, &release, wait], "{name}");
        let between = barriers[1].0..barriers[2].0;
        assert!(accesses.into_iter().flatten().all(|at| between.contains(at)), "{name}: outside of {between:?}: {accesses:?}");
    }
}

fn compare(file: &str, text: &str) {
    const BLESS: &str = "if the change is meant: PTX_GEN_BLESS=1 cargo test -p attnpack-ptx-gen --test golden";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("PTX_GEN_BLESS").is_some() {
        fs::write(&path, text).expect("the golden file can be written");
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    for (number, (expected, actual)) in (1..).zip(golden.lines().zip(text.lines())) {
        assert_eq!(expected, actual, "{file}:{number}; {BLESS}");
    }
    assert_eq!(golden.lines().count(), text.lines().count(), "{file}; {BLESS}");
}

/// An instruction without its guard predicate.
fn unguarded(line: &str) -> &str {
    match line.strip_prefix('@') {
        Some(rest) => rest.split_once(' ').map_or(rest, |(_, instruction)| instruction),
        None => line,
    }
}
