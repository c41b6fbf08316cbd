//! Scores, the output accumulator, and the two matrix products of attention as one trait per precision.

use super::element::TileElement;
use super::rows::{PerRow, vars};
use super::shared::Fragments;
use crate::ptx::builder::Kernel;
use crate::ptx::types::{Reg, Var};
use crate::ptx::warpgroup::Accumulator;

/// Columns of an accumulator fragment.
pub const N8: u32 = 8;

/// Row (of the lane's two) that value `i` of an accumulator fragment belongs to.
fn half_of(i: usize) -> usize {
    i / 2
}

/// A warp's scores, then its weights: m16n8 fragments `[m16][n8]` of four values a lane.
#[derive(Clone)]
pub struct Scores<'k>(pub Vec<Vec<[Reg<'k, f32>; 4]>>);

impl<'k> Scores<'k> {
    fn map(&self, mut f: impl FnMut(usize, u32, Reg<'k, f32>) -> Reg<'k, f32>) -> Self {
        let fragment = |m: usize, n: usize, s: &[Reg<'k, f32>; 4], f: &mut dyn FnMut(usize, u32, Reg<'k, f32>) -> Reg<'k, f32>| {
            std::array::from_fn(|i| f(2 * m + half_of(i), n as u32 * N8 + i as u32 % 2, s[i]))
        };
        Scores(self.0.iter().enumerate().map(|(m, row)| row.iter().enumerate().map(|(n, s)| fragment(m, n, s, &mut f)).collect()).collect())
    }

    /// The scores of a warp in a warpgroup's accumulator, in its first `columns` columns.
    pub fn of(acc: &Accumulator<'k>, columns: u32) -> Self {
        let values = &acc.values()[..columns as usize / 2];
        Scores(vec![values.chunks_exact(4).map(|f| [f[0].get(), f[1].get(), f[2].get(), f[3].get()]).collect()])
    }

    /// Puts the values back into the accumulator that they come from.
    pub fn put(&self, acc: &Accumulator<'k>) {
        self.0[0].iter().flatten().zip(acc.values()).for_each(|(value, var)| var.set(*value));
    }

    /// The first `n` fragments of each row.
    pub fn first_fragments(&self, n: usize) -> Self {
        Scores(self.0.iter().map(|row| row[..n].to_vec()).collect())
    }

    /// Each row multiplied by its factor.
    pub fn scale_rows(&self, factor: &PerRow<Reg<'k, f32>>) -> Self {
        self.map(|row, _, s| s * factor.0[row])
    }

    /// The values of each row, in this lane.
    fn row_values(&self) -> PerRow<Vec<Reg<'k, f32>>> {
        PerRow::from_fn(2 * self.0.len(), |row| self.0[row / 2].iter().flat_map(|s| [s[2 * (row % 2)], s[2 * (row % 2) + 1]]).collect())
    }

    /// The largest score of each row, over all its columns.
    pub fn row_max(&self) -> PerRow<Reg<'k, f32>> {
        self.row_values().map(|values| reduce(values, |a, b| a.max(b))).max_over_quad()
    }

    /// The sum of this lane's columns of each row; the lanes of a quad are added once, at the end.
    pub fn lane_sum(&self) -> PerRow<Reg<'k, f32>> {
        self.row_values().map(|values| reduce(values, |a, b| a + b))
    }

    /// -inf where a key is not visible. `visible` is, for each row, how many of the tile's keys are,
    /// less the lane's first column.
    pub fn mask_beyond(&self, visible: &PerRow<Reg<'k, i32>>) -> Self {
        self.mask_beyond_from(0, visible)
    }

    /// The same, where every key left of column `from` is visible.
    pub fn mask_beyond_from(&self, from: u32, visible: &PerRow<Reg<'k, i32>>) -> Self {
        let masked = |row: usize, column: u32, s| visible.0[row].gt(column as i32).select(s, f32::NEG_INFINITY);
        self.map(|row, column, s| if column < from { s } else { masked(row, column, s) })
    }

    /// 2^(scale * S - m): the weights.
    pub fn weights(&self, scale_log2: Reg<'k, f32>, m: &PerRow<Reg<'k, f32>>) -> Self {
        let minus_m = m.map(|m| m.negate());
        self.map(|row, _, s| s.mul_add(scale_log2, minus_m.0[row]).exp2())
    }
}

