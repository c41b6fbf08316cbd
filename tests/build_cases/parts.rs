//! The parts by themselves: settings, reports, the key of the cache, parallel work.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use jobserver::Client;

use crate::bench::{archs, assert_tells};
use crate::build_support::script::build::cache;
use crate::build_support::script::build::jobs::Pool;
use crate::build_support::script::build::report::{self, Complaint};
use crate::build_support::script::build::settings::{PtxasSetting, Settings, SharedLibrary};

fn settings(vars: &[(&str, &str)]) -> Result<Settings> {
    let vars = vars.iter().chain(&[("OUT_DIR", "/out"), ("NUM_JOBS", "3")]);
    Settings::from_vars(vars.map(|(name, value)| (OsString::from(name), OsString::from(value))))
}

#[test]
fn settings_are_read_from_variables() {
    let read = settings(&[
        ("CARGO_FEATURE_SM_120", "1"),
        ("CARGO_FEATURE_SM_80", "1"),
        ("CARGO_FEATURE_CAPI", "1"),
        ("ATTNPACK_PTXAS", "/opt/ptxas"),
        ("ATTNPACK_STRICT", "1"),
        ("ATTNPACK_VARIANTS", "*d64*"),
        ("ATTNPACK_PTX_GEN", "/opt/gen"),
        ("ATTNPACK_CACHE_DIR", "/var/cache"),
    ]);
    let read = read.unwrap();
    assert_eq!(read.archs, archs(&["sm_80", "sm_120"]));
    assert_eq!(read.ptxas, PtxasSetting::Named("/opt/ptxas".into()));
    assert_eq!((read.strict, read.jobs), (true, 3));
    assert_eq!(read.variants.as_deref(), Some("*d64*"));
    assert_eq!(read.generator, Some("/opt/gen".into()));
    assert_eq!(read.cache_dir, Some("/var/cache".into()));

    let empty = settings(&[("ATTNPACK_PTXAS", ""), ("ATTNPACK_STRICT", "")]).unwrap();
    assert_eq!((empty.ptxas, empty.strict), (PtxasSetting::Search, false));
    assert_eq!(settings(&[("ATTNPACK_PTXAS", "off")]).unwrap().ptxas, PtxasSetting::Off);
}

#[test]
fn the_shared_library_is_named_by_what_may_break() {
    let linux =
        [("CARGO_FEATURE_CAPI", "1"), ("CARGO_CFG_TARGET_OS", "linux"), ("CARGO_CFG_TARGET_ENV", "gnu"), ("HOST", "x"), ("TARGET", "x")];
    let named = |version: [(&'static str, &'static str); 2], more: &[(&'static str, &'static str)]| {
        settings(&linux.iter().chain(&version).chain(more).copied().collect::<Vec<_>>()).unwrap().shared_library
    };
    let version = |major, minor| [("CARGO_PKG_VERSION_MAJOR", major), ("CARGO_PKG_VERSION_MINOR", minor)];
    let library = |soname: &str, native| Some(SharedLibrary { soname: soname.to_owned(), native });
    assert_eq!(named(version("0", "3"), &[]), library("libattnpack.so.0.3", true));
    assert_eq!(named(version("2", "3"), &[("TARGET", "y")]), library("libattnpack.so.2", false));
    assert_eq!(named(version("0", "3"), &[("CARGO_CFG_TARGET_OS", "windows")]), None);
    assert_eq!(named(version("0", "3"), &[("CARGO_FEATURE_CAPI", "")]), None);
}

#[test]
fn settings_that_mean_nothing_are_refused() {
    for (vars, told) in [
        (&[("ATTNPACK_STRICT", "yes")][..], "ATTNPACK_STRICT=yes"),
        (&[("ATTNPACK_PTXAS", "bin/ptxas")], "ATTNPACK_PTXAS=bin/ptxas must be an absolute path"),
        (&[("ATTNPACK_PTX_GEN", "gen")], "ATTNPACK_PTX_GEN=gen must be an absolute path"),
        (&[("ATTNPACK_CACHE_DIR", "cache")], "ATTNPACK_CACHE_DIR=cache must be an absolute path"),
        (&[("ATTNPACK_PTXAS", "off"), ("ATTNPACK_STRICT", "1")], "demands a ptxas and ATTNPACK_PTXAS=off refuses one"),
    ] {
        assert_tells(&format!("{:#}", settings(vars).unwrap_err()), &[told]);
    }
}

/// Lines of ptxas 12.9, 13.0 and 13.5.
const SAID: &str = "\
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x in function 'k'
ptxas info    : (C7509) Potential Performance Loss: wgmma.mma_async instructions are serialized due to y in the function 'f' in line 14
ptxas info    : (C7519) warpgroup.arrive is injected in around line 20 by compiler to allow use of registers in GMMA in function 'k'
ptxas warning : Registers are spilled to local memory in function 'k', 284 bytes spill stores, 280 bytes spill loads
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for f
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for k
    288 bytes stack frame, 284 bytes spill stores, 280 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 288 bytes cumulative stack size, 360 bytes cmem[0]
