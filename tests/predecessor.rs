//! The contract of attnpack's predecessor, `PrefillAttentionKernel` of aprender-gpu 0.32.0, kept through attnpack.
//!
//! Its kernel took `(q, k, v, o, m, q_stride, kv_stride, num_q_heads)`: f32, q and o `[m, q_stride]`, k and v
//! `[m, kv_stride]`, strides in elements; head h of a row at `h * head_dim`, its KV head `h / heads_per_kv`; head_dim and any
//! positive `heads_per_kv` fixed when the kernel was made; scale 1/sqrt(head_dim); causal from position 0. What a row holds
//! beyond the heads is neither read nor written.

mod reference;

use std::sync::{Arc, Once};

use attnpack::cudarc::driver::CudaStream;
use attnpack::{
    Alignment, Arch, Capability, Code, DType, Device, Mask, Pointers, Policy, Problem, Shape, Strides, build_info, catalog, dispatch,
};
use proptest::prelude::*;

use reference::fixtures::Activations;
use reference::gpu::{driver_error, gpu_or_skip, new_stream, tell_skipped};
use reference::{Data, Inputs, Kind, Output, Tensor, judge, plain, reference as exact};

/// A launch of the predecessor.
#[derive(Clone, Copy, Debug)]
struct Seed {
    m: u32,
    q_stride: u32,
    kv_stride: u32,
    num_q_heads: u32,
    heads_per_kv: u32,
    head_dim: u32,
}

/// A launch of attnpack: a problem, and the columns at which its q (and o) and its k (and v) start.
struct Part {
    problem: Problem,
    q_column: usize,
    kv_column: usize,
}

impl Seed {
    fn kv_heads(&self) -> u32 {
        self.num_q_heads.div_ceil(self.heads_per_kv)
    }

    /// One launch; a second one where the query heads do not fill the last group.
    fn parts(&self) -> Result<Vec<Part>, attnpack::Error> {
        let (groups, rest) = (self.num_q_heads / self.heads_per_kv, self.num_q_heads % self.heads_per_kv);
        let whole = self.part(0, groups * self.heads_per_kv, groups);
        let last = self.part(groups * self.heads_per_kv, rest, 1);
        [whole, last].into_iter().flatten().collect()
    }

    /// Query heads from `first` on; `None` if there are none.
    fn part(&self, first: u32, q_heads: u32, kv_heads: u32) -> Option<Result<Part, attnpack::Error>> {
        let Seed { m, head_dim, .. } = *self;
        let shape = Shape { batch: 1, q_len: m, kv_len: m, q_heads, kv_heads, head_dim };
        let [q, kv] = [self.q_stride, self.kv_stride].map(|stride| Strides::packed_rows(stride.into(), head_dim, m));
        let builder = Problem::prefill(DType::F32, shape).mask(Mask::Causal).q_strides(q).o_strides(q).k_strides(kv).v_strides(kv);
        let (q_column, kv_column) = ((first * head_dim) as usize, (first / self.heads_per_kv * head_dim) as usize);
        (q_heads > 0).then(|| builder.build().map(|problem| Part { problem, q_column, kv_column }))
    }
}

/// Head sizes of the predecessor's models that this build has kernels for. Only `ATTNPACK_VARIANTS` takes some away.
fn head_dims() -> Vec<u32> {
    let (built, missing): (Vec<u32>, Vec<u32>) =
        [64, 128].into_iter().partition(|head_dim| catalog().iter().any(|entry| (entry.dtype, entry.head_dim) == (DType::F32, *head_dim)));
    if !missing.is_empty() {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| tell_skipped(&format!("predecessor, head_dim {missing:?}: this build has no such f32 kernels")));
    }
    built
}

/// GPUs by compute capability, with the shared memory and multiprocessors of a common model.
#[rustfmt::skip]
const GPUS: [Capability; 6] = [
    Capability { major:  8, minor: 0, shared_optin_bytes: 163 << 10, multiprocessors: 108 },
    Capability { major:  8, minor: 6, shared_optin_bytes:  99 << 10, multiprocessors: 84 },
    Capability { major:  8, minor: 9, shared_optin_bytes:  99 << 10, multiprocessors: 128 },
    Capability { major:  9, minor: 0, shared_optin_bytes: 227 << 10, multiprocessors: 132 },
    Capability { major: 10, minor: 0, shared_optin_bytes: 227 << 10, multiprocessors: 148 },
    Capability { major: 12, minor: 0, shared_optin_bytes:  99 << 10, multiprocessors: 170 },
];

fn seeds() -> impl Strategy<Value = Seed> {
    let head_dims = head_dims();
    let padding = prop_oneof![Just(0_u32), Just(1), 0..70_u32, Just(4096)];
    let sizes = (1..=5000_u32, 1..=64_u32, prop_oneof![1..=9_u32, Just(16), Just(71), 1..=1000_u32]);
    (sizes, prop::sample::select(head_dims), padding.clone(), padding).prop_map(|((m, num_q_heads, heads_per_kv), head_dim, q, kv)| {
        let seed = Seed { m, q_stride: num_q_heads * head_dim + q, kv_stride: 0, num_q_heads, heads_per_kv, head_dim };
        Seed { kv_stride: seed.kv_heads() * head_dim + kv, ..seed }
    })
}

