//! What the builder promises to those who write kernels.

use super::builder::{Header, Kernel};
use super::inst::{Special, Target};
use super::ops::reciprocal;
use crate::params;

fn kernel_for(target: Target) -> Kernel {
    Kernel::new(Header { name: "test".to_owned(), target, threads: 32, blocks_per_sm: 1, params: &params::PREFILL })
}

fn kernel() -> Kernel {
    kernel_for(Target::SM_80)
}

#[test]
fn reading_a_variable_copies_it() {
    let k = kernel();
    let mut x = k.var(1u32);
    let before = x.get();
    x += 1u32;
    let difference = x.get() - before;
    let _ = difference;
    let ptx = k.emit().expect("emits").ptx;
    let body: Vec<_> = ptx.lines().filter_map(|l| l.strip_prefix('\t')?.split_once(";\t//")).map(|(inst, _)| inst).collect();
    assert_eq!(body, ["mov.u32 %r0, 1", "mov.u32 %r1, %r0", "add.u32 %r0, %r0, 1", "mov.u32 %r2, %r0", "sub.u32 %r3, %r2, %r1"]);
}

#[test]
fn uniformity_follows_from_the_sources() {
    let k = kernel();
    let block = k.special(Special::CtaIdX);
    let thread = k.special(Special::TidX);
    assert!(block.is_uniform() && (block * k.param::<u32>("q_len") + 1).is_uniform());
    assert!(!thread.is_uniform() && !(thread + block).is_uniform());
    assert!((thread >> 5).broadcast().is_uniform());
    assert!(thread.eq(0u32).in_any_lane().is_uniform());
    assert!(!k.var(0u32).get().is_uniform(), "a variable depends on the path taken");
}

#[test]
#[should_panic(expected = "the bounds of loop 'key tile' are not uniform across the warp")]
fn a_loop_with_lane_dependent_bounds_is_refused() {
    let k = kernel();
    k.each_down("key tile", k.special(Special::TidX), k.constant(0), |_| {});
}

#[test]
fn branches_on_uniform_conditions_are_uniform() {
    let k = kernel();
    k.when(k.special(Special::CtaIdX).gt(0u32), || {});
    k.when(k.special(Special::TidX).gt(0u32), || {});
    let ptx = k.emit().expect("emits").ptx;
    assert!(ptx.contains("@!%p0 bra.uni L0_skip") && ptx.contains("@!%p1 bra L1_skip"), "{ptx}");
}

#[test]
#[should_panic(expected = "needs every lane of the warp")]
fn a_shuffle_in_a_divergent_branch_is_refused() {
    let k = kernel();
    let lane = k.special(Special::TidX);
    k.when(lane.eq(0u32), || _ = lane.shuffle_xor(1));
}

#[test]
#[should_panic(expected = "needs every lane of the warp")]
fn a_guarded_shuffle_is_refused() {
    let k = kernel();
    let lane = k.special(Special::TidX);
    k.guarded(lane.eq(0u32), || _ = lane.shuffle_xor(1));
}

#[test]
#[should_panic(expected = "a guard covers instructions, not branches")]
fn a_branch_under_a_guard_is_refused() {
    let k = kernel();
    let first = k.special(Special::TidX).eq(0u32);
    k.guarded(first, || k.when(first, || {}));
}

#[test]
fn a_loop_may_run_zero_times() {
    let k = kernel();
    k.each_down("tile", k.param::<u32>("q_len"), k.constant(0), |n| {
        assert!(n.is_uniform());
    });
    let ptx = k.emit().expect("emits").ptx;
    let skip = ptx.find("bra.uni L1_tile").expect("a branch around the loop");
    assert!(skip < ptx.find("L0_tile:").expect("the loop's head"), "{ptx}");
}

#[test]
fn the_version_is_the_lowest_that_has_target_and_instructions() {
    assert_eq!(kernel().emit().expect("emits").version.to_string(), "7.0");
    let sm_90a = Target { capability: 90, specific: true };
    assert_eq!(kernel_for(sm_90a).emit().expect("emits").version.to_string(), "8.0");
}