ptxas info    : Compile time = 13.076 ms
ptxas k.ptx, line 7; error   : Unknown symbol '%q2'
ptxas k.ptx, line 1; fatal   : Unsupported .version 9.9; current version is '8.8'
ptxas fatal   : Ptx assembly aborted due to errors
";

#[test]
fn reports_are_read() {
    let report = report::parse(SAID);
    assert_eq!((report.registers, report.spill_bytes), (Some(24), Some(564)));
    assert_eq!(report.losses.iter().map(|loss| loss.line).collect::<Vec<_>>(), [None, Some(14)]);
    assert_eq!(report.warnings.len(), 1);
    let complaint = |line, words: &str| Complaint { line: Some(line), words: words.to_owned() };
    assert_eq!(report.errors, [complaint(7, "Unknown symbol '%q2'"), complaint(1, "Unsupported .version 9.9; current version is '8.8'")]);
    assert_eq!(report::parse("nonsense\nptxas\nptxas info    : Used many registers"), report::Report::default());
    assert_eq!(report, report::parse(&SAID.replace("ptxas ", "ptxas-12.9 ")), "a ptxas of another name");
}

#[test]
fn all_that_makes_a_cubin_is_in_its_key() {
    let [sm_90, sm_90a] = archs(&["sm_90", "sm_90a"])[..] else { panic!("two") };
    let key = cache::key("ptx", "V13.0.88", sm_90, &["-v"]);
    assert_eq!(key, cache::key("ptx", "V13.0.88", sm_90, &["-v"]));
    let keys = BTreeSet::from([
        key,
        cache::key("ptx ", "V13.0.88", sm_90, &["-v"]),
        cache::key("ptx", "V13.0.89", sm_90, &["-v"]),
        cache::key("ptx", "V13.0.88", sm_90a, &["-v"]),
        cache::key("ptx", "V13.0.88", sm_90, &["-O1"]),
        cache::key("ptx", "V13.0.88", sm_90, &["-v", "-O1"]),
        cache::key("ptx", "V13.0.88", sm_90, &["-v-O1"]),
        cache::key("ptxV", "13.0.88", sm_90, &["-v"]),
    ]);
    assert_eq!(keys.len(), 8, "each differs from all others");
}

/// How many of 12 jobs ran at a time at most.
fn most_at_a_time(pool: &Pool) -> usize {
    let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = pool.run(12, |job| {
        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(20));
        running.fetch_sub(1, Ordering::SeqCst);
        Ok(job * job)
    });
    assert_eq!(results.unwrap(), (0..12).map(|job| job * job).collect::<Vec<_>>());
    most.into_inner()
}

#[test]
fn parallel_work_keeps_to_the_limit() {
    assert_eq!(most_at_a_time(&Pool::new(None, 1)), 1);
    assert_eq!(most_at_a_time(&Pool::new(None, 4)), 4);
    assert_eq!(Pool::new(None, 4).run(0, |_| Ok(())).unwrap(), []);
}

#[test]
fn parallel_work_shares_the_job_server() {
    let client = Client::new(2).unwrap();
    // One job without a token, and one for each of the two.
    assert_eq!(most_at_a_time(&Pool::new(Some(client.clone()), 8)), 3);
    assert_eq!(client.available().unwrap(), 2, "tokens are given back");
    let taken = [client.acquire().unwrap(), client.acquire().unwrap()];
    assert_eq!(most_at_a_time(&Pool::new(Some(client.clone()), 8)), 1, "another process holds them");
    drop(taken);
    assert_eq!(client.available().unwrap(), 2);
}

#[test]
fn parallel_work_stops_at_a_failure() {
    let started = AtomicUsize::new(0);
    let result: Result<Vec<()>, _> = Pool::new(None, 2).run(100, |job| {
        started.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(5));
        if job == 3 { Err(anyhow!("job {job}")) } else { Ok(()) }
    });
    assert_eq!(result.unwrap_err()[0].to_string(), "job 3");
    assert!(started.into_inner() < 10);
}

#[test]
fn parallel_work_passes_a_panic_on() {
    for limit in [1, 2] {
        let (running, inbox) = mpsc::channel::<()>();
        let pool = thread::spawn(move || {
            let _running = running;
            let _ = Pool::new(None, limit).run(3, |job| if job == 0 { panic!("job {job}") } else { Ok(()) });
        });
        assert_eq!(inbox.recv_timeout(Duration::from_secs(20)), Err(RecvTimeoutError::Disconnected), "it waits for no right");
        assert!(pool.join().is_err());
    }
}
