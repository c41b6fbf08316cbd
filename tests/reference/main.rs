//! What judges the kernels must itself be right: the reference, the tolerance, the layouts and the cases, without a GPU.

#[path = "mod.rs"]
mod reference;

use attnpack::{DType, Entry, Mask, Operand, Problem, Schedule, Shape, Strides, catalog};
use reference::cases::Family;
use reference::fixtures::Activations;
use reference::image::row_offsets;
use reference::kernels::serves;
use reference::layout::{Placement, extents};
use reference::{Case, Data, Image, Inputs, Kind, Layout, Output, Tensor, Verdict, judge, plain, reference as exact};

const DTYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];
const SHAPE: Shape = Shape { batch: 2, q_len: 70, kv_len: 90, q_heads: 6, kv_heads: 2, head_dim: 64 };

fn case(dtype: DType, kind: Kind, layout: Layout) -> Case {
    Case { dtype, shape: SHAPE, v_head_dim: SHAPE.head_dim, mask: Mask::Causal, scale: None, kind, layout }
}

fn image(dtype: DType, kind: Kind, layout: Layout) -> Image {
    case(dtype, kind, layout).image().expect("legal")
}

fn both(image: &Image) -> (Output<f64>, Output<f32>) {
    image.with_inputs(|inputs| (exact(&image.problem, inputs), plain(&image.problem, inputs)))
}

/// A contiguous f32 problem of one head on a few numbers.
fn small(shape: Shape, scale: f32, [q, k, v]: [&[f32]; 3]) -> Output<f64> {
    let problem = Problem::prefill(DType::F32, shape).mask(Mask::Causal).scale(scale).build().expect("legal");
    let tensor = |elements, seq| Tensor { elements, strides: Strides::contiguous(seq, 1, 2), row_elems: 2 };
    exact(&problem, &Inputs { q: tensor(q, shape.q_len), k: tensor(k, shape.kv_len), v: tensor(v, shape.kv_len) })
}

fn all_close(actual: &[f64], expected: &[f64]) -> bool {
    actual.len() == expected.len() && actual.iter().zip(expected).all(|(a, e)| a == e || (a - e).abs() < 1e-6)
}

#[test]
fn two_keys_by_hand() {
    // Query 0 sees key 0. Query 1 sees both, with scores 2 * 0 and 2 * ln(3) / 2: the weights are 1/4 and 3/4.
    let shape = Shape { batch: 1, q_len: 2, kv_len: 2, q_heads: 1, kv_heads: 1, head_dim: 2 };
    let (q, k, v) = ([9.0, 9.0, 1.0, 0.5], [0.0, 0.0, 0.0, 3_f32.ln()], [4.0, 8.0, 0.0, 16.0]);
    let Output { o, lse } = small(shape, 2.0, [&q, &k, &v]);
    assert!(all_close(&o, &[4.0, 8.0, 1.0, 14.0]), "{o:?}");
    assert!(all_close(&lse, &[0.0, 4_f64.ln()]), "{lse:?}");
}

#[test]
fn the_causal_mask_is_aligned_to_the_bottom_right() {
    // More queries than keys: the first sees nothing. Values tell which keys were seen: equal scores give averages.
    let (shape, zeros) = (Shape { batch: 1, q_len: 3, kv_len: 2, q_heads: 1, kv_heads: 1, head_dim: 2 }, [0.0; 6]);
    let Output { o, lse } = small(shape, 1.0, [&zeros, &zeros, &[1.0, 2.0, 3.0, 6.0]]);
    assert!(all_close(&o, &[0.0, 0.0, 1.0, 2.0, 2.0, 4.0]), "{o:?}");
    assert!(all_close(&lse, &[f64::NEG_INFINITY, 0.0, 2_f64.ln()]), "{lse:?}");
    // More keys than queries: the last query sees all.
    let shape = Shape { q_len: 2, kv_len: 3, ..shape };
    let Output { o, .. } = small(shape, 1.0, [&zeros, &zeros, &[1.0, 2.0, 3.0, 6.0, 8.0, 1.0]]);
    assert!(all_close(&o, &[2.0, 4.0, 4.0, 3.0]), "{o:?}");
}