fn is_built_for(gpu: Capability) -> bool {
    let Capability { major, minor, .. } = gpu;
    build_info().ptxas.is_some() && build_info().archs.contains(&Arch { major, minor, specific: false })
}

proptest! {
    /// Machine code where the GPU's architecture was built, the portable PTX elsewhere: nothing is refused.
    #[test]
    fn every_launch_of_the_predecessor_has_a_kernel(seed in seeds(), base in prop::sample::select(vec![4_u64, 16, 256])) {
        let parts = seed.parts().map_err(|error| TestCaseError::fail(error.to_string()))?;
        let heads: u32 = parts.iter().map(|part| part.problem.shape().q_heads).sum();
        prop_assert_eq!(heads, seed.num_q_heads);
        for (part, gpu) in parts.iter().flat_map(|part| GPUS.map(|gpu| (part, gpu))) {
            let at = |n: u64, column: usize| (n << 32) + base + 4 * column as u64;
            let (q, o) = (at(1, part.q_column), at(4, part.q_column));
            let pointers = Pointers { q, k: at(2, part.kv_column), v: at(3, part.kv_column), o, lse: None };
            let alignment = Alignment::of(&part.problem, &pointers);
            let policy = if is_built_for(gpu) { Policy::CubinOnly } else { Policy::CubinFirst };
            let choice = dispatch(&part.problem, alignment, gpu, policy, catalog());
            let choice = choice.map_err(|error| TestCaseError::fail(format!("{seed:?} on {gpu}: {error}")))?;
            prop_assert!(choice.entry.copy_bytes <= alignment.bytes());
            prop_assert!(choice.entry.shared_bytes <= gpu.shared_optin_bytes);
            prop_assert!(!is_built_for(gpu) || matches!(choice.code, Code::Cubin(_)));
        }
    }
}

/// Bits that no kernel writes: a NaN of its own.
const UNTOUCHED: u32 = 0x7fc0_5eed;

/// A matrix of `rows` of `stride` elements; what lies beyond `columns` is NaN.
fn matrix(rows: u32, stride: u32, columns: u32, values: &[f32]) -> Vec<f32> {
    let mut matrix = vec![f32::from_bits(UNTOUCHED); rows as usize * stride as usize];
    for (row, values) in matrix.chunks_mut(stride as usize).zip(values.chunks(columns as usize)) {
        row[..columns as usize].copy_from_slice(values);
    }
    matrix
}

/// Inputs of the predecessor, on the host.
struct Matrices {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Matrices {
    fn random(seed: &Seed) -> Self {
        let Seed { m, q_stride, kv_stride, num_q_heads, head_dim, .. } = *seed;
        let shape = Shape { batch: 1, q_len: m, kv_len: m, q_heads: num_q_heads, kv_heads: seed.kv_heads(), head_dim };
        let data = Data::new(Kind::Normal, &shape, u64::from(m));
        let kv = |values: &[f32]| matrix(m, kv_stride, seed.kv_heads() * head_dim, values);
        Matrices { q: matrix(m, q_stride, num_q_heads * head_dim, &data.q), k: kv(&data.k), v: kv(&data.v) }
    }

    fn inputs(&self, part: &Part) -> Inputs<'_> {
        let head_dim = part.problem.shape().head_dim as usize;
        let tensor = |matrix, column: usize, operand| {
            let elements: &[f32] = matrix;
            let strides = part.problem.strides(operand).expect("strided");
            Tensor { elements: &elements[column..], strides, row_elems: head_dim }
        };
        let q = tensor(&self.q, part.q_column, attnpack::Operand::Q);
        let [k, v] = [&self.k, &self.v].map(|matrix| tensor(matrix, part.kv_column, attnpack::Operand::K));
        Inputs { q, k, v }
    }
}

/// o as the predecessor would leave it.
fn launch(device: &Device, stream: &Arc<CudaStream>, seed: &Seed, matrices: &Matrices) -> Result<Vec<f32>, String> {
    let upload = |matrix: &Vec<f32>| stream.clone_htod(matrix).map_err(driver_error);
    let (q, k, v) = (upload(&matrices.q)?, upload(&matrices.k)?, upload(&matrices.v)?);
    let mut o = upload(&vec![f32::from_bits(UNTOUCHED); matrices.q.len()])?;
    for Part { problem, q_column, kv_column } in seed.parts().map_err(|error| error.to_string())? {
        let (q, k, v) = (q.slice(q_column..), k.slice(kv_column..), v.slice(kv_column..));
        let launched = device.prefill(stream, &problem, &q, &k, &v, &mut o.slice_mut(q_column..), None);
        launched.map_err(|error| error.to_string())?;
    }
    let o = stream.clone_dtoh(&o).map_err(driver_error)?;
    stream.synchronize().map_err(driver_error)?;
    Ok(o)
}

