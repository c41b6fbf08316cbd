//! f16 and bf16: `mma.sync` m16n8k16, accumulated in place in f32.

use super::element::{Bf16, F16, Half};
use super::lanes::Lanes;
use super::product::{LeftOperand, N8, Output, Product, Scores};
use super::rows::PerRow;
use super::shared::{Fragments, SharedTile};
use crate::ptx::builder::Kernel;
use crate::ptx::types::{Bits32, Reg};

/// Depth of one instruction.
const K16: u32 = 16;

fn scores<'k, E: Half>(k: &'k Kernel, fragments: u32, q: &Fragments<'k, E>, keys: &Fragments<'k, E>) -> Scores<'k> {
    let zero = [k.constant(0.0f32); 4];
    let mut s = vec![vec![zero; (keys.rows() / N8) as usize]; fragments as usize];
    for chunk in (0..q.columns() / K16).map(|step| 2 * step) {
        let a: Vec<_> = (0..fragments).map(|m| q.load(16 * m, chunk, false)).collect();
        for n in (0..keys.rows() / N8).step_by(2) {
            let [b0, b1, b2, b3] = keys.load(n * N8, chunk, false);
            for (s, a) in s.iter_mut().zip(&a) {
                for (s, b) in s[n as usize..].iter_mut().zip([[b0, b1], [b2, b3]]) {
                    *s = k.mma(E::MMA, *a, b, *s);
                }
            }
        }
    }
    Scores(s)
}

fn accumulate<'k, E: Half>(
    k: &'k Kernel,
    o: &Output<'k>,
    shrink: &PerRow<Reg<'k, f32>>,
    p: &[Vec<LeftOperand<'k>>],
    values: &Fragments<'k, E>,
) {
    // The maximum seldom grows after the first tiles. The branch also keeps ptxas from holding P in f32
    // while O is multiplied, which costs more registers than there are.
    k.when(shrink.any_is_not(1.0), || o.scale_rows(shrink));
    for step in 0..values.rows() / K16 {
        let a = p.iter().map(|row| row[step as usize]);
        for n in (0..values.columns() / N8).step_by(2) {
            let [b0, b1, b2, b3] = values.load(step * K16, n, true);
            for (o, a) in o.0.iter().zip(a.clone()) {
                for (o, b) in o[n as usize..].iter().zip([[b0, b1], [b2, b3]]) {
                    k.mma_into(E::MMA, *o, a, b);
                }
            }
        }
    }
}

/// Two accumulator fragments are, packed, one left operand: the lanes hold the same rows and columns.
fn left_operand<'k, E: Half>(k: &'k Kernel, p: &[[Reg<'k, f32>; 4]]) -> [Reg<'k, Bits32>; 4] {
    let pack = |n: usize, i: usize| k.pack(E::MMA, p[n][i], p[n][i + 1]);
    [pack(0, 0), pack(0, 2), pack(1, 0), pack(1, 2)]
}

macro_rules! half_product {
    ($($element:ty),*) => { $(impl Product for $element {
        fn value_fragments<'k>(tile: &SharedTile<'k, Self>, at: Lanes<'k>) -> Fragments<'k, Self> {
            tile.left_fragments(at, None)
        }

        fn scores<'k>(k: &'k Kernel, fragments: u32, q: &Fragments<'k, Self>, keys: &Fragments<'k, Self>) -> Scores<'k> {
            scores(k, fragments, q, keys)
        }

        fn left_operands<'k>(k: &'k Kernel, p: &Scores<'k>) -> Vec<Vec<LeftOperand<'k>>> {
            p.0.iter().map(|row| row.chunks_exact(2).map(|p| left_operand::<Self>(k, p)).collect()).collect()
        }

        fn accumulate<'k>(k: &'k Kernel, o: &Output<'k>, shrink: &PerRow<Reg<'k, f32>>, p: &[Vec<LeftOperand<'k>>], values: &Fragments<'k, Self>) {
            accumulate(k, o, shrink, p, values);
        }

        fn store_words<'k>(k: &'k Kernel, lo: Reg<'k, f32>, hi: Reg<'k, f32>) -> Vec<Reg<'k, Bits32>> {
            vec![k.pack(Self::MMA, lo, hi)]
        }
    })* };
}
half_product!(F16, Bf16);