#[test]
fn the_reference_agrees_with_one_of_other_authors() {
    let activations = Activations::layer_14().expect("intact");
    let image = activations.image(DType::F32).expect("legal");
    let (ours, _) = both(&image);
    let theirs = activations.o.as_ref().expect("this file has it");
    let (tokens, heads, head_dim) = (activations.shape.q_len as usize, 9, 64);
    for (n, theirs) in theirs.iter().enumerate() {
        let (token, head, element) = (n / head_dim / heads, n / head_dim % heads, n % head_dim);
        let ours = ours.o[(head * tokens + token) * head_dim + element];
        assert!((ours as f32 - theirs).abs() <= theirs.abs() * f32::EPSILON, "token {token}, head {head}: {ours} {theirs}");
    }
}

#[test]
fn plain_is_as_far_off_as_its_precision() {
    for (dtype, range) in [(DType::F16, 5e-5..6e-4), (DType::BF16, 4e-4..5e-3), (DType::F32, 5e-8..4e-6)] {
        for kind in Kind::ALL {
            let image = image(dtype, kind, Layout::Contiguous);
            let (exact, plain) = both(&image);
            let verdict = judge(&image.problem, &plain, &exact, &plain);
            assert!(range.contains(&verdict.error), "{dtype} {kind:?}: {verdict:?}");
            assert!(verdict.lse_error < 1e-4 && verdict.check().is_ok(), "{dtype} {kind:?}: {verdict:?}");
        }
    }
}

#[test]
fn results_do_not_depend_on_the_layout() {
    for dtype in DTYPES {
        let (expected, plain) = both(&image(dtype, Kind::Normal, Layout::Contiguous));
        for layout in [Layout::PackedRows, Layout::HeadMajor, Layout::Gaps, Layout::FourBytes] {
            assert!(both(&image(dtype, Kind::Normal, layout)) == (expected.clone(), plain.clone()), "{dtype} {layout:?}");
        }
    }
}

#[test]
fn a_shared_cache_is_read_by_every_batch() {
    let image = image(DType::F32, Kind::Normal, Layout::SharedCache);
    assert_eq!(image.problem.strides(Operand::K).map(|strides| strides.batch), Some(0));
    // The last batch was written last, so that it has its own data; the first one has not.
    let (shared, alone) = (both(&image).0, both(&self::image(DType::F32, Kind::Normal, Layout::Contiguous)).0);
    let half = shared.o.len() / 2;
    assert!(shared.o[half..] == alone.o[half..] && shared.o[..half] != alone.o[..half]);
}

/// The judgement of a right result after `spoil`.
fn verdict_of(dtype: DType, spoil: impl FnOnce(&mut Output<f32>)) -> Verdict {
    let image = image(dtype, Kind::Normal, Layout::Contiguous);
    let (exact, plain) = both(&image);
    let mut result = plain.clone();
    spoil(&mut result);
    judge(&image.problem, &result, &exact, &plain)
}

#[test]
fn wrong_results_do_not_pass() {
    type Spoil = fn(&mut Output<f32>);
    let wrong: [(&str, Spoil); 9] = [
        ("zeros", |result| result.o.fill(0.0)),
        ("NaN in one element", |result| result.o[12_345] = f32::NAN),
        ("one element wrong", |result| result.o[12_345] += 0.5),
        ("a row of another head", |result| result.o.copy_within(64..128, 70 * 64 + 64)),
        ("o too large by 2 %", |result| result.o.iter_mut().for_each(|o| *o *= 1.02)),
        ("LSE in base 2", |result| result.lse.iter_mut().for_each(|lse| *lse *= std::f32::consts::LOG2_E)),
        ("one LSE off by 0.002", |result| result.lse[77] += 0.002),
        ("NaN in the LSE", |result| result.lse[77] = f32::NAN),
        ("-inf in the LSE", |result| result.lse[77] = f32::NEG_INFINITY),
    ];
    for dtype in DTYPES {
        assert!(verdict_of(dtype, |_| ()).check().is_ok());
        for (what, spoil) in wrong {
            let verdict = verdict_of(dtype, spoil);
            assert!(verdict.check().is_err(), "{dtype}, {what}: {verdict:?}");
        }
    }
    let worst = verdict_of(DType::F32, |result| result.o[64 * (70 * 7 + 3) + 5] = 9.0).worst;
    assert_eq!((worst.batch, worst.head, worst.token, worst.element, worst.actual), (1, 1, 3, 5, 9.0));
    let worst = verdict_of(DType::F32, |result| result.o[64 * 70 + 7] = f32::NAN).worst;
    assert_eq!((worst.batch, worst.head, worst.token, worst.element), (0, 1, 0, 7));
}

