//! The words of a real ptxas, in case a release changes them. Skipped where there is none.

use crate::bench::{Bench, Kernel, assert_tells};
use crate::build_support::real_ptxas;
use crate::build_support::script::build::settings::PtxasSetting;

/// Builds PTX of our own with the real ptxas and returns how that fails.
fn failure(test: &str, kernel: Kernel, text: &str) -> Option<String> {
    let ptxas = real_ptxas(test)?;
    let mut bench = Bench::new(test, &[]);
    // An untested release would be forgiven some of this.
    bench.settings.strict = true;
    bench.settings.ptxas = PtxasSetting::Named(ptxas.path);
    let file = bench.dir.join("kernels").join(format!("{}.ptx", kernel.name));
    std::fs::write(file, text).unwrap();
    bench.write_manifest(ptx_gen::manifest::FORMAT, ptx_gen::params::layout_hash(), &[kernel]);
    Some(bench.failure())
}

const SM80: Kernel = Kernel { name: "k", body: "", spill_bytes: 0, archs: "sm_80", target: "sm_80", ptx_version: "7.0", portable: false };

#[test]
fn a_rejection_leads_to_the_rust_line() {
    let text = "\
.version 7.0
.target sm_80
.address_size 64
.visible .entry k()
.reqntid 128, 1, 1
{
// a note
\t.reg .b32 %r<2>;
\tadd.u32 %r0, %q, 1;\t// ptx-gen/src/kernels/k.rs:42
\tret;
}
";
    let Some(message) = failure("real_rejection", SM80, text) else { return };
    assert_tells(&message, &["rejects it for sm_80", "'%q'", "line 9: add.u32 %r0, %q, 1;", "emitted by ptx-gen/src/kernels/k.rs:42"]);
}

#[test]
fn the_same_ptx_gives_the_same_cubin_in_every_folder() {
    let Some(ptxas) = real_ptxas("real_deterministic") else { return };
    let mut bench = Bench::new("real_deterministic", &[Kernel { body: "\t.reg .b32 %r;\n\tmov.b32 %r, 0;", ..SM80 }]);
    bench.settings.ptxas = PtxasSetting::Named(ptxas.path);
    let built = ["here", "in/another/folder"].map(|out| {
        bench.settings.out_dir = bench.dir.join(out);
        std::fs::create_dir_all(&bench.settings.out_dir).unwrap();
        bench.build().unwrap_or_else(|error| panic!("{error:#}"));
        (bench.catalog(), std::fs::read(bench.settings.out("cubin/k.sm_80.cubin")).unwrap())
    });
    assert!(built[0].1.starts_with(b"\x7fELF"));
    assert_eq!(built[0], built[1]);
}

#[test]
fn a_spill_is_seen() {
    let registers = 0..64;
    let loads: String = registers.clone().map(|i| format!("\tld.volatile.global.f32 %f{i}, [%p+{}];\n", 4 * i)).collect();
    let stores: String = registers.map(|i| format!("\tst.global.f32 [%p+{}], %f{};\n", 4 * i, (i * 7) % 64)).collect();
    let text = format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 x)\n.reqntid 128, 1, 1 .maxnreg 24\n{{\n\
         \t.reg .f32 %f<64>;\n\t.reg .b64 %p;\n\tld.param.u64 %p, [x];\n{loads}\tbar.sync 0;\n{stores}\tret;\n}}\n"
    );
    let Some(message) = failure("real_spill", SM80, &text) else { return };
    assert_tells(&message, &["spills ", " bytes of registers for sm_80; the kernel declares at most 0"]);
}

#[test]
fn serialised_wgmma_is_seen() {
    // A call to a recursive function, which cannot be inlined, while a wgmma is in flight.
    let text = "\
.version 8.0
.target sm_90a
.address_size 64
.func again(.param .u64 y)
{
\t.reg .pred %p;
\t.reg .b32 %r;
\t.reg .b64 %y<2>;
\tld.param.u64 %y0, [y];
\tld.global.u32 %r, [%y0];
\tadd.u64 %y1, %y0, 8;
\tsetp.eq.u32 %p, %r, 0;
\t@%p bra END;
\tcall (), again, (%y1);
\tst.global.u32 [%y0], %r;
END:
\tret;
}
.visible .entry k(.param .u64 x)
.reqntid 128, 1, 1
{
\t.reg .f32 %f<4>;
\t.reg .b64 %p<3>;
\tld.param.u64 %p0, [x];
\tld.global.v2.u64 {%p1, %p2}, [%p0];
\tld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%p0+16];
\twgmma.fence.sync.aligned;
\twgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %p1, %p2, 1, 1, 1, 0, 0;
\twgmma.commit_group.sync.aligned;
\tcall (), again, (%p0);
\twgmma.wait_group.sync.aligned 0;
\tst.global.v4.f32 [%p0], {%f0, %f1, %f2, %f3};
\tret;
}
";
    let kernel = Kernel { archs: "sm_90a", target: "sm_90a", ptx_version: "8.0", ..SM80 };
    let Some(message) = failure("real_serialised", kernel, text) else { return };
    assert_tells(&message, &["tells of lost performance for sm_90a", "(C75", "Potential Performance Loss", "serialized"]);
}
