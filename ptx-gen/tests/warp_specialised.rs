//! A producer and two consumer warpgroups with TMA, mbarriers, wgmma and setmaxnreg, written with the builder: the
//! shape of a kernel for sm_90a, small. ptxas takes it without a word if it is there (`ATTNPACK_PTXAS`).

use std::process::Command;

use ptx_gen::params;
use ptx_gen::ptx::builder::{Header, Kernel};
use ptx_gen::ptx::inst::{MmaType, Special, Target};
use ptx_gen::ptx::types::{Element, Global, Ptr, Reg};
use ptx_gen::ptx::warpgroup::{Accumulator, Mbarrier, Role};

const SM_90A: Target = Target { capability: 90, specific: true };
const STAGES: u32 = 2;
const CONSUMERS: u32 = 2;
/// A tile of 64 rows of 128 bytes.
const TILE_BYTES: u32 = 64 * 128;
const STAGE_BYTES: u32 = 2 * TILE_BYTES;
const FIRST_TILE: u32 = 1024;

#[derive(Clone, Copy)]
struct F32;

impl Element for F32 {
    const BYTES: u32 = 4;
}

fn header(target: Target) -> Header {
    Header { name: "gemm".to_owned(), target, threads: 384, blocks_per_sm: 1, params: &params::PREFILL_TMA }
}

/// Barriers of a stage: bytes have arrived; the consumer is done with them.
fn barriers<'k>(shared: Reg<'k, u32>, stage: Reg<'k, u32>) -> (Mbarrier<'k>, Mbarrier<'k>) {
    let at = shared + (stage << 4);
    (Mbarrier::new(at, 0), Mbarrier::new(at, 8))
}

/// Descriptor of a K-major tile with the 128-byte swizzle.
fn descriptor<'k>(k: &'k Kernel, address: Reg<'k, u32>) -> Reg<'k, u64> {
    const SWIZZLE_128: u64 = 1 << 62;
    const STRIDE_1024: u64 = (1024 >> 4) << 32;
    ((address & 0x3_FFFF) >> 4).to_u64() + k.constant(SWIZZLE_128 | STRIDE_1024)
}

/// C = A B^T over `tiles` tiles of 64 columns, 64 x 64.
fn gemm(k: &Kernel) {
    let shared = k.shared_base();
    let tiles = k.param::<u32>("kv_len");
    let first_thread = k.special(Special::TidX).eq(0u32);
    k.when(first_thread, || {
        for stage in 0..STAGES {
            let (full, empty) = barriers(shared, k.constant(stage));
            full.init(1);
            empty.init(CONSUMERS);
        }
    });
    k.publish_barriers();

    let producer = |_: Reg<'_, u32>| {
        let (a, b) = (k.tensor_map("q"), k.tensor_map("k"));
        k.elected(|| {
            k.each_down("tile", tiles, k.constant(0), |n| {
                let (stage, turn) = (n & (STAGES - 1), (n >> STAGES.ilog2()) & 1);
                let (full, empty) = barriers(shared, stage);
                empty.wait(turn ^ 1);
                full.expect(STAGE_BYTES);
                let tile = shared + stage * STAGE_BYTES;
                a.load(&[n << 6, k.constant(0)], (tile, FIRST_TILE), full);
                b.load(&[n << 6, k.constant(0)], (tile, FIRST_TILE + TILE_BYTES), full);
            });
        });
    };
    let consumer = |_: Reg<'_, u32>| {
        let acc = Accumulator::zero(k, 64);
        let mut product = Accumulator::unset(k, 64);
        let releases = (k.special(Special::TidX) & 127).eq(0u32);
        let (always, never) = (k.constant(0u32).eq(0u32), k.constant(0u32).ne(0u32));
        k.each_down("tile", tiles, k.constant(0), |n| {
            let (stage, turn) = (n & (STAGES - 1), (n >> STAGES.ilog2()) & 1);
            let (full, empty) = barriers(shared, stage);
            full.wait(turn);
            let tile = shared + stage * STAGE_BYTES + FIRST_TILE;
            let (a, b) = (descriptor(k, tile), descriptor(k, tile + TILE_BYTES));
            let in_flight = k.issue(&mut product, |m| {
                for k16 in 0..4u64 {
                    m.shared(MmaType::Bf16, a + 2 * k16, b + 2 * k16, if k16 == 0 { never } else { always });
                }
            });
            let done = in_flight.await_leaving(0);
            for (sum, tile) in acc.values().iter().zip(done.values()) {
                let mut sum = *sum;
                sum += tile.get();
            }
            k.guarded(releases, || empty.arrive());
        });
        let out = Ptr::<Global, F32>::from_address(k.param::<u64>("lse"));
        out.store(&[acc.values()[0].get()], 0);
    };
    k.roles(vec![
        Role { warpgroups: 1, registers: Some(24), body: Box::new(producer) },
        Role { warpgroups: CONSUMERS, registers: Some(240), body: Box::new(consumer) },
    ]);
}

#[test]
fn the_builder_carries_a_warp_specialised_kernel() {
    let k = Kernel::new(header(SM_90A));
    gemm(&k);
    let text = k.emit().expect("sm_90a has all of it");
    assert_eq!(text.version.to_string(), "8.0");
    let position = |what: &str| text.ptx.find(what).unwrap_or_else(|| panic!("no {what} in\n{}", text.ptx));
    assert!(position("setmaxnreg.dec.sync.aligned.u32 24") < position("setmaxnreg.inc.sync.aligned.u32 240"));
    assert!(position("wgmma.fence") < position("wgmma.mma_async") && position("wgmma.commit_group") < position("wgmma.wait_group"));
    assert_eq!(text.ptx.matches("cp.async.bulk.tensor.2d").count(), 2);
    // Only the first thread and the elected lane go their own way.
    assert_eq!(text.ptx.matches("bra L").count(), 2, "{}", text.ptx);
}

#[test]
fn another_target_is_refused() {
    let k = Kernel::new(header(Target { capability: 100, specific: false }));
    gemm(&k);
    let error = k.emit().err().expect("sm_90a only");
    assert!(error.contains("needs sm_90a") && error.contains("tests/warp_specialised.rs"), "{error}");
}

#[test]
fn ptxas_takes_it_without_a_warning() {
    let Some(ptxas) = std::env::var_os("ATTNPACK_PTXAS").filter(|p| p != "off") else {
        assert!(std::env::var_os("ATTNPACK_STRICT").is_none(), "ATTNPACK_STRICT=1 needs ATTNPACK_PTXAS");
        // Past the capture of `println!`, so that it shows.
        let _ =
            std::io::Write::write_all(&mut std::io::stderr(), b"SKIPPED ptxas_takes_it_without_a_warning: ATTNPACK_PTXAS names no ptxas\n");
        return;
    };
    let k = Kernel::new(header(SM_90A));
    gemm(&k);
    let ptx = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("warp_specialised.ptx");
    std::fs::write(&ptx, k.emit().expect("emits").ptx).expect("written");
    let output =
        Command::new(ptxas).args(["-arch=sm_90a", "-v", "-o"]).arg(ptx.with_extension("cubin")).arg(&ptx).output().expect("ptxas runs");
    let words = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !words.contains("C75") && !words.contains("warning"), "{words}");
}