#[test]
fn rows_without_keys_must_be_exactly_0() {
    let shape = Shape { q_len: 100, ..SHAPE };
    let image = Case { shape, v_head_dim: shape.head_dim, ..case(DType::BF16, Kind::Normal, Layout::Gaps) }.image().expect("legal");
    let (exact, plain) = both(&image);
    assert!(exact.lse[0] == f64::NEG_INFINITY && plain.lse[0] == f32::NEG_INFINITY && plain.o[0] == 0.0);
    let judged = |result: &Output<f32>| judge(&image.problem, result, &exact, &plain).check();
    assert_eq!(judged(&plain), Ok(()));
    let spoiled = |spoil: fn(&mut Output<f32>)| {
        let mut result = plain.clone();
        spoil(&mut result);
        judged(&result)
    };
    assert!(spoiled(|result| result.o[0] = 1e-20).is_err());
    assert!(spoiled(|result| result.lse[0] = f32::MIN).is_err());
}

#[test]
fn the_kinds_of_data_are_what_they_are_called() {
    let data = |kind| Data::new(kind, &SHAPE, 7);
    let size = |values: &[f32]| (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt();
    let normal = data(Kind::Normal);
    assert!([&normal.q, &normal.k, &normal.v].iter().all(|tensor| (size(tensor) - 1.0).abs() < 0.02));
    assert!(normal.q.iter().sum::<f32>().abs() / (normal.q.len() as f32) < 0.02);
    assert!((size(&data(Kind::Peaked).k) - 4.0).abs() < 0.1);
    let token = (SHAPE.kv_heads * SHAPE.head_dim) as usize;
    let ends = |k: &[f32]| (size(&k[token..2 * token]), size(&k[88 * token..90 * token]));
    let (growing, shrinking) = (ends(&data(Kind::Growing).k), ends(&data(Kind::Shrinking).k));
    assert!(growing.0 < 0.3 && growing.1 > 3.0 && shrinking.0 > 3.0 && shrinking.1 < 0.3, "{growing:?} {shrinking:?}");
    // Values of token 0 that no other token has show its weight in the result.
    let mut sink = data(Kind::Sink);
    let batch = sink.v.len() / 2;
    sink.v.fill(0.0);
    [0, batch].iter().for_each(|start| sink.v[*start..start + token].fill(1.0));
    let case = case(DType::F32, Kind::Sink, Layout::Contiguous);
    let placement = Placement::new(case.layout, &SHAPE, DType::F32);
    let weights = both(&Image::new(case.builder(&placement), placement, &sink).expect("legal")).0.o;
    let mean = weights.iter().sum::<f64>() / weights.len() as f64;
    assert!(mean > 0.9, "{mean}");
}

#[test]
fn tensors_share_no_byte_with_the_output() {
    for (dtype, layout) in
        DTYPES.into_iter().flat_map(|dtype| [(dtype, Layout::FourBytes)].into_iter().chain(Layout::ALIGNED.map(|layout| (dtype, layout))))
    {
        let placement = Placement::new(layout, &SHAPE, dtype);
        let mut owner = vec![u8::MAX; placement.bytes];
        let row_bytes = (SHAPE.head_dim * dtype.bytes()) as usize;
        for n in 0..4 {
            for start in row_offsets(&placement.tensors[n], extents(&SHAPE)[n], dtype) {
                assert_eq!(start % layout.alignment() as usize, 0, "{layout:?}");
                for byte in &mut owner[start..start + row_bytes] {
                    // Batches of a shared cache are one.
                    assert!(*byte == u8::MAX || (*byte == n as u8 && layout == Layout::SharedCache), "{dtype} {layout:?}: {n} over {byte}");
                    *byte = n as u8;
                }
            }
        }
        let lse = placement.lse..placement.lse + 4 * (2 * 6 * 70);
        assert!(owner[lse].iter().all(|byte| *byte == u8::MAX), "{dtype} {layout:?}");
        let after_rows = owner.iter().rposition(|byte| *byte != u8::MAX).expect("not empty") + 1;
        assert!(after_rows + 4096 <= placement.lse && owner[..4096].iter().all(|byte| *byte == u8::MAX), "no guard: {layout:?}");
    }
}

#[test]
fn four_byte_layouts_are_aligned_to_no_more() {
    for dtype in DTYPES {
        let image = image(dtype, Kind::Normal, Layout::FourBytes);
        for operand in [Operand::Q, Operand::K, Operand::V, Operand::O] {
            let Strides { batch, seq, head } = image.problem.strides(operand).expect("strided");
            let bytes = [batch, seq, head].map(|stride| stride * u64::from(dtype.bytes()));
            assert!(bytes.iter().all(|bytes| bytes % 4 == 0) && bytes.iter().any(|bytes| bytes % 8 == 4), "{operand}: {bytes:?}");
        }
    }
}

#[test]
fn an_image_finds_what_a_kernel_must_not_write() {
    for layout in Layout::ALIGNED {
        let image = image(DType::BF16, Kind::Normal, layout);
        let untouched = image.results(&image.bytes).expect("nothing was written");
        assert!(untouched.o.iter().chain(&untouched.lse).all(|value| value.is_nan()), "what is not written is NaN");
        let o = row_offsets(&image.placement.tensors[3], extents(&SHAPE)[3], DType::BF16).collect::<Vec<_>>();
        let mut written = image.bytes.clone();
        o.iter().for_each(|start| written[*start..start + 128].fill(0));
        assert!(image.results(&written).expect("only o was written").o.iter().all(|value| *value == 0.0));
        let last = o.iter().max().expect("rows") + 128;
        for stray in [0, image.placement.tensors[1].offset, last, image.placement.lse - 1, image.bytes.len() - 1] {
            let mut spoiled = written.clone();
            spoiled[stray] ^= 1;
            assert!(image.results(&spoiled).is_err(), "{layout:?}: byte {stray}");
        }
    }
}

#[test]
fn all_cases_are_legal_and_meet_every_kernel() {
    let entries: Vec<&Entry> = catalog().iter().collect();
    let families = Family::all(&entries);
    assert!(!families.is_empty());
    let mut cases = Vec::new();
    for family in &families {
        cases.extend([family.edges(), family.accuracy(), family.quick()].concat());
    }
    let mut served = vec![0; entries.len()];
    for case in &cases {
        let placement = Placement::new(case.layout, &case.shape, case.dtype);
        let problem = case.builder(&placement).build().unwrap_or_else(|error| panic!("{case}: {error}"));
        for (entry, served) in entries.iter().zip(&mut served) {
            *served += u32::from(serves(entry, &problem, case.layout.alignment()));
        }
    }
    for (entry, served) in entries.iter().zip(served) {
        assert!(served >= 40, "{} serves {served} cases only", entry.name);
    }
    let has = |what: &str, is_it: fn(&Case) -> bool| assert!(cases.iter().any(is_it), "no case has {what}");
    has("rows without keys", |case| case.mask == Mask::Causal && case.shape.kv_len < case.shape.q_len);
    has("more heads than rows of a small tile", |case| case.shape.q_heads / case.shape.kv_heads > 64);
    has("a full mask", |case| case.mask == Mask::Full);
    has("several batches", |case| case.shape.batch > 1);
    has("a scale of its own", |case| case.scale.is_some());
    for entry in entries.iter().filter(|entry| matches!(entry.schedule, Schedule::Split { .. })) {
        let fills_a_cluster = |case: &&Case| case.shape.kv_len == 8 * entry.block_kv - 1 && case.shape.head_dim == entry.head_dim;
        assert!(cases.iter().any(|case| fills_a_cluster(&case)), "no case has a step for each of 8 blocks of {}", entry.name);
    }
    for (kind, layout) in Kind::ALL.iter().flat_map(|kind| Layout::ALIGNED.map(|layout| (*kind, layout))) {
        assert!(cases.iter().any(|case| (case.kind, case.layout) == (kind, layout)), "no case has {kind:?} data and {layout:?} layout");
    }
}
