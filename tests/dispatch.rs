//! Which kernel is picked: on small catalogues where each rule shows, and on the packaged one.

use attnpack::{
    Alignment, Arch, Capability, Code, Cubin, DType, Entry, Error, Group, Mask, MaskSupport, Operand, Pointers, Policy, Problem, Ptx,
    RowStart, Schedule, Shape, Strides, catalog, dispatch,
};

const fn arch(major: u32, minor: u32) -> Arch {
    Arch { major, minor, specific: false }
}

const SM_90A: Arch = Arch { major: 9, minor: 0, specific: true };

const fn cubin(arch: Arch) -> Cubin {
    Cubin { arch, image: &[], registers: 128, spill_bytes: 0, checked_by: "ptxas 13.5" }
}

const SM_80: &[Cubin] = &[cubin(arch(8, 0))];
const SM_80_86: &[Cubin] = &[cubin(arch(8, 0)), cubin(arch(8, 6))];
const SM_80_90: &[Cubin] = &[cubin(arch(8, 0)), cubin(arch(9, 0))];
const PORTABLE: Option<Ptx> = Some(Ptx { text: "", version: (7, 0), target: arch(8, 0), checked_by: None });

/// A kernel of every ratio and mask in bf16 with head_dim 128; the cases change what they are about.
const BASE: Entry = Entry {
    name: "base",
    family: "test",
    dtype: DType::BF16,
    head_dim: 128,
    v_head_dim: 128,
    group: Group::Any,
    mask: MaskSupport::Any,
    copy_bytes: 16,
    block_q: 64,
    block_kv: 64,
    threads: 128,
    shared_bytes: 48 << 10,
    blocks_per_sm: 1,
    schedule: Schedule::Grid,
    models: "",
    cubins: SM_80_90,
    ptx: None,
};

/// Long enough to fill every tile and every device.
const SHAPE: Shape = Shape { batch: 1, q_len: 4096, kv_len: 4096, q_heads: 8, kv_heads: 2, head_dim: 128 };

const fn device(major: u32, minor: u32) -> Capability {
    let shared_optin_bytes = match (major, minor) {
        (8, 0) => 163 << 10,
        (9 | 10, _) => 227 << 10,
        _ => 99 << 10,
    };
    Capability { major, minor, shared_optin_bytes, multiprocessors: 132 }
}

fn problem(mask: Mask) -> Problem {
    Problem::prefill(DType::BF16, SHAPE).mask(mask).build().expect("legal")
}

