//! Stores of accumulator rows to global memory.

use super::lanes::Lanes;
use super::product::Product;
use crate::ptx::builder::Kernel;
use crate::ptx::types::{Bits32, Element, Global, Ptr, Reg};

/// Stores one row of accumulator fragments: `pairs[n]` are the lane's two values of fragment n, whose
/// columns are 8n + 2 * in_quad and the next.
pub fn store_row<'k, E: Product>(k: &'k Kernel, at: Lanes<'k>, row: &RowTarget<'k, E>, pairs: &[[Reg<'k, f32>; 2]]) {
    let words: Vec<_> = pairs.iter().map(|[lo, hi]| E::store_words(k, *lo, *hi)).collect();
    if E::BYTES == 2 && row.align_bytes == 16 {
        return store_transposed(k, at, row, &words.concat());
    }
    let lane_row = row.start.byte_offset((at.in_quad * (2 * E::BYTES)).to_u64());
    k.guarded(row.exists, || {
        for (n, words) in (0u32..).zip(&words) {
            // A lane's two values, side by side: whole if the row's alignment allows it.
            let at_once = if row.align_bytes == 16 { words.len() } else { 1 };
            for (i, part) in (0u32..).zip(words.chunks(at_once)) {
                lane_row.store(part, n * 8 * E::BYTES + 4 * i);
            }
        }
    });
}

/// Where a row is stored.
pub struct RowTarget<'k, E> {
    /// The row's first element.
    pub start: Ptr<'k, Global, E>,
    /// Whether there is such a row; nothing is stored otherwise.
    pub exists: Reg<'k, bool>,
    /// Alignment of `start` in bytes.
    pub align_bytes: u32,
}

/// Four lanes exchange words so that each stores 16 bytes: lane j of a quad collects fragment j of four.
fn store_transposed<'k, E: Element>(k: &'k Kernel, at: Lanes<'k>, row: &RowTarget<'k, E>, words: &[Reg<'k, Bits32>]) {
    let lane_row = row.start.byte_offset((at.in_quad * 16).to_u64());
    let (odd, upper) = ((at.in_quad & 1).eq(1u32), at.in_quad.gt(1u32));
    for (group, words) in (0u32..).zip(words.chunks_exact(4)) {
        let [a, b] = [swap_halves(odd, 1, [words[0]], [words[1]]), swap_halves(odd, 1, [words[2]], [words[3]])];
        let ([w0, w1], [w2, w3]) = swap_halves(upper, 2, [a.0[0], a.1[0]], [b.0[0], b.1[0]]);
        k.guarded(row.exists, || lane_row.store(&[w0, w1, w2, w3], 64 * group));
    }
}

/// Lanes where `second` is false keep `x` and take the partner's `x` for `y`; the others keep `y` and
/// take the partner's `y` for `x`. The partner is the lane that differs in `lane_mask`.
fn swap_halves<'k, const N: usize>(
    second: Reg<'k, bool>,
    lane_mask: u32,
    x: [Reg<'k, Bits32>; N],
    y: [Reg<'k, Bits32>; N],
) -> ([Reg<'k, Bits32>; N], [Reg<'k, Bits32>; N]) {
    let received: [_; N] = std::array::from_fn(|i| {
        let sent: Reg<'k, Bits32> = second.select(x[i], y[i]);
        sent.reinterpret::<u32>().shuffle_xor(lane_mask).reinterpret::<Bits32>()
    });
    (std::array::from_fn(|i| second.select(received[i], x[i])), std::array::from_fn(|i| second.select(y[i], received[i])))
}
