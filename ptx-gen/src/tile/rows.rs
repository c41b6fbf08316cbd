//! One value per row of a warp's fragments, and what the lanes of a quad must agree on.

use std::ops::{Mul, Sub};

use crate::ptx::builder::Kernel;
use crate::ptx::types::{Reg, Scalar, Var};

/// One value for each row that a lane holds: rows g and g + 8 of each m16 fragment.
#[derive(Clone)]
pub struct PerRow<T>(pub Vec<T>);

impl<T: Clone> PerRow<T> {
    /// Computes a value for each of `rows` rows.
    pub fn from_fn(rows: usize, f: impl FnMut(usize) -> T) -> Self {
        PerRow((0..rows).map(f).collect())
    }

    /// Applies `f` to each row's value.
    pub fn map<U>(&self, f: impl FnMut(T) -> U) -> PerRow<U> {
        PerRow(self.0.iter().cloned().map(f).collect())
    }

    /// Combines the values of two per-row quantities.
    pub fn zip<U: Clone, V>(&self, other: &PerRow<U>, mut f: impl FnMut(T, U) -> V) -> PerRow<V> {
        PerRow(self.0.iter().cloned().zip(other.0.iter().cloned()).map(|(a, b)| f(a, b)).collect())
    }
}

impl<'k> PerRow<Reg<'k, f32>> {
    /// The larger of two values, row by row.
    pub fn max(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a.max(b))
    }

    /// 2^x of each row's value.
    pub fn exp2(&self) -> Self {
        self.map(|x| x.exp2())
    }

    /// The largest value among the four lanes that share a row.
    pub fn max_over_quad(&self) -> Self {
        self.over_quad(|a, b| a.max(b))
    }

    /// The sum over the four lanes that share a row, the same in all of them.
    pub fn sum_over_quad(&self) -> Self {
        self.over_quad(|a, b| a + b)
    }

    fn over_quad(&self, combine: impl Fn(Reg<'k, f32>, Reg<'k, f32>) -> Reg<'k, f32>) -> Self {
        let mut values = self.clone();
        for lane_mask in [1, 2] {
            let others = values.map(|x| x.shuffle_xor(lane_mask));
            values = values.zip(&others, &combine);
        }
        values
    }

    /// 0 where a value is -inf: what a row that has seen no key yet is measured against.
    pub fn zero_if_unseen(&self) -> Self {
        self.map(|x| x.eq(f32::NEG_INFINITY).select(0.0f32, x))
    }
}

impl<'k> PerRow<Reg<'k, f32>> {
    /// Whether some row of the warp has another value than `value`: uniform.
    pub fn any_is_not(&self, value: f32) -> Reg<'k, bool> {
        let differs = self.map(|x| x.ne(value)).0;
        differs.into_iter().reduce(|a, b| a.or(b)).expect("a lane has rows").in_any_lane()
    }
}

impl<'k> Sub for &PerRow<Reg<'k, f32>> {
    type Output = PerRow<Reg<'k, f32>>;

    fn sub(self, other: Self) -> Self::Output {
        self.zip(other, |a, b| a - b)
    }
}

impl<'k> Mul<Reg<'k, f32>> for &PerRow<Reg<'k, f32>> {
    type Output = PerRow<Reg<'k, f32>>;

    fn mul(self, factor: Reg<'k, f32>) -> Self::Output {
        self.map(|x| x * factor)
    }
}

impl<'k, T: Scalar> PerRow<Var<'k, T>> {
    /// The current values.
    pub fn get(&self) -> PerRow<Reg<'k, T>> {
        self.map(|v| v.get())
    }

    /// Replaces the values.
    pub fn set(&self, values: &PerRow<Reg<'k, T>>) {
        self.zip(values, |var, value| var.set(value));
    }
}

impl<'k> PerRow<Var<'k, f32>> {
    /// Multiplies each row's value by its factor.
    pub fn scale(&self, factor: &PerRow<Reg<'k, f32>>) {
        self.zip(factor, |mut var, factor| var *= factor);
    }

    /// Adds to each row's value.
    pub fn add(&self, term: &PerRow<Reg<'k, f32>>) {
        self.zip(term, |mut var, term| var += term);
    }
}

/// A variable for each row, starting as `value`.
pub fn vars(k: &Kernel, rows: usize, value: f32) -> PerRow<Var<'_, f32>> {
    PerRow::from_fn(rows, |_| k.var(value))
}