/// Combines values in four interleaved chains, so that the adder's latency does not add up.
fn reduce<'k>(values: Vec<Reg<'k, f32>>, combine: impl Fn(Reg<'k, f32>, Reg<'k, f32>) -> Reg<'k, f32>) -> Reg<'k, f32> {
    let mut chains: Vec<Reg<'k, f32>> = Vec::new();
    for (i, value) in values.into_iter().enumerate() {
        match chains.get_mut(i % 4) {
            Some(chain) => *chain = combine(*chain, value),
            None => chains.push(value),
        }
    }
    chains.into_iter().reduce(combine).expect("a row has columns")
}

/// The output rows of a warp, accumulated over the key tiles: `[m16][n8]` fragments.
pub struct Output<'k>(pub Vec<Vec<[Var<'k, f32>; 4]>>);

impl<'k> Output<'k> {
    /// All zeros.
    pub fn zero(k: &'k Kernel, fragments: u32, head_dim: u32) -> Self {
        let fragment = || std::array::from_fn(|_| k.var(0.0f32));
        Output((0..fragments).map(|_| (0..head_dim / N8).map(|_| fragment()).collect()).collect())
    }

    /// Visits every value with its row.
    pub fn each(&self, mut f: impl FnMut(usize, Var<'k, f32>)) {
        for (m, row) in self.0.iter().enumerate() {
            for fragment in row {
                for (i, value) in fragment.iter().enumerate() {
                    f(2 * m + half_of(i), *value);
                }
            }
        }
    }

    /// The lane's pairs of neighbouring values in one of its rows, one pair a fragment.
    pub fn row(&self, row: usize) -> Vec<[Reg<'k, f32>; 2]> {
        let first = 2 * (row % 2);
        self.0[row / 2].iter().map(|fragment| [fragment[first].get(), fragment[first + 1].get()]).collect()
    }

    /// Multiplies each row by its factor.
    pub fn scale_rows(&self, factor: &PerRow<Reg<'k, f32>>) {
        self.each(|row, mut value| value *= factor.0[row]);
    }
}

/// State of the online softmax: one running maximum and one sum a row, and the output so far.
pub struct Online<'k> {
    /// Largest score seen, in log2 units (scale * log2(e) * S). -inf: no key seen.
    pub m: PerRow<Var<'k, f32>>,
    /// Sum of the weights, in this lane's columns.
    pub l: PerRow<Var<'k, f32>>,
    /// Weighted sum of the values.
    pub o: Output<'k>,
}

impl<'k> Online<'k> {
    /// Before the first key.
    pub fn start(k: &'k Kernel, fragments: u32, head_dim: u32) -> Self {
        let rows = 2 * fragments as usize;
        Online { m: vars(k, rows, f32::NEG_INFINITY), l: vars(k, rows, 0.0), o: Output::zero(k, fragments, head_dim) }
    }
}

/// A left operand's fragment.
pub type LeftOperand<'k> = [Reg<'k, crate::ptx::types::Bits32>; 4];

/// How a precision multiplies on tensor cores.
pub trait Product: TileElement {
    /// How this precision reads V from shared memory.
    fn value_fragments<'k>(tile: &super::shared::SharedTile<'k, Self>, at: super::lanes::Lanes<'k>) -> Fragments<'k, Self>;

    /// S = Q K^T for a warp's `fragments` m16 fragments of rows and all keys of the tile.
    fn scores<'k>(k: &'k Kernel, fragments: u32, q: &Fragments<'k, Self>, keys: &Fragments<'k, Self>) -> Scores<'k>;

    /// The weights as left operands `[m16][key step]`.
    fn left_operands<'k>(k: &'k Kernel, p: &Scores<'k>) -> Vec<Vec<LeftOperand<'k>>>;

    /// O = shrink * O + P V.
    fn accumulate<'k>(
        k: &'k Kernel,
        o: &Output<'k>,
        shrink: &PerRow<Reg<'k, f32>>,
        p: &[Vec<LeftOperand<'k>>],
        values: &Fragments<'k, Self>,
    );

    /// A pair of output values as they are stored: one 32-bit word of two 16-bit values, or two words.
    fn store_words<'k>(k: &'k Kernel, lo: Reg<'k, f32>, hi: Reg<'k, f32>) -> Vec<Reg<'k, crate::ptx::types::Bits32>>;
}
