//! f32 on tensor cores: each operand is split into two tf32 values, x = hi + lo, and a product is
//! lo·hi + hi·lo + hi·hi ("3xTF32"); lo·lo is below f32's precision.
//!
//! The tensor core truncates its sums two bits below the ulp of the largest term, so an accumulator that
//! lives through thousands of keys drifts. The product with V therefore starts from zero in every tile of
//! keys and is merged into O with one rounded f32 multiply-add.

use super::element::F32;
use super::lanes::Lanes;
use super::product::{LeftOperand, N8, Output, Product, Scores};
use super::rows::PerRow;
use super::shared::{Fragments, SharedTile};
use crate::ptx::builder::Kernel;
use crate::ptx::inst::MmaType::Tf32;
use crate::ptx::types::{Bits32, Reg};

/// Depth of one instruction.
const K8: u32 = 8;

/// An operand as the sum of two tf32 values.
#[derive(Clone, Copy)]
struct Split<'k> {
    hi: Reg<'k, Bits32>,
    lo: Reg<'k, Bits32>,
}

/// hi is x rounded half away from zero to tf32's 11 bits. lo is the exact rest, of at most 12 bits; the
/// instruction ignores what tf32 does not have (PTX ISA, "mma", `.tf32`), which is its last bit, if that:
/// 2^-23 of x at most, with either sign.
fn split(x: Reg<'_, f32>) -> Split<'_> {
    const HALF_ULP: u32 = 1 << 12;
    const TF32_BITS: u32 = !((1 << 13) - 1);
    let hi = (x.reinterpret::<u32>() + HALF_ULP) & TF32_BITS;
    let lo = x - hi.reinterpret::<f32>();
    Split { hi: hi.reinterpret(), lo: lo.to_bits() }
}

/// Accumulator fragments in two parts: the products of the large halves, and the small ones beside
/// them. Apart, the small ones are not cut off by the large ones, and the large ones meet only a third of
/// the truncated additions.
struct Accumulators<'k> {
    k: &'k Kernel,
    large: Vec<[Reg<'k, f32>; 4]>,
    small: Vec<[Reg<'k, f32>; 4]>,
}

impl<'k> Accumulators<'k> {
    fn zero(k: &'k Kernel, fragments: usize) -> Self {
        let zero = vec![[k.constant(0.0f32); 4]; fragments];
        Accumulators { k, large: zero.clone(), small: zero }
    }

    /// += a b from fragment `first` on, b a row of right operands. The passes keep dependent instructions apart.
    fn add_mul(&mut self, first: usize, a: [Split<'k>; 4], b: &[[Split<'k>; 2]]) {
        let (a_hi, a_lo) = (a.map(|a| a.hi), a.map(|a| a.lo));
        for (c, b) in self.small[first..].iter_mut().zip(b) {
            *c = self.k.mma(Tf32, a_lo, b.map(|b| b.hi), *c);
        }
        for (c, b) in self.large[first..].iter_mut().zip(b) {
            *c = self.k.mma(Tf32, a_hi, b.map(|b| b.hi), *c);
        }
        for (c, b) in self.small[first..].iter_mut().zip(b) {
            *c = self.k.mma(Tf32, a_hi, b.map(|b| b.lo), *c);
        }
    }

    /// The sums of both parts.
    fn total(self) -> Vec<[Reg<'k, f32>; 4]> {
        let sum = |(large, small): ([Reg<'k, f32>; 4], [Reg<'k, f32>; 4])| std::array::from_fn(|i| large[i] + small[i]);
        self.large.into_iter().zip(self.small).map(sum).collect()
    }
}

/// Output fragments that are computed together before O takes them in: what the registers hold beside O,
/// S and the split weights.
const FRAGMENTS_AT_ONCE: usize = 8;

impl Product for F32 {
    fn value_fragments<'k>(tile: &SharedTile<'k, Self>, at: Lanes<'k>) -> Fragments<'k, Self> {
        tile.words(at)
    }

    fn scores<'k>(k: &'k Kernel, fragments: u32, q: &Fragments<'k, Self>, keys: &Fragments<'k, Self>) -> Scores<'k> {
        let mut s: Vec<_> = (0..fragments).map(|_| Accumulators::zero(k, (keys.rows() / N8) as usize)).collect();
        for chunk in (0..q.columns() / K8).map(|step| 2 * step) {
            let a: Vec<_> = (0..fragments).map(|m| q.load(16 * m, chunk, false).map(|a| split(a.reinterpret()))).collect();
            for n in (0..keys.rows() / N8).step_by(2) {
                let [b0, b1, b2, b3] = keys.load(n * N8, chunk, false).map(|b| split(b.reinterpret()));
                for (s, a) in s.iter_mut().zip(&a) {
                    s.add_mul(n as usize, *a, &[[b0, b1], [b2, b3]]);
                }
            }
        }
        Scores(s.into_iter().map(Accumulators::total).collect())
    }

    /// An instruction takes its eight keys in the order 0 2 4 6 1 3 5 7: then an accumulator fragment of
    /// P is a left operand as it stands. [`Fragments::load_word_pair`] reads V in the same order.
    fn left_operands<'k>(_k: &'k Kernel, p: &Scores<'k>) -> Vec<Vec<LeftOperand<'k>>> {
        p.0.iter().map(|row| row.iter().map(|p| [p[0], p[2], p[1], p[3]].map(|p| p.to_bits())).collect()).collect()
    }

    fn accumulate<'k>(
        k: &'k Kernel,
        o: &Output<'k>,
        shrink: &PerRow<Reg<'k, f32>>,
        p: &[Vec<LeftOperand<'k>>],
        values: &Fragments<'k, Self>,
    ) {
        for (m, (o, p)) in o.0.iter().zip(p).enumerate() {
            for (first, o) in (0..).step_by(FRAGMENTS_AT_ONCE).zip(o.chunks(FRAGMENTS_AT_ONCE)) {
                let mut tile = Accumulators::zero(k, o.len());
                for (step, p) in (0..).zip(p) {
                    let a = p.map(|p| split(p.reinterpret()));
                    for n in 0..o.len() {
                        let b = values.load_word_pair(step * K8, 2 * (first + n) as u32).map(split);
                        tile.add_mul(n, a, &[b]);
                    }
                }
                for (o, tile) in o.iter().zip(tile.total()) {
                    for (i, (o, tile)) in o.iter().zip(tile).enumerate() {
                        o.mul_add_assign(shrink.0[2 * m + i / 2], tile);
                    }
                }
            }
        }
    }

    fn store_words<'k>(_k: &'k Kernel, lo: Reg<'k, f32>, hi: Reg<'k, f32>) -> Vec<Reg<'k, Bits32>> {
        vec![lo.to_bits(), hi.to_bits()]
    }
}
