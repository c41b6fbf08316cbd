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
