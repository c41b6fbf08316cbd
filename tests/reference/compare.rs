//! The judgement: how far a result is from the reference, and how far it may be.
//!
//! - The relative error `|o - reference| / |reference|` over the whole output is at most twice that of [`super::plain`].
//! - No element is further off than four times plain's worst one: a wrong element hides in the norm of a large output.
//! - The LSE is within 1e-3 nats, or what the kernel promises. Rows that see no key are exactly 0, and their LSE is exactly -inf.
//!
//! NaN fails each of them, because each is asked as "is it at most".

use std::fmt;

use attnpack::{DType, Problem, Shape};

use super::attention::Output;

/// Nats.
pub const LSE_TOLERANCE: f64 = 1e-3;

/// What twice plain's error is raised to, because plain can be right by luck or by nature: with one key it returns v.
///
/// f32: a kernel on tensor cores splits each factor into hi + lo and leaves out lo * lo, which is at most 2^-20 of the
/// product and 2^-23 on average. That counts only where plain adds up a handful of keys; 2^-22 is two units in the last
/// place. 16 bits: with one key the result must be v to the bit, and with more plain rounds as the kernels do, so that
/// the floor only keeps from dividing by 0: half a unit in the last place is 2.4e-4 in f16.
fn floor(dtype: DType) -> f64 {
    match dtype {
        DType::F16 | DType::BF16 => 1e-5,
        DType::F32 => 2.0 * f64::from(f32::EPSILON),
    }
}

/// An element of o that is further off than all others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    /// Its place.
    pub batch: usize,
    /// Its place.
    pub token: usize,
    /// Its place.
    pub head: usize,
    /// Its place.
    pub element: usize,
    /// What was computed.
    pub actual: f32,
    /// What is right.
    pub expected: f64,
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Worst { batch, token, head, element, actual, expected } = *self;
        if batch > 0 {
            write!(f, "batch {batch}, ")?;
        }
        write!(f, "token {token}, head {head}, element {element}: {actual} for {expected:.8}")
    }
}

/// How good a result is.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Relative error of o.
    pub error: f64,
    /// That of plain.
    pub plain_error: f64,
    /// What it may be.
    pub allowed: f64,
    /// Largest error of the LSE, in nats.
    pub lse_error: f64,
    /// The worst element's error in terms of plain's worst one: at most 4 passes.
    pub far_ratio: f64,
    /// Where o is worst.
    pub worst: Worst,
    /// What is wrong with it.
    pub complaints: Vec<String>,
}

impl Verdict {
    /// The error in terms of plain's, which is raised to half the floor: at most 2 passes.
    pub fn ratio(&self) -> f64 {
        2.0 * self.error / self.allowed
    }

    /// Nothing, or what is wrong.
    pub fn check(&self) -> Result<(), String> {
        match self.complaints.as_slice() {
            [] => Ok(()),
            complaints => Err(format!("{}; worst at {}", complaints.join("; "), self.worst)),
        }
    }
}

/// Judges a result.
///
/// # Panics
/// It has not as many elements as the reference.
pub fn judge(problem: &Problem, actual: &Output<f32>, reference: &Output<f64>, plain: &Output<f32>) -> Verdict {
    judge_with(LSE_TOLERANCE, problem, actual, reference, plain)
}

/// [`judge`], with another tolerance of the LSE.
pub fn judge_with(lse_tolerance: f64, problem: &Problem, actual: &Output<f32>, reference: &Output<f64>, plain: &Output<f32>) -> Verdict {
    assert_eq!((actual.o.len(), actual.lse.len()), (reference.o.len(), reference.lse.len()));
    let (error, worst) = (relative_error(&actual.o, &reference.o), largest_difference(&actual.o, &reference.o));
    let plain_error = relative_error(&plain.o, &reference.o);
    let allowed = floor(problem.dtype()).max(2.0 * plain_error);
    let lse_error = actual.lse.iter().zip(&reference.lse).map(|(actual, expected)| lse_difference(*actual, *expected)).fold(0.0, larger);

    let mut complaints = Vec::new();
    let mut demand = |fine: bool, complaint: &dyn Fn() -> String| {
        if !fine {
            complaints.push(complaint())
        }
    };
    demand(error <= allowed, &|| format!("error {error:.2e} exceeds {allowed:.2e} (plain: {plain_error:.2e})"));
    let (far, plain_far) = (worst.1, largest_difference(&plain.o, &reference.o).1);
    let limit = 4.0 * plain_far.max(floor(problem.dtype()) * reference.o.iter().copied().map(f64::abs).fold(0.0, f64::max));
    demand(far <= limit, &|| format!("an element is off by {far:.2e}, more than {limit:.2e} (plain: {plain_far:.2e})"));
    demand(lse_error <= lse_tolerance, &|| format!("the LSE is off by {lse_error:.2e} nats"));
    let empty = reference.lse.iter().zip(actual.o.chunks(problem.v_head_dim() as usize)).filter(|(lse, _)| **lse == f64::NEG_INFINITY);
    demand(empty.flat_map(|(_, o)| o).all(|o| *o == 0.0), &|| "a row that sees no key is not 0".to_owned());
    Verdict {
        error,
        plain_error,
        allowed,
        lse_error,
        far_ratio: 4.0 * far / limit,
        worst: locate(problem, worst.0, actual, reference),
        complaints,
    }
}

/// `|actual - expected| / |expected|`; for an expected 0, 0 or infinite.
fn relative_error(actual: &[f32], expected: &[f64]) -> f64 {
    let difference: f64 = actual.iter().zip(expected).map(|(a, e)| (f64::from(*a) - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

/// Where the largest difference is first, and how large. NaN is larger than everything.
fn largest_difference(actual: &[f32], expected: &[f64]) -> (usize, f64) {
    let differences = actual.iter().zip(expected).map(|(a, e)| (f64::from(*a) - e).abs());
    differences.enumerate().fold((0, 0.0), |best, new| {
        let is_larger = new.1 > best.1 || (new.1.is_nan() && !best.1.is_nan());
        if is_larger { new } else { best }
    })
}

/// The larger of two; NaN is larger than everything.
pub fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a >= b { a } else { b }
}

fn lse_difference(actual: f32, expected: f64) -> f64 {
    let actual = f64::from(actual);
    if actual == expected { 0.0 } else { (actual - expected).abs() }
}

fn locate(problem: &Problem, number: usize, actual: &Output<f32>, reference: &Output<f64>) -> Worst {
    let (Shape { q_len, q_heads, .. }, v_head_dim) = (*problem.shape(), problem.v_head_dim() as usize);
    let (row, element) = (number / v_head_dim, number % v_head_dim);
    let (token, head) = (row % q_len as usize, row / q_len as usize % q_heads as usize);
    let batch = row / q_len as usize / q_heads as usize;
    Worst { batch, token, head, element, actual: actual.o[number], expected: reference.o[number] }
}
