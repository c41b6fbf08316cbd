//! The examples where there is no GPU, and how they read their arguments.

#[path = "../examples/bench/shape.rs"]
mod shape;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

use attnpack::catalog;
use shape::BenchShape;

/// Runs an example with all GPUs hidden. `None`, and a line that says so, if this run of Cargo built no examples.
fn example(name: &str, args: &[&str]) -> Option<Output> {
    let mut path: PathBuf = std::env::current_exe().expect("this program");
    path.pop();
    path.pop();
    path.extend(["examples", &format!("{name}{}", std::env::consts::EXE_SUFFIX)]);
    if !path.exists() {
        let _ = writeln!(std::io::stderr(), "SKIPPED example {name}: it was not built; `cargo test` without a filter builds it");
        return None;
    }
    Some(Command::new(path).args(args).env("CUDA_VISIBLE_DEVICES", "").output().expect("it starts"))
}

/// Checks the exit code, and returns what was printed.
fn text(output: &Output, code: i32) -> String {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.code() == Some(code) && !text.contains("panicked"), "{:?}, not {code}:\n{text}", output.status.code());
    text
}

#[test]
fn prefill_lists_the_kernels() {
    let Some(output) = example("prefill", &[]) else { return };
    let text = text(&output, 0);
    assert!(text.contains("Nothing was executed"), "{text}");
    for entry in catalog() {
        assert!(text.contains(&format!(" {} ", entry.name)), "{} is missing:\n{text}", entry.name);
    }
}

#[test]
fn verify_and_bench_say_that_they_did_nothing() {
    if let Some(output) = example("verify", &[]) {
        assert!(text(&output, 2).contains("Nothing was verified"));
    }
    if let Some(output) = example("bench", &["q=16,h=1,d=64"]) {
        assert!(text(&output, 1).contains("Nothing was timed"));
    }
}

#[test]
fn arguments_are_explained() {
    for name in ["prefill", "verify", "bench"] {
        let (Some(help), Some(bad)) = (example(name, &["--help"]), example(name, &["--frobnicate"])) else { return };
        assert!(text(&help, 0).starts_with("usage: "), "{name}");
        let bad = text(&bad, 2);
        assert!(bad.starts_with("'--frobnicate' is not an option") && bad.contains("usage: "), "{name}: {bad}");
    }
    let refused = [("verify", "--kernel", "frobnicate"), ("bench", "--sets", "0"), ("bench", "--json", "missing"), ("bench", "--out", "o")];
    for (name, option, value) in refused {
        if let Some(output) = example(name, &[option, value]) {
            text(&output, 2);
        }
    }
}

#[test]
fn shapes_are_read_from_text() {
    let full = "b=2,q=64,kv=4096,h=32/8,d=128,full,f16";
    assert_eq!(BenchShape::parse(full).expect("legal").to_string(), full);
    let short = BenchShape::parse("q=2048,h=16,d=64").expect("legal");
    assert_eq!(short.to_string(), "b=1,q=2048,kv=2048,h=16/16,d=64,causal,bf16");
    for (text, complaint) in [
        ("", "'' in '' means nothing"),
        ("q=16,h=4,d=64,f64", "'f64' in 'q=16,h=4,d=64,f64' means nothing"),
        ("q=16,h=4,d=64,x=1", "'x' in 'q=16,h=4,d=64,x=1' means nothing"),
        ("q=-1,h=4,d=64", "'-1' in 'q=-1,h=4,d=64' is no number"),
        ("q=16,h=4/,d=64", "'' in 'q=16,h=4/,d=64' is no number"),
        ("q=16,d=64", "'q=16,d=64' does not say h"),
    ] {
        assert_eq!(BenchShape::parse(text).err().as_deref(), Some(complaint));
    }
}

#[test]
fn shapes_are_read_from_json() {
    let text = r#"[{"set": "model", "b": 1, "sq": 128, "sk": 256, "hq": 32, "hk": 8, "d": 128, "causal": true, "dtype": "bf16"}]"#;
    let shapes = BenchShape::from_json_text(text).expect("legal");
    assert_eq!((shapes.len(), shapes[0].set.as_str()), (1, "model"));
    assert_eq!(shapes[0].to_string(), "b=1,q=128,kv=256,h=32/8,d=128,causal,bf16");
    assert_eq!(
        serde_json::json!([shapes[0].to_json()]).to_string(),
        text.replace(' ', "").parse::<serde_json::Value>().expect("JSON").to_string()
    );
    assert!(BenchShape::from_json_text(&text.replace("\"sk\": 256,", "")).err().is_some_and(|error| error.starts_with("no number sk")));
    assert!(BenchShape::from_json_text("{").is_err());
}

#[test]
fn only_visible_pairs_are_counted() {
    for (q_len, kv_len) in [(1_i64, 1), (5, 5), (3, 9), (9, 3)] {
        let visible = (0..q_len).map(|i| (i + 1 + kv_len - q_len).max(0)).sum::<i64>();
        let flop = |mask: &str| BenchShape::parse(&format!("b=2,q={q_len},kv={kv_len},h=6/2,d=64,{mask}")).expect("legal").flop();
        assert_eq!((flop("causal"), flop("full")), ((4 * 2 * 6 * 64 * visible) as f64, (4 * 2 * 6 * 64 * q_len * kv_len) as f64));
    }
}