/// The name of the kernel for a causal problem with aligned rows.
fn pick(catalog: &'static [Entry], device: Capability) -> Result<&'static str, Error> {
    let problem = problem(Mask::Causal);
    dispatch(&problem, Alignment::of_strides(&problem), device, Policy::CubinFirst, catalog).map(|choice| choice.entry.name)
}

/// The target of the code for it, and whether it is machine code.
fn code(catalog: &'static [Entry], device: Capability) -> Result<(Arch, bool), Error> {
    let problem = problem(Mask::Causal);
    let choice = dispatch(&problem, Alignment::of_strides(&problem), device, Policy::CubinFirst, catalog)?;
    Ok(match choice.code {
        Code::Cubin(cubin) => (cubin.arch, true),
        Code::Ptx(ptx) => (ptx.target, false),
    })
}

#[test]
fn machine_code_runs_within_its_major_version() {
    static ENTRIES: [Entry; 1] = [Entry { cubins: SM_80_86, ..BASE }];
    assert_eq!(code(&ENTRIES, device(8, 0)), Ok((arch(8, 0), true)));
    assert_eq!(code(&ENTRIES, device(8, 6)), Ok((arch(8, 6), true)));
    assert_eq!(code(&ENTRIES, device(8, 7)), Ok((arch(8, 6), true)));
    assert_eq!(code(&ENTRIES, device(8, 9)), Ok((arch(8, 6), true)));
    for (major, minor) in [(7, 5), (9, 0), (10, 0), (12, 0)] {
        let available = vec![arch(8, 0), arch(8, 6)];
        assert_eq!(code(&ENTRIES, device(major, minor)), Err(Error::UnsupportedDevice { device: device(major, minor), available }));
    }
}

#[test]
fn architecture_specific_code_runs_on_that_architecture_only() {
    static ENTRIES: [Entry; 1] = [Entry { cubins: &[cubin(SM_90A)], ..BASE }];
    assert_eq!(code(&ENTRIES, device(9, 0)), Ok((SM_90A, true)));
    let nearby = Capability { minor: 1, ..device(9, 0) };
    assert!(matches!(code(&ENTRIES, nearby), Err(Error::UnsupportedDevice { .. })));
    static PTX: [Entry; 1] =
        [Entry { cubins: &[], ptx: Some(Ptx { text: "", version: (8, 0), target: SM_90A, checked_by: None }), ..BASE }];
    assert_eq!(code(&PTX, device(9, 0)), Ok((SM_90A, false)));
    assert!(matches!(code(&PTX, device(10, 0)), Err(Error::UnsupportedDevice { .. })));
}

#[test]
fn ptx_runs_on_everything_newer() {
    static ENTRIES: [Entry; 1] = [Entry { cubins: SM_80, ptx: PORTABLE, ..BASE }];
    assert_eq!(code(&ENTRIES, device(8, 9)), Ok((arch(8, 0), true)));
    for (major, minor) in [(9, 0), (10, 3), (12, 1)] {
        assert_eq!(code(&ENTRIES, device(major, minor)), Ok((arch(8, 0), false)));
    }
    let available = vec![arch(8, 0)];
    assert_eq!(code(&ENTRIES, device(7, 5)), Err(Error::UnsupportedDevice { device: device(7, 5), available }));
}

#[test]
fn machine_code_beats_ptx_whatever_else() {
    static ENTRIES: [Entry; 2] = [
        Entry { name: "packed ptx", group: Group::Packed(4), cubins: &[], ptx: PORTABLE, ..BASE },
        Entry { name: "plain cubin", copy_bytes: 4, ..BASE },
    ];
    assert_eq!(pick(&ENTRIES, device(9, 0)), Ok("plain cubin"));
    assert_eq!(pick(&ENTRIES, device(12, 0)), Ok("packed ptx"));
}

#[test]
fn preferences_apply_in_order() {
    static ENTRIES: [Entry; 7] = [
        Entry { name: "small", ..BASE },
        Entry { name: "small, causal", mask: MaskSupport::Causal, ..BASE },
        Entry { name: "small, packed", group: Group::Packed(4), mask: MaskSupport::Causal, ..BASE },
        Entry { name: "more keys a step", block_kv: 128, ..BASE },
        Entry { name: "does not fit", block_kv: 256, shared_bytes: 1 << 20, ..BASE },
        Entry { name: "specific", block_kv: 128, cubins: &[cubin(SM_90A)], ..BASE },
        Entry { name: "narrow copies", copy_bytes: 4, block_kv: 128, cubins: &[cubin(SM_90A)], ..BASE },
    ];
    // Each one more outdoes those before, except those that must not.
    let picked: Vec<_> = (1..=ENTRIES.len()).map(|count| pick(&ENTRIES[..count], device(9, 0)).expect("served")).collect();
    let expected = ["small", "small, causal", "small, causal", "more keys a step", "more keys a step", "specific", "specific"];
    assert_eq!(picked, expected);
}

/// Three forms of a kernel, as the table has them.
static FORMS: [Entry; 3] = [
    Entry { name: "main", block_q: 128, ..BASE },
    Entry { name: "short", ..BASE },
    Entry { name: "packed", group: Group::Packed(4), mask: MaskSupport::Causal, ..BASE },
];

/// The form for `q_len` tokens of `q_heads` heads over `kv_len` keys.
fn form_for(batch: u32, (q_len, kv_len): (u32, u32), q_heads: u32, mask: Mask, forms: &'static [Entry]) -> &'static str {
    let shape = Shape { batch, q_len, kv_len, q_heads, kv_heads: q_heads / 4, ..SHAPE };
    let problem = Problem::prefill(DType::BF16, shape).mask(mask).build().expect("legal");
    dispatch(&problem, Alignment::of_strides(&problem), device(9, 0), Policy::CubinFirst, forms).expect("served").entry.name
}

#[test]
fn few_tokens_share_a_tile_with_the_other_heads() {
    // 4 heads of a group fill a tile of 64 rows with 16 tokens; from 49 on packing saves no tile.
    for q_len in [1, 12, 16, 40, 48] {
        assert_eq!(form_for(16, (q_len, 4096), 32, Mask::Causal, &FORMS), "packed", "{q_len}");
        assert_eq!(form_for(16, (q_len, 4096), 32, Mask::Causal, &FORMS[..2]), "short", "{q_len}");
    }
    assert_eq!(form_for(16, (49, 4096), 32, Mask::Causal, &FORMS), "short");
    assert_eq!(form_for(16, (1024, 4096), 32, Mask::Causal, &FORMS), "main");
}

/// The faster form on an H200 with 132 multiprocessors (2026-11-30, bf16, head_dim 128; RESULTS.md).
#[test]
fn the_form_that_was_measured_to_be_faster_is_picked() {
    let cases = [
        (1, 128, 32, Mask::Causal, "short"),
        (1, 512, 28, Mask::Causal, "short"),
        (4, 512, 32, Mask::Causal, "main"),
        (1, 2048, 12, Mask::Causal, "short"),
        (1, 2048, 16, Mask::Full, "main"),
        (1, 2048, 28, Mask::Causal, "main"),
        (1, 2048, 32, Mask::Causal, "main"),
        (8, 2048, 16, Mask::Causal, "main"),
        (8, 2048, 16, Mask::Full, "main"),
        (1, 8192, 32, Mask::Causal, "main"),
    ];
    for (batch, tokens, q_heads, mask, faster) in cases {
        assert_eq!(form_for(batch, (tokens, tokens), q_heads, mask, &FORMS[..2]), faster, "{batch} x {tokens}, {q_heads} heads, {mask:?}");
    }
}

#[test]
fn a_grid_has_so_many_tiles() {
    let tokens = |q_len| {
        let shape = Shape { q_len, ..SHAPE };
        let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build().expect("legal");
        dispatch(&problem, Alignment::of_strides(&problem), device(9, 0), Policy::CubinFirst, &FORMS).map(|choice| choice.entry.name)
    };
    assert_eq!(tokens(65_535 * 128), Ok("main"));
    let limit = 65_535 * 128;
    assert_eq!(tokens(65_535 * 128 + 1), Err(Error::TooLarge { what: "q_len", value: limit + 1, limit }));
}

#[test]
fn the_first_of_equals_is_picked() {
    static ENTRIES: [Entry; 2] = [Entry { name: "first", ..BASE }, Entry { name: "second", ..BASE }];
    assert_eq!(pick(&ENTRIES, device(9, 0)), Ok("first"));
}

#[test]
fn tiles_fit_the_device() {
    static ENTRIES: [Entry; 2] = [
        Entry { name: "163 KB", block_kv: 128, shared_bytes: 163 << 10, cubins: SM_80, ..BASE },
        Entry { name: "99 KB", shared_bytes: 99 << 10, cubins: SM_80, ..BASE },
    ];
    assert_eq!(pick(&ENTRIES, device(8, 0)), Ok("163 KB"));
    assert_eq!(pick(&ENTRIES, device(8, 6)), Ok("99 KB"));
    assert_eq!(pick(&ENTRIES[..1], device(8, 6)), Err(Error::SharedMemory { device: device(8, 6), required: 163 << 10 }));
}

#[test]
fn cubin_only_refuses_compilation() {
    static ENTRIES: [Entry; 2] = [
        Entry { name: "a", head_dim: 64, cubins: SM_80, ptx: PORTABLE, ..BASE },
        Entry { name: "b", cubins: SM_80, ptx: PORTABLE, ..BASE },
    ];
    let problem = problem(Mask::Full);
    let with =
        |policy, device| dispatch(&problem, Alignment::of_strides(&problem), device, policy, &ENTRIES).map(|choice| choice.entry.name);
    assert_eq!(with(Policy::CubinFirst, device(12, 0)), Ok("b"));
    assert_eq!(with(Policy::CubinOnly, device(8, 9)), Ok("b"));
    assert_eq!(with(Policy::CubinOnly, device(12, 0)), Err(Error::JitRefused { device: device(12, 0), kernel: "b" }));
}

#[test]
fn what_is_missing_is_named_with_what_exists() {
    static ENTRIES: [Entry; 6] = [
        Entry { head_dim: 64, v_head_dim: 64, ..BASE },
        Entry { head_dim: 256, v_head_dim: 256, ..BASE },
        Entry { head_dim: 256, v_head_dim: 128, ..BASE },
        Entry { head_dim: 96, v_head_dim: 96, ..BASE },
        Entry { head_dim: 192, v_head_dim: 192, group: Group::Packed(1), mask: MaskSupport::Causal, ..BASE },
        // Not for sm_90: not offered there.
        Entry { head_dim: 80, v_head_dim: 80, cubins: SM_80, ..BASE },
    ];
    let sm_90 = device(9, 0);
    let refused = |dtype, head_dim, mask, device| {
        let problem = Problem::prefill(dtype, Shape { head_dim, ..SHAPE }).mask(mask).build().expect("legal");
        dispatch(&problem, Alignment::of_strides(&problem), device, Policy::CubinFirst, &ENTRIES).expect_err("refused")
    };
    assert_eq!(
        refused(DType::F16, 64, Mask::Full, sm_90),
        Error::UnsupportedDType { dtype: DType::F16, device: sm_90, available: vec![DType::BF16] }
    );
    let values_of_64 = Problem::prefill(DType::BF16, Shape { head_dim: 256, ..SHAPE }).v_head_dim(64).build().expect("legal");
    assert_eq!(
        dispatch(&values_of_64, Alignment::of_strides(&values_of_64), sm_90, Policy::CubinFirst, &ENTRIES).map(|choice| choice.entry.name),
        Err(Error::UnsupportedVHeadDim { v_head_dim: 64, head_dim: 256, dtype: DType::BF16, device: sm_90, available: vec![128, 256] })
    );
    static FOR_HOPPER: [Entry; 2] = [Entry { head_dim: 256, v_head_dim: 256, cubins: &[cubin(SM_90A)], ..BASE }, BASE];
    let wide = Problem::prefill(DType::BF16, Shape { head_dim: 256, ..SHAPE }).build().expect("legal");
    let elsewhere =
        |device| dispatch(&wide, Alignment::of_strides(&wide), device, Policy::CubinFirst, &FOR_HOPPER).map(|c| c.entry.head_dim);
    let available = vec![BASE.head_dim];
    assert_eq!(elsewhere(sm_90), Ok(256));
    assert_eq!(
        elsewhere(device(8, 0)),
        Err(Error::UnsupportedHeadDim { head_dim: 256, dtype: DType::BF16, device: device(8, 0), available }),
        "no feature has it for this device"
    );
    let available = vec![64, 96, 192, 256];
    assert_eq!(
        refused(DType::BF16, 72, Mask::Full, sm_90),
        Error::UnsupportedHeadDim { head_dim: 72, dtype: DType::BF16, device: sm_90, available }
    );
    assert_eq!(
        refused(DType::BF16, 192, Mask::Full, sm_90),
        Error::UnsupportedMask { mask: Mask::Full, head_dim: 192, dtype: DType::BF16, device: sm_90 }
    );
    assert_eq!(
        refused(DType::BF16, 192, Mask::Causal, sm_90),
        Error::UnsupportedGroup { group: 4, head_dim: 192, dtype: DType::BF16, device: sm_90, available: vec![1] }
    );
    assert_eq!(refused(DType::BF16, 80, Mask::Full, sm_90), Error::UnsupportedDevice { device: sm_90, available: vec![arch(8, 0)] });
    // A device that no kernel runs on is the first thing to blame.
    let sm_75 = device(7, 5);
    assert_eq!(
        refused(DType::F16, 72, Mask::Full, sm_75),
        Error::UnsupportedDevice { device: sm_75, available: vec![arch(8, 0), arch(9, 0)] }
    );
}

#[test]
fn an_empty_catalogue_has_nothing() {
    let device = device(9, 0);
    assert_eq!(pick(&[], device), Err(Error::UnsupportedDType { dtype: DType::BF16, device, available: vec![] }));
}

#[test]
fn alignment_is_that_of_the_worst_row() {
    let strides = |seq| Strides { batch: 0, seq, head: 128 };
    let aligned =
        |seq| Alignment::of_strides(&Problem::prefill(DType::BF16, SHAPE).k_strides(strides(seq)).build().expect("legal")).bytes();
    assert_eq!([aligned(256), aligned(264), aligned(260), aligned(258), aligned(257)], [16, 16, 8, 4, 2]);
    let pointers = Pointers { q: 0x1000, k: 0x2000, v: 0x3004, o: 0x4000, lse: None };
    assert_eq!(Alignment::of(&problem(Mask::Full), &pointers).bytes(), 4);
}

#[test]
fn rows_on_4_bytes_get_narrow_copies() {
    static ENTRIES: [Entry; 2] = [Entry { name: "wide", ..BASE }, Entry { name: "narrow", copy_bytes: 4, ..BASE }];
    let at = |v| {
        let pointers = Pointers { q: 0x1000, k: 0x2000, v, o: 0x4000, lse: None };
        let problem = problem(Mask::Full);
        dispatch(&problem, Alignment::of(&problem, &pointers), device(9, 0), Policy::CubinFirst, &ENTRIES).map(|choice| choice.entry.name)
    };
    assert_eq!(at(0x3000), Ok("wide"));
    assert_eq!(at(0x3008), Ok("narrow"));
    assert_eq!(at(0x3004), Ok("narrow"));
    let part = RowStart::Address;
    assert_eq!(at(0x3002), Err(Error::Misaligned { operand: Operand::V, part, bytes: 0x3002, required: 4 }));
}

#[test]
fn alignment_counts_every_operand_and_dimension() {
    let shape = Shape { batch: 2, q_len: 4, kv_len: 4, ..SHAPE };
    let contiguous = |operand| Strides::contiguous(4, if matches!(operand, Operand::Q | Operand::O) { 8 } else { 2 }, 128);
    for operand in [Operand::Q, Operand::K, Operand::V, Operand::O] {
        // Two elements of bf16 more: rows start on 4 bytes.
        let Strides { batch, seq, head } = contiguous(operand);
        for strides in [
            Strides { batch: batch + 2, seq, head },
            Strides { batch: batch + 8, seq: seq + 2, head },
            Strides { batch: batch + 64, seq: seq + 16, head: head + 2 },
        ] {
            let builder = Problem::prefill(DType::BF16, shape);
            let builder = match operand {
                Operand::Q => builder.q_strides(strides),
                Operand::K => builder.k_strides(strides),
                Operand::V => builder.v_strides(strides),
                _ => builder.o_strides(strides),
            };
            let problem = builder.build().expect("legal");
            assert_eq!(Alignment::of_strides(&problem).bytes(), 4, "{operand:?} {strides:?}");
        }
        let aligned = Problem::prefill(DType::BF16, shape).build().expect("legal");
        let mut pointers = Pointers { q: 1 << 20, k: 2 << 20, v: 3 << 20, o: 4 << 20, lse: None };
        assert_eq!(Alignment::of(&aligned, &pointers).bytes(), 16);
        match operand {
            Operand::Q => pointers.q += 4,
            Operand::K => pointers.k += 4,
            Operand::V => pointers.v += 4,
            _ => pointers.o += 4,
        }
        assert_eq!(Alignment::of(&aligned, &pointers).bytes(), 4, "{operand:?}");
    }
}

#[test]
fn a_misaligned_stride_is_named() {
    static WIDE: [Entry; 1] = [BASE];
    let refused = |strides| {
        let problem = Problem::prefill(DType::BF16, Shape { batch: 2, ..SHAPE }).k_strides(strides).build().expect("legal");
        dispatch(&problem, Alignment::of_strides(&problem), device(9, 0), Policy::CubinFirst, &WIDE).expect_err("refused")
    };
    let plain = Strides { batch: 256_000, seq: 256, head: 128 };
    let misaligned = |part, bytes| Error::Misaligned { operand: Operand::K, part, bytes, required: 16 };
    assert_eq!(refused(Strides { batch: 256_004, ..plain }), misaligned(RowStart::BatchStride, 2 * 256_004));
    assert_eq!(refused(Strides { seq: 260, ..plain }), misaligned(RowStart::SeqStride, 2 * 260));
    assert_eq!(refused(Strides { head: 129, ..plain }), misaligned(RowStart::HeadStride, 2 * 129));
}

#[test]
fn a_choice_says_why() {
    static ENTRIES: [Entry; 1] = [Entry { group: Group::Packed(4), cubins: SM_80, ptx: PORTABLE, ..BASE }];
    let problem = problem(Mask::Causal);
    let on =
        |device| dispatch(&problem, Alignment::of_strides(&problem), device, Policy::CubinFirst, &ENTRIES).expect("served").to_string();
    let tiles = "4 query heads packed; tiles of 64 rows and 64 keys, copied by 16 bytes";
    assert_eq!(on(device(8, 6)), format!("base: machine code for sm_80 by ptxas 13.5; {tiles}"));
    assert_eq!(on(device(9, 0)), format!("base: PTX for sm_80 or newer, compiled by the driver; {tiles}"));
}

#[test]
fn a_device_knows_its_cargo_feature() {
    let feature = |major, minor| device(major, minor).cargo_feature();
    assert_eq!([feature(8, 0), feature(8, 6), feature(8, 7), feature(8, 9)], [Some("sm_80"), Some("sm_86"), Some("sm_86"), Some("sm_89")]);
    assert_eq!([feature(9, 0), feature(10, 3), feature(12, 1)], [Some("sm_90"), Some("sm_100"), Some("sm_120")]);
    assert_eq!([feature(7, 5), feature(11, 0)], [None, None]);
}

/// Every packaged kernel is picked for some problem on some device that it has code for.
#[test]
fn every_packaged_kernel_is_reachable() {
    let devices = [device(8, 0), device(8, 6), device(8, 9), device(9, 0), device(10, 0), device(12, 0)];
    for entry in catalog() {
        let mask = if entry.mask == MaskSupport::Causal { Mask::Causal } else { Mask::Full };
        let kv_heads = 2;
        let ratio = match entry.group {
            Group::Packed(ratio) => ratio,
            Group::Any => 17,
        };
        // Rows that start on exactly as many bytes as the kernel needs.
        let row = u64::from(kv_heads * entry.head_dim) + u64::from(entry.copy_bytes / entry.dtype.bytes());
        let picked = |(q_len, kv_len, device): (u32, u32, Capability)| {
            let shape = Shape { batch: 2, q_len, kv_len, q_heads: kv_heads * ratio, kv_heads, head_dim: entry.head_dim };
            let strides = Strides::packed_rows(row, entry.head_dim, kv_len);
            let builder = Problem::prefill(entry.dtype, shape).v_head_dim(entry.v_head_dim).mask(mask).k_strides(strides);
            let problem = builder.build().expect("legal");
            let choice = dispatch(&problem, Alignment::of_strides(&problem), device, Policy::CubinFirst, catalog());
            choice.is_ok_and(|choice| std::ptr::eq(choice.entry, entry))
        };
        let few_keys = [(1, 100), (16, 100), (100, 100), (250, 250), (4096, 100)];
        let many_keys =
            [(1, 8192), (14, 8192), (28, 30_000), (60, 8192), (200, 8192), (1000, 1000), (2000, 2000), (1536, 30_000), (9000, 9000)];
        let lengths = few_keys.into_iter().chain(many_keys);
        let mut cases = lengths.flat_map(|(q_len, kv_len)| devices.map(|device| (q_len, kv_len, device)));
        let has_code = !entry.cubins.is_empty() || entry.ptx.is_some();
        assert!(!has_code || cases.any(picked), "{} is never picked", entry.name);
    }
}

/// No ratio is refused, with either mask, on any device of capability 8.0 or newer, as long as its head_dim is packaged for it.
#[test]
fn the_packaged_catalogue_serves_every_ratio() {
    let sizes = |entry: &Entry| (entry.dtype.to_string(), entry.head_dim, entry.v_head_dim);
    let sizes_of = |problem: &Problem| (problem.dtype().to_string(), problem.shape().head_dim, problem.v_head_dim());
    let pairs: std::collections::BTreeSet<_> = catalog().iter().map(sizes).collect();
    for (dtype, head_dim, v_head_dim) in pairs {
        let dtype = [DType::F16, DType::BF16, DType::F32].into_iter().find(|known| known.to_string() == dtype).expect("known");
        for (ratio, mask, device) in [1, 2, 3, 5, 8, 17].into_iter().flat_map(|ratio| {
            let devices = [device(8, 0), device(8, 6), device(9, 0), device(12, 0)];
            devices.into_iter().flat_map(move |device| [(ratio, Mask::Full, device), (ratio, Mask::Causal, device)])
        }) {
            let shape = Shape { batch: 1, q_len: 3, kv_len: 3, q_heads: ratio, kv_heads: 1, head_dim };
            let problem = Problem::prefill(dtype, shape).v_head_dim(v_head_dim).mask(mask).build().expect("legal");
            let choice = dispatch(&problem, Alignment::of_strides(&problem), device, Policy::CubinFirst, catalog());
            // Where a kernel of these sizes has code, or where it is portable.
            let has_code = catalog().iter().any(|entry| {
                let for_device = |arch: Arch| (arch.major, arch.minor) == (device.major, device.minor);
                let by_ptx = entry.ptx.as_ref().is_some_and(|ptx| !ptx.target.specific || for_device(ptx.target));
                sizes(entry) == sizes_of(&problem) && (by_ptx || entry.cubins.iter().any(|cubin| for_device(cubin.arch)))
            });
            assert!(choice.is_ok() || !has_code, "{:?}", choice.err().map(|error| error.to_string()));
        }
    }
}
