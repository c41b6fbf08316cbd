//! Attention twice: [`reference`] in f64, and [`plain`] in the precision of the kernels, whose error sets the tolerance.

use std::sync::{Mutex, PoisonError};

use attnpack::{Mask, Problem, Shape, Strides};

use super::element::round;

/// A tensor `[batch, seq, heads, head_dim]` on the host. Its values are those that the element type can hold.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    /// From element `[0, 0, 0, 0]` on.
    pub elements: &'a [f32],
    /// In elements.
    pub strides: Strides,
    /// Length of a row.
    pub row_elems: usize,
}

impl<'a> Tensor<'a> {
    fn row(&self, batch: usize, token: usize, head: usize) -> &'a [f32] {
        let Strides { batch: batches, seq, head: heads } = self.strides;
        let start = batch as u64 * batches + token as u64 * seq + head as u64 * heads;
        &self.elements[start as usize..][..self.row_elems]
    }
}

/// Queries, keys and values.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// `[batch, q_len, q_heads, head_dim]`
    pub q: Tensor<'a>,
    /// `[batch, kv_len, kv_heads, head_dim]`
    pub k: Tensor<'a>,
    /// `[batch, kv_len, kv_heads, head_dim]`
    pub v: Tensor<'a>,
}

/// Results in the order of the LSE, without gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Output<T> {
    /// `[batch, q_heads, q_len, head_dim]`
    pub o: Vec<T>,
    /// `[batch, q_heads, q_len]`
    pub lse: Vec<T>,
}

/// Attention in f64, by its definition.
pub fn reference(problem: &Problem, inputs: &Inputs) -> Output<f64> {
    each_row(problem, |row, o, lse| {
        let q = inputs.q.row(row.batch, row.token, row.head);
        let score = |key| {
            let k = inputs.k.row(row.batch, key, row.kv_head);
            let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            f64::from(problem.scale()) * dot
        };
        let scores: Vec<f64> = (0..row.visible_keys).map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        for (key, score) in scores.iter().enumerate() {
            let weight = (score - max).exp() / sum;
            for (o, v) in o.iter_mut().zip(inputs.v.row(row.batch, key, row.kv_head)) {
                *o += weight * f64::from(*v);
            }
        }
        *lse = max + sum.ln(); // -inf where no key is visible
    })
}

/// Attention as a careful programmer computes it in the precision of the kernels, without tiles, tensor cores or
/// approximations: f32 scores and sums, each product added by a fused multiply-add, exact exponentials. For 16-bit
/// elements the weights are rounded once to 16 bits for their product with v, and so is the result.
pub fn plain(problem: &Problem, inputs: &Inputs) -> Output<f32> {
    let dtype = problem.dtype();
    each_row(problem, |row, o, lse| {
        let q = inputs.q.row(row.batch, row.token, row.head);
        let score = |key| {
            let k = inputs.k.row(row.batch, key, row.kv_head);
            problem.scale() * q.iter().zip(k).fold(0.0, |sum, (q, k)| fma(*q, *k, sum))
        };
        let scores: Vec<f32> = (0..row.visible_keys).map(score).collect();
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for (key, score) in scores.iter().enumerate() {
            let weight = f64::from(score - max).exp() as f32;
            sum += weight;
            let weight = round(dtype, weight);
            for (o, v) in o.iter_mut().zip(inputs.v.row(row.batch, key, row.kv_head)) {
                *o = fma(weight, *v, *o);
            }
        }
        if row.visible_keys > 0 {
            o.iter_mut().for_each(|o| *o = round(dtype, *o / sum));
        }
        *lse = max + sum.ln();
    })
}

/// `a * b + c` in f32, rounded as if once in all but one of some 2^28 cases: the product is exact in f64. Faster than
/// [`f32::mul_add`], which is a function call on targets whose baseline lacks the instruction.
fn fma(a: f32, b: f32, c: f32) -> f32 {
    (f64::from(a) * f64::from(b) + f64::from(c)) as f32
}

/// A query token of a head, and what it reads.
struct Row {
    batch: usize,
    head: usize,
    token: usize,
    kv_head: usize,
    /// Keys `0 .. visible_keys` are seen.
    visible_keys: usize,
}

impl Row {
    fn number(problem: &Problem, number: usize) -> Self {
        let Shape { q_len, kv_len, q_heads, .. } = *problem.shape();
        let (q_len, kv_len, q_heads) = (q_len as usize, kv_len as usize, q_heads as usize);
        let (token, head, batch) = (number % q_len, number / q_len % q_heads, number / q_len / q_heads);
        let visible_keys = match problem.mask() {
            Mask::Full => kv_len,
            // The last query sees every key, the one before it all but the last, and so on.
            Mask::Causal => (token + 1 + kv_len).saturating_sub(q_len),
        };
        Row { batch, head, token, kv_head: head / problem.group() as usize, visible_keys }
    }
}

/// Computes each row of the output, on all cores.
fn each_row<T: Clone + Default + Send>(problem: &Problem, compute: impl Fn(Row, &mut [T], &mut T) + Sync) -> Output<T> {
    let (Shape { batch, q_len, q_heads, .. }, v_head_dim) = (*problem.shape(), problem.v_head_dim() as usize);
    let rows = batch as usize * q_heads as usize * q_len as usize;
    let mut output = Output { o: vec![T::default(); rows * v_head_dim], lse: vec![T::default(); rows] };
    let left = Mutex::new(output.o.chunks_mut(v_head_dim).zip(&mut output.lse).enumerate());
    let work = || {
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((number, (o, lse))) = next else { break };
            compute(Row::number(problem, number), o, lse);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        (1..cores.min(rows.div_ceil(16))).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    output
}