fn check(seed: &Seed, matrices: &Matrices, o: &[f32]) -> Result<(), String> {
    let head_dim = seed.head_dim as usize;
    for part in seed.parts().map_err(|error| error.to_string())? {
        let (exact, plain) = (exact(&part.problem, &matrices.inputs(&part)), plain(&part.problem, &matrices.inputs(&part)));
        let mut actual = Output { o: Vec::new(), lse: plain.lse.clone() };
        for (head, token) in
            (0..part.problem.shape().q_heads as usize).flat_map(|head| (0..seed.m as usize).map(move |token| (head, token)))
        {
            let start = token * seed.q_stride as usize + part.q_column + head * head_dim;
            actual.o.extend(&o[start..start + head_dim]);
        }
        judge(&part.problem, &actual, &exact, &plain).check()?;
    }
    let columns = seed.num_q_heads as usize * head_dim;
    let mut beyond = o.chunks(seed.q_stride as usize).flat_map(|row| &row[columns..]);
    if beyond.all(|element| element.to_bits() == UNTOUCHED) { Ok(()) } else { Err("an element beyond the heads was written".to_owned()) }
}

/// The predecessor's own rule for what a query head reads, against the parts.
#[test]
fn parts_read_what_the_predecessor_reads() {
    let seed = Seed { m: 5, q_stride: 7 * 64 + 3, kv_stride: 4 * 64 + 9, num_q_heads: 7, heads_per_kv: 2, head_dim: 64 };
    let matrices = Matrices::random(&seed);
    let parts = seed.parts().expect("legal");
    assert_eq!(parts.len(), 2, "three whole groups, and one head of a fourth");
    for part in &parts {
        let o = exact(&part.problem, &matrices.inputs(part)).o;
        for (n, row) in o.chunks(64).enumerate() {
            let (token, head) = (n % 5, n / 5 + part.q_column / 64);
            let of = |matrix: &[f32], stride: usize, row: usize, head: usize, d: usize| f64::from(matrix[row * stride + head * 64 + d]);
            let q = |d| of(&matrices.q, 451, token, head, d);
            let weight = |j| (0..64).map(|d| q(d) * of(&matrices.k, 265, j, head / 2, d) / 8.0).sum::<f64>().exp();
            let total: f64 = (0..=token).map(weight).sum();
            let expected = |d| (0..=token).map(|j| weight(j) / total * of(&matrices.v, 265, j, head / 2, d)).sum::<f64>();
            assert!((0..64).all(|d| (row[d] - expected(d)).abs() < 1e-9), "token {token}, head {head}");
        }
    }
}

/// Heads of models that the predecessor served, and ratios that no model has.
fn launches() -> Vec<Seed> {
    let heads = [(9, 3), (14, 7), (12, 6), (3, 1), (10, 5), (7, 2), (4, 8)];
    let paddings = [(0, 0), (64, 192), (1, 1), (3, 0), (0, 5), (4097, 2)];
    let mut seeds = Vec::new();
    for head_dim in head_dims() {
        for (n, m) in [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 300, 517].into_iter().enumerate() {
            for half in 0..2 {
                let (num_q_heads, heads_per_kv) = heads[(n + 3 * half) % heads.len()];
                let (q, kv) = paddings[(n + half) % paddings.len()];
                let seed = Seed { m, q_stride: num_q_heads * head_dim + q, kv_stride: 0, num_q_heads, heads_per_kv, head_dim };
                seeds.push(Seed { kv_stride: seed.kv_heads() * head_dim + kv, ..seed });
            }
        }
    }
    seeds
}

#[test]
fn launches_of_the_predecessor_give_its_results() {
    let Some(device) = gpu_or_skip("predecessor, what needs a GPU") else { return };
    let stream = new_stream(&device).expect("a stream");
    for seed in launches() {
        let matrices = Matrices::random(&seed);
        let result = launch(&device, &stream, &seed, &matrices).and_then(|o| check(&seed, &matrices, &o));
        assert!(result.is_ok(), "{seed:?}: {}", result.unwrap_err());
    }
}

/// The projection of a model as it stands: q, k and v are columns of one matrix.
#[test]
fn a_packed_projection_is_three_of_its_matrices() {
    let Some(device) = gpu_or_skip("predecessor, what needs a GPU") else { return };
    if !head_dims().contains(&64) {
        return;
    }
    let stream = new_stream(&device).expect("a stream");
    let activations = Activations::layer_14().expect("intact");
    let (columns, [k, v]) = (activations.columns() as u32, activations.starts());
    let seed = Seed { m: activations.shape.q_len, q_stride: columns, kv_stride: columns, num_q_heads: 9, heads_per_kv: 3, head_dim: 64 };
    let matrices = Matrices { q: activations.qkv.clone(), k: activations.qkv[k..].to_vec(), v: activations.qkv[v..].to_vec() };
    let result = launch(&device, &stream, &seed, &matrices).and_then(|o| check(&seed, &matrices, &o));
    assert_eq!(result, Ok(()));
}
