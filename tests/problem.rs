//! What a `Problem` refuses, and what it promises about the tensors of one that it accepts.

use attnpack::{DType, Error, Mask, Operand, Problem, Shape, Strides};

const SHAPE: Shape = Shape { batch: 2, q_len: 5, kv_len: 7, q_heads: 6, kv_heads: 2, head_dim: 64 };

fn build(shape: Shape) -> Result<Problem, Error> {
    Problem::prefill(DType::BF16, shape).build()
}

#[test]
fn defaults_are_those_of_flash_attention() {
    let problem = build(SHAPE).expect("legal");
    assert_eq!((problem.mask(), problem.scale(), problem.wants_lse(), problem.group()), (Mask::Full, 0.125, false, 3));
    assert_eq!(problem.strides(Operand::Q), Some(Strides { batch: 5 * 6 * 64, seq: 6 * 64, head: 64 }));
    assert_eq!(problem.strides(Operand::K), Some(Strides { batch: 7 * 2 * 64, seq: 2 * 64, head: 64 }));
    assert_eq!(problem.strides(Operand::Lse), None);
    assert_eq!(problem.span_elems(Operand::Q), 2 * 5 * 6 * 64);
    assert_eq!(problem.span_elems(Operand::V), 2 * 7 * 2 * 64);
    assert_eq!(problem.span_bytes(Operand::O), 2 * 2 * 5 * 6 * 64);
    assert_eq!(problem.span_elems(Operand::Lse), 2 * 6 * 5);
    assert_eq!(problem.span_bytes(Operand::Lse), 4 * 2 * 6 * 5);
}

#[test]
fn the_default_scale_is_that_of_the_head() {
    for head_dim in [64, 80, 96, 128, 192, 256] {
        let scale = build(Shape { head_dim, ..SHAPE }).expect("legal").scale();
        assert!((f64::from(scale) * f64::from(head_dim).sqrt() - 1.0).abs() < 1e-7, "{head_dim}: {scale}");
    }
}

#[test]
fn strides_name_the_usual_layouts() {
    assert_eq!(Strides::contiguous(10, 4, 64), Strides { batch: 10 * 4 * 64, seq: 4 * 64, head: 64 });
    // Qwen2.5-1.5B: q, k and v side by side in rows of (12 + 2 + 2) * 128 elements.
    assert_eq!(Strides::packed_rows(2048, 128, 10), Strides { batch: 10 * 2048, seq: 2048, head: 128 });
    // A cache of 4096 tokens, however many are in it.
    assert_eq!(Strides::head_major(8, 4096, 128), Strides { batch: 8 * 4096 * 128, seq: 128, head: 4096 * 128 });
    // Beyond 64 bits they saturate; the problem refuses them.
    assert_eq!(Strides::contiguous(u32::MAX, u32::MAX, u32::MAX).batch, u64::MAX);
    assert_eq!(Strides::head_major(u32::MAX, u32::MAX, u32::MAX).batch, u64::MAX);
}

#[test]
fn every_size_must_be_positive() {
    let zeros = [
        ("batch", Shape { batch: 0, ..SHAPE }),
        ("q_len", Shape { q_len: 0, ..SHAPE }),
        ("kv_len", Shape { kv_len: 0, ..SHAPE }),
        ("q_heads", Shape { q_heads: 0, ..SHAPE }),
        ("kv_heads", Shape { kv_heads: 0, ..SHAPE }),
        ("head_dim", Shape { head_dim: 0, ..SHAPE }),
    ];
    for (what, shape) in zeros {
        assert_eq!(build(shape), Err(Error::ZeroSize { what }));
    }
}

#[test]
fn sizes_stay_within_a_grid() {
    let long = 2_000_000_000;
    let narrow = Shape { q_heads: 1, kv_heads: 1, ..SHAPE };
    let too_large = |shape, what, value, limit| assert_eq!(build(shape), Err(Error::TooLarge { what, value, limit }));
    too_large(Shape { batch: 65_536, ..SHAPE }, "batch", 65_536, 65_535);
    too_large(Shape { q_heads: 65_536, kv_heads: 1, ..SHAPE }, "q_heads", 65_536, 65_535);
    too_large(Shape { kv_heads: 65_536, ..SHAPE }, "kv_heads", 65_536, 65_535);
    too_large(Shape { q_len: long + 1, ..narrow }, "q_len", u64::from(long) + 1, u64::from(long));
    too_large(Shape { kv_len: long + 1, ..narrow }, "kv_len", u64::from(long) + 1, u64::from(long));
    let rows = 3 * (u64::from(long) / 3 + 1);
    too_large(Shape { q_len: long / 3 + 1, ..SHAPE }, "q_len * (q_heads / kv_heads)", rows, u64::from(long));

    assert!(build(Shape { batch: 65_535, ..SHAPE }).is_ok());
    assert!(build(Shape { q_heads: 65_535, kv_heads: 65_535, ..SHAPE }).is_ok());
    assert!(build(Shape { q_len: long, kv_len: long, ..narrow }).is_ok());
    // What kernels compute of positions: kv_len - q_len, and a tile of rows and a step of keys beyond that.
    for entry in attnpack::catalog() {
        assert!(i32::try_from(long + 2 * (entry.block_q + entry.block_kv)).is_ok(), "{}", entry.name);
    }
}

