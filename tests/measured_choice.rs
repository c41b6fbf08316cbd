//! Which of the packaged forms for Hopper is picked, where every form was timed.

use attnpack::{Alignment, Capability, DType, Entry, Mask, Policy, Problem, Shape, catalog, dispatch};

const H200: Capability = Capability { major: 9, minor: 0, shared_optin_bytes: 227 << 10, multiprocessors: 132 };

/// The fastest form on an H200, of those that are packaged (2026-11-30 and 12-01, bf16, causal; RESULTS.md).
#[test]
fn the_form_for_hopper_that_was_measured_to_be_fastest_is_picked() {
    let forms_of = |head_dim| match head_dim {
        64 => &["", "_medium", "_short", "_split", "_short_split"][..],
        80 => &["", "_long"],
        96 => &["", "_long", "_short", "_split", "_short_split"],
        128 => &["", "_long", "_paired", "_short", "_split", "_short_split"],
        _ => &["", "_paired", "_short", "_split", "_short_split"],
    };
    let cases = [
        ((128, 128), (12, 2), 128, "_short"),
        ((512, 512), (12, 2), 128, "_short"),
        ((200, 200), (40, 8), 128, "_short"),
        ((400, 400), (28, 4), 128, "_short"),
        ((1024, 1024), (28, 4), 128, "_short"),
        ((1024, 1024), (12, 2), 128, "_short"),
        ((400, 400), (64, 8), 64, "_short"),
        ((333, 333), (32, 8), 96, "_short"),
        ((1024, 1024), (32, 8), 96, ""),
        ((2048, 2048), (28, 4), 128, ""),
        ((1024, 1024), (64, 8), 64, "_medium"),
        ((2048, 2048), (14, 2), 64, "_medium"),
        ((8192, 8192), (14, 2), 64, ""),
        ((8192, 8192), (32, 32), 64, ""),
        ((128, 128), (32, 32), 96, "_short"),
        ((2048, 2048), (8, 4), 256, "_short"),
        ((8192, 8192), (8, 4), 256, "_paired"),
        ((16_384, 16_384), (8, 8), 256, "_paired"),
        ((2048, 2048), (32, 8), 128, ""),
        ((8192, 8192), (32, 8), 128, "_long"),
        ((8192, 8192), (64, 8), 128, "_long"),
        ((2048, 32_768), (32, 8), 128, "_paired"),
        ((4096, 4096), (32, 32), 80, "_long"),
        ((2048, 2048), (32, 32), 96, ""),
        ((8192, 8192), (32, 32), 96, "_long"),
        ((1024, 1024), (32, 8), 128, "_short"),
        ((4000, 4000), (12, 12), 64, ""),
        ((5000, 5000), (9, 3), 64, ""),
        ((441, 1845), (12, 12), 64, "_short_split"),
        ((1, 8192), (32, 8), 128, "_short_split"),
        ((64, 1024), (32, 8), 128, "_short_split"),
        ((64, 4096), (12, 2), 128, "_short_split"),
        ((128, 8192), (32, 8), 128, "_short_split"),
        ((100, 5000), (32, 8), 128, "_short_split"),
        ((256, 8192), (32, 8), 128, "_split"),
        ((128, 8192), (32, 8), 64, "_short_split"),
        ((256, 8192), (8, 4), 256, "_split"),
        ((256, 4096), (32, 8), 128, "_split"),
        ((512, 8192), (32, 8), 128, ""),
        ((128, 128), (14, 2), 64, "_short"),
        ((1, 8192), (32, 8), 64, "_short_split"),
        ((256, 8192), (32, 8), 64, "_split"),
        ((512, 512), (32, 32), 96, "_short"),
        ((64, 1024), (32, 32), 96, "_short_split"),
        ((512, 512), (8, 4), 256, "_short_split"),
    ];
    for ((q_len, kv_len), (q_heads, kv_heads), head_dim, fastest) in cases {
        let name = |form: &str| format!("prefill_wgmma_bf16_d{head_dim}_gany_causal{form}_sm90a");
        let has_code = |entry: &Entry| !entry.cubins.is_empty() || entry.ptx.is_some();
        let is_packaged = |form: &&str| catalog().iter().any(|entry| entry.name == name(form) && has_code(entry));
        let missing: Vec<_> = forms_of(head_dim).iter().filter(|form| !is_packaged(form)).collect();
        if missing.len() == forms_of(head_dim).len() {
            continue; // A build for other GPUs.
        }
        assert!(missing.is_empty(), "head_dim {head_dim} has no {missing:?}");
        let shape = Shape { batch: 1, q_len, kv_len, q_heads, kv_heads, head_dim };
        let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build().expect("legal");
        let picked = dispatch(&problem, Alignment::of_strides(&problem), H200, Policy::CubinFirst, catalog()).expect("served");
        assert_eq!(picked.entry.name, name(fastest), "{q_len} x {kv_len}, {q_heads}/{kv_heads} heads");
    }
}