#[test]
fn an_instruction_that_the_target_lacks_is_refused_with_its_origin() {
    let k = kernel_for(Target { capability: 75, specific: false });
    k.commit_copies();
    let error = k.emit().err().expect("cp.async needs sm_80");
    assert!(error.contains("ptx-gen/src/ptx/tests.rs:") && error.contains("needs sm_80") && error.contains("sm_75"), "{error}");
}

#[test]
fn division_by_a_constant_is_exact_below_2_to_the_31() {
    let limit = 1_u64 << 31;
    for divisor in (1..=300).filter(|d: &u32| !d.is_power_of_two()) {
        let (factor, shift) = reciprocal(divisor);
        let d = u64::from(divisor);
        // A quotient goes wrong first just below a multiple of the divisor, and for large dividends.
        let edges = (0..200).flat_map(|i| [limit / d * d - i * d, (i + 1) * d]).flat_map(|m| [m - 1, m]);
        for n in edges.chain([0, limit - 1]).filter(|n| *n < limit) {
            assert_eq!((n * u64::from(factor)) >> 32 >> shift, n / d, "{n} / {divisor}");
        }
    }
}

#[test]
#[should_panic(expected = "PrefillParams has no field kv_heads")]
fn an_unknown_parameter_is_refused() {
    kernel().param::<u32>("kv_heads");
}

#[test]
fn a_uniform_variable_is_uniform_and_takes_nothing_else() {
    let k = kernel();
    let block = k.special(Special::CtaIdX);
    let turn = k.uniform_var(0u32);
    turn.set(block + 1);
    assert!(turn.get().is_uniform() && !k.var(block).get().is_uniform());
}

#[test]
#[should_panic(expected = "a uniform variable is assigned a value that may differ between lanes")]
fn a_uniform_variable_refuses_a_lane_dependent_value() {
    let k = kernel();
    k.uniform_var(0u32).set(k.special(Special::TidX));
}

#[test]
#[should_panic(expected = "a uniform variable is assigned a value that may differ between lanes")]
fn a_uniform_variable_refuses_an_assignment_that_some_lanes_miss() {
    let k = kernel();
    let turn = k.uniform_var(0u32);
    k.when(k.special(Special::TidX).eq(0u32), || turn.set(1u32));
}

#[test]
fn loops_are_left_and_branches_joined() {
    let k = kernel();
    let mut n = k.var(3u32);
    k.repeat("count", |exit| {
        n -= 1u32;
        exit.when(n.get().broadcast().eq(0u32));
    });
    let far = k.param::<u32>("q_len").gt(64u32);
    k.either(far, || n.set(1u32)).otherwise(|| n.set(2u32));
    let ptx = k.emit().expect("emits").ptx;
    let labels: Vec<_> = ptx.lines().filter(|l| l.ends_with(':')).collect();
    assert_eq!(labels, ["L0_count:", "L1_count:", "L2_otherwise:", "L3_joined:"]);
    for branch in ["bra.uni L1_count", "\tbra.uni L0_count", "bra.uni L2_otherwise", "\tbra.uni L3_joined"] {
        assert_eq!(ptx.matches(branch).count(), 1, "{branch} in\n{ptx}");
    }
}

/// The divisions by parameters of the Hopper kernels (`section_tiles_factor` in `params.rs`).
#[test]
fn division_by_a_parameter_is_exact_below_2_to_the_31() {
    for divisor in (1..=300u64).chain([1 << 20, (1 << 23) - 1, (1 << 31) - 1]) {
        let shift = divisor.next_power_of_two().ilog2();
        let factor = (1_u64 << (31 + shift)).div_ceil(divisor);
        assert!(factor <= u64::from(u32::MAX), "{divisor}");
        let limit = 1_u64 << 31;
        let edges = (0..200).flat_map(|i| [limit / divisor * divisor - (i * divisor).min(limit / 2), (i + 1) * divisor]);
        for n in edges.flat_map(|m| [m.saturating_sub(1), m]).chain([0, limit - 1]).filter(|n| *n < limit) {
            assert_eq!((2 * n * factor) >> 32 >> shift, n / divisor, "{n} / {divisor}");
        }
    }
}