#[test]
fn kv_heads_divide_query_heads() {
    assert_eq!(build(Shape { q_heads: 6, kv_heads: 4, ..SHAPE }), Err(Error::HeadRatio { q_heads: 6, kv_heads: 4 }));
    assert_eq!(build(Shape { q_heads: 2, kv_heads: 6, ..SHAPE }), Err(Error::HeadRatio { q_heads: 2, kv_heads: 6 }));
}

#[test]
fn the_scale_is_finite_and_positive() {
    let scaled = |scale| Problem::prefill(DType::F32, SHAPE).scale(scale).build();
    for scale in [0.0, -0.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        assert_eq!(scaled(scale), Err(Error::Scale { scale }));
    }
    assert!(matches!(scaled(f32::NAN), Err(Error::Scale { .. })));
    assert_eq!(scaled(f32::MIN_POSITIVE).expect("legal").scale(), f32::MIN_POSITIVE);
    assert_eq!(scaled(2e38).expect("legal").scale(), 2e38);
}

#[test]
fn every_offset_fits_64_bits_in_bytes() {
    let far = Strides { batch: u64::MAX / 2, seq: 6 * 64, head: 64 };
    let plain = Problem::prefill(DType::BF16, SHAPE);
    for (operand, builder) in [
        (Operand::Q, plain.q_strides(far)),
        (Operand::K, plain.k_strides(far)),
        (Operand::V, plain.v_strides(far)),
        (Operand::O, plain.o_strides(far)),
    ] {
        assert_eq!(builder.build(), Err(Error::ExtentOverflow { operand }));
    }
    // The largest batch stride that fits: span = stride + the rest, times 2 bytes.
    let rest = 5 * 6 * 64;
    let fits = |batch| plain.q_strides(Strides { batch, ..far }).build();
    let most = u64::MAX / 2 - rest;
    assert_eq!(fits(most).expect("fits").span_elems(Operand::Q), u64::MAX / 2);
    assert_eq!(fits(most + 1), Err(Error::ExtentOverflow { operand: Operand::Q }));
    // Products that would wrap around to something small.
    for seq in [1 << 62, 1 << 63, u64::MAX] {
        assert_eq!(plain.v_strides(Strides { seq, ..far }).build(), Err(Error::ExtentOverflow { operand: Operand::V }));
    }
}

#[test]
fn a_stride_that_is_never_taken_means_nothing() {
    let one = Shape { batch: 1, q_len: 1, kv_len: 1, q_heads: 1, kv_heads: 1, head_dim: 64 };
    let wild = Strides { batch: u64::MAX, seq: 0, head: 3 };
    let builder = Problem::prefill(DType::F16, one).q_strides(wild).k_strides(wild).v_strides(wild).o_strides(wild);
    assert_eq!(builder.build().expect("legal").span_elems(Operand::O), 64);
}

#[test]
fn o_does_not_overlap_itself() {
    let with_o = |strides| Problem::prefill(DType::F32, SHAPE).o_strides(strides).build();
    let good = [
        Strides::contiguous(5, 6, 64),
        Strides::packed_rows(1000, 64, 5),
        Strides::head_major(6, 100, 64),
        // Sequence-major over the batch: [seq, batch, heads, head_dim].
        Strides { batch: 6 * 64, seq: 2 * 6 * 64, head: 64 },
    ];
    for strides in good {
        assert!(with_o(strides).is_ok(), "{strides:?}");
    }
    let plain = Strides::contiguous(5, 6, 64);
    let bad = [
        Strides { head: 63, ..plain },
        Strides { head: 0, ..plain },
        Strides { seq: 6 * 64 - 1, ..plain },
        Strides { seq: 0, ..plain },
        Strides { batch: 5 * 6 * 64 - 1, ..plain },
        Strides { batch: 0, ..plain },
        Strides { batch: 64, seq: 64, head: 64 },
    ];
    for strides in bad {
        assert_eq!(with_o(strides), Err(Error::OutputOverlapsItself { strides, shape: SHAPE, v_head_dim: SHAPE.head_dim }), "{strides:?}");
    }
}

#[test]
fn inputs_may_overlap() {
    let broadcast = Strides { batch: 0, seq: 64, head: 0 };
    let builder = Problem::prefill(DType::F16, SHAPE).q_strides(broadcast).k_strides(broadcast).v_strides(broadcast);
    let problem = builder.build().expect("legal");
    assert_eq!(problem.span_elems(Operand::Q), 5 * 64);
    assert_eq!(problem.span_elems(Operand::K), 7 * 64);
}
