//! Softmax weights against a fixed reference: the rows of a warp in a warpgroup's accumulators.
//!
//! A block's weights are 2^(scale S - m), where m is *not* the running maximum: it is the maximum over the first 64 columns
//! of the row's first block, a little above for rows that see few of them ([`headroom`]), and moves to the running maximum only
//! if a block's weights grow beyond [`limit`]. Masked blocks are few: there m is the running maximum. Softmax does not depend
//! on m; only range and rounding do:
//! - Weights are f32 with 2^127 of headroom. If they exceed it, the block is computed anew against the right m.
//! - Packed in 16 bits, weights round best just below 1, and 1 itself is exact. That matters where a few keys carry the mass,
//!   and most of those outgrow the limit; among many keys of like weight the errors average out.
//! - l sums the weights *as rounded*, so that a dominant weight cancels in O / l. One that does is the row's largest, in its first
//!   block or where the reference moves: there the sums are exact, elsewhere nearly.

use super::element::{Bf16, F16, Half};
use super::product::{N8, Scores};
use super::rows::{PerRow, vars};
use crate::ptx::builder::Kernel;
use crate::ptx::types::{Bits32, Reg, Var};
use crate::ptx::warpgroup::Accumulator;

/// Sum of a lane's weights of one block of `block_kv` keys that calls for a new reference. A quarter as many weights, none above 1,
/// stay below it whatever the noise in [`Weight::row_sums`]: a row that does not grow moves nothing. Against FlashAttention-3's
/// errors, simulated for 256 to 2,048 keys in blocks of 128, 34 gives 1.04 at most on four equal sinks, and 64 gives 1.12. With
/// scores of standard deviation 1 a warp's rows exceed it in one block of 500 at most; with 2, in one of 6 to 12.
fn limit(block_kv: u32) -> f32 {
    (block_kv / 4 + 2) as f32
}

/// Sum beyond which weights may have overflowed: the block is computed anew.
const OVERFLOW: f32 = (1u128 << 120) as f32;

/// Rows of a lane: g and g + 8 of its warp's 16.
const ROWS: usize = 2;

/// Keys of the first block that the reference is taken from.
pub const REFERENCE_KEYS: u32 = 64;

/// Row of a lane that value `i` of an accumulator belongs to.
pub fn row_of_value(i: usize) -> usize {
    i / 2 % ROWS
}

/// The softmax state of a lane's rows, and the weights of the current block.
pub struct Rows<'k, E> {
    k: &'k Kernel,
    scale_log2: Reg<'k, f32>,
    /// The reference in log2 units, the same in the four lanes of a row. -inf: the row has seen no key.
    m: PerRow<Var<'k, f32>>,
    /// Sum of the weights in this lane's columns, against m.
    l: PerRow<Var<'k, f32>>,
    /// The current block's part of it.
    block: PerRow<Var<'k, f32>>,
    /// The current block's weights, packed: the left operand of O += P V. Word j belongs to row j % 2.
    p: Vec<Var<'k, Bits32>>,
    element: std::marker::PhantomData<E>,
}

impl<'k, E: Weight> Rows<'k, E> {
    /// Rows before their first key, for blocks of `block_kv` keys.
    pub fn new(k: &'k Kernel, block_kv: u32) -> Self {
        let words = || k.var_bits(0);
        Rows {
            k,
            scale_log2: k.param("scale_log2"),
            m: vars(k, ROWS, f32::NEG_INFINITY),
            l: vars(k, ROWS, 0.0),
            block: vars(k, ROWS, 0.0),
            p: (0..block_kv / 4).map(|_| words()).collect(),
            element: std::marker::PhantomData,
        }
    }

    /// The packed weights of the first `keys` keys of the block.
    pub fn p(&self, keys: u32) -> &[Var<'k, Bits32>] {
        &self.p[..keys as usize / 4]
    }

    /// Makes the weights of keys `from` and following zero.
    pub fn clear_from(&self, from: u32) {
        let zero = self.k.constant(0u32).reinterpret::<Bits32>();
        self.p[from as usize / 4..].iter().for_each(|p| p.set(zero));
    }

    /// Starts a tile: the reference comes from the first 64 columns of its first block. `seen`: how many keys of that block
    /// each row sees, wanted where some rows may see few.
    pub fn start(&self, scores: &Scores<'k>, seen: Option<&PerRow<Reg<'k, i32>>>) {
        let largest = &scores.first_fragments((REFERENCE_KEYS / N8) as usize).row_max() * self.scale_log2;
        self.m.set(&self.first_reference(largest, seen));
        self.l.map(|l| l.set(0.0f32));
    }

    /// The reference of rows whose largest scores are `largest`, of `seen` keys.
    fn first_reference(&self, largest: PerRow<Reg<'k, f32>>, seen: Option<&PerRow<Reg<'k, i32>>>) -> PerRow<Reg<'k, f32>> {
        seen.map_or(largest.clone(), |seen| largest.zip(seen, |largest, seen| largest + headroom(seen)))
    }

    /// The weights of a block against the reference.
    pub fn weights(&self, scores: &Scores<'k>) -> Scores<'k> {
        scores.weights(self.scale_log2, &self.m.get())
    }

    /// Makes `p` the current block's weights, without adding them to l.
    pub fn take(&self, p: &Scores<'k>) {
        self.take_with(p, E::row_sums);
    }

    /// The same with exact sums: where one weight may make up a row.
    pub fn take_exactly(&self, p: &Scores<'k>) {
        self.take_with(p, E::exact_row_sums);
    }

    fn take_with(&self, p: &Scores<'k>, row_sums: impl FnOnce(&[Reg<'k, Bits32>]) -> PerRow<Reg<'k, f32>>) {
        let words = pack::<E>(self.k, p);
        self.p.iter().zip(&words).for_each(|(p, word)| p.set(*word));
        self.block.set(&row_sums(&words));
    }

    /// Whether the current block's weights have outgrown the reference in some row of the warp: uniform.
    pub fn have_grown(&self) -> Reg<'k, bool> {
        is_any_above(&self.block.get(), limit(4 * self.p.len() as u32))
    }

    /// Adds the current block to l.
    pub fn add_block(&self) {
        self.l.add(&self.block.get());
    }

    /// Moves the reference of each row to its largest weight if that is above 1, and the current block's weights, l and O
    /// (if it has begun) with it. `p` are the weights before packing; if they overflowed, `rebuild` gives the block's scores
    /// once more.
    pub fn move_reference(&self, p: &Scores<'k>, o: Option<&Accumulator<'k>>, rebuild: impl FnOnce() -> Scores<'k>) {
        let old = self.m.get();
        self.k
            .either(is_any_above(&p.lane_sum(), OVERFLOW), || {
                let scores = rebuild();
                let m = old.max(&(&scores.row_max() * self.scale_log2));
                self.m.set(&m);
                self.shrink(o, &(&old - &m).exp2());
                self.take_exactly(&self.weights(&scores));
            })
            .otherwise(|| {
                // By what p has grown, even where m is so large that it cannot move by that: packed weights must not overflow.
                let growth = p.row_max().map(|largest| largest.max(1.0f32).log2());
                let factor = growth.map(|growth| (self.k.constant(0.0f32) - growth).exp2());
                self.take_exactly(&p.scale_rows(&factor));
                self.m.set(&old.zip(&growth, |m, growth| m + growth));
                self.shrink(o, &factor);
            });
    }

    fn shrink(&self, o: Option<&Accumulator<'k>>, factor: &PerRow<Reg<'k, f32>>) {
        self.l.scale(factor);
        if let Some(o) = o {
            scale_rows(o, factor);
        }
    }

    /// Starts a tile with a block in which some keys are masked (-inf), and takes its weights. The maximum is found exactly; each
    /// row sees `seen` keys of the block.
    pub fn start_masked(&self, scores: &Scores<'k>, seen: &PerRow<Reg<'k, i32>>) {
        let m = self.first_reference(&scores.row_max() * self.scale_log2, Some(seen));
        let p = scores.weights(self.scale_log2, &m.zero_if_unseen());
        self.m.set(&m);
        self.take_exactly(&p);
        self.l.set(&self.block.get());
    }

    /// Takes a block in which some keys are masked (-inf), with the maximum found exactly. `o` is the sum over the blocks
    /// before.
    pub fn take_masked(&self, scores: &Scores<'k>, o: &Accumulator<'k>) {
        let old = self.m.get();
        let m = old.max(&(&scores.row_max() * self.scale_log2));
        let reference = m.zero_if_unseen();
        let p = scores.weights(self.scale_log2, &reference);
        self.m.set(&m);
        self.take_exactly(&p);
        self.shrink(Some(o), &(&old - &reference).exp2());
        self.add_block();
    }

    /// m and l of the lane's rows, l over all columns.
    pub fn m_and_l(&self) -> (PerRow<Reg<'k, f32>>, PerRow<Reg<'k, f32>>) {
        (self.m.get(), self.l.get().sum_over_quad())
    }

    /// 1 / l over all columns, 0 for rows that saw no key, and the log-sum-exp in natural units, -inf for those.
    pub fn finish(&self) -> (PerRow<Reg<'k, f32>>, PerRow<Reg<'k, f32>>) {
        let l = self.l.get().sum_over_quad();
        finish(&self.m.get(), &l)
    }
}

fn finish<'k>(m: &PerRow<Reg<'k, f32>>, l: &PerRow<Reg<'k, f32>>) -> (PerRow<Reg<'k, f32>>, PerRow<Reg<'k, f32>>) {
    let lse = m.zip(l, |m, l| (m + l.log2()) * std::f32::consts::LN_2);
    (l.map(|l| l.eq(0.0f32).select(0.0f32, l.recip())), lse)
}

/// The softmax state of a lane's rows over several shares of their keys.
pub struct Merged<'k> {
    m: PerRow<Var<'k, f32>>,
    /// Over all columns.
    l: PerRow<Var<'k, f32>>,
}

impl<'k> Merged<'k> {
    /// Over no share.
    pub fn new(k: &'k Kernel) -> Self {
        Merged { m: vars(k, ROWS, f32::NEG_INFINITY), l: vars(k, ROWS, 0.0) }
    }

    /// Takes in m and l of a share.
    pub fn add(&self, m: &PerRow<Reg<'k, f32>>, l: &PerRow<Reg<'k, f32>>) {
        let old = self.m.get();
        self.m.set(&old.max(m));
        self.l.scale(&self.weight_of(&old));
        self.l.add(&self.weight_of(m).zip(l, |weight, l| weight * l));
    }

    /// What O of a share is to be multiplied by, whose reference is `m`.
    pub fn weight_of(&self, m: &PerRow<Reg<'k, f32>>) -> PerRow<Reg<'k, f32>> {
        (m - &self.m.get().zero_if_unseen()).exp2()
    }

    /// As [`Rows::finish`].
    pub fn finish(&self) -> (PerRow<Reg<'k, f32>>, PerRow<Reg<'k, f32>>) {
        finish(&self.m.get(), &self.l.get())
    }
}

/// How far above its largest score the reference of a row starts that sees few keys of its first block, in log2 units:
/// log2(64 / seen), rounded up. Its next block may have many more keys, and under the causal mask about one row of a tile would
/// outgrow its reference there. Whole numbers do not change how weights round (of f16, down to 2^-14). A row that sees nothing
/// keeps -inf, whatever this gives.
fn headroom<'k>(seen: Reg<'k, i32>) -> Reg<'k, f32> {
    const REFERENCE_LOG2: i32 = REFERENCE_KEYS.ilog2() as i32;
    let log2 = (seen.to_f32().reinterpret::<u32>() >> 23).to_i32() - 127;
    (seen.kernel().constant(REFERENCE_LOG2) - log2).max(0).min(REFERENCE_LOG2).to_f32()
}

/// Whether some lane's value is above the limit, or NaN: uniform.
fn is_any_above<'k>(values: &PerRow<Reg<'k, f32>>, limit: f32) -> Reg<'k, bool> {
    values.0[0].max_or_nan(values.0[1]).gt_or_nan(limit).in_any_lane()
}

/// Multiplies each row of an accumulator by its factor.
fn scale_rows<'k>(o: &Accumulator<'k>, factor: &PerRow<Reg<'k, f32>>) {
    for (i, value) in o.values().iter().enumerate() {
        let mut value = *value;
        value *= factor.0[row_of_value(i)];
    }
}

/// Packs weights in the order of the accumulators, which is that of the left operand.
fn pack<'k, E: Half>(k: &'k Kernel, p: &Scores<'k>) -> Vec<Reg<'k, Bits32>> {
    p.0[0].iter().flat_map(|f| [k.pack(E::MMA, f[0], f[1]), k.pack(E::MMA, f[2], f[3])]).collect()
}

/// A 16-bit type of weights.
pub trait Weight: Half {
    /// Sums of packed weights, row by row: of the values as rounded, or nearly.
    fn row_sums<'k>(words: &[Reg<'k, Bits32>]) -> PerRow<Reg<'k, f32>>;

    /// The same without error, but for that of adding.
    fn exact_row_sums<'k>(words: &[Reg<'k, Bits32>]) -> PerRow<Reg<'k, f32>> {
        sums_of_halves(words, Self::unpack).map(|[lower, upper]| lower + upper)
    }

    /// The two values of a word.
    fn unpack<'k>(word: Reg<'k, Bits32>) -> [Reg<'k, f32>; 2];
}

/// Sums of the lower and of the upper values of a row's words.
fn sums_of_halves<'k>(words: &[Reg<'k, Bits32>], halves: impl Fn(Reg<'k, Bits32>) -> [Reg<'k, f32>; 2]) -> PerRow<[Reg<'k, f32>; 2]> {
    PerRow::from_fn(ROWS, |row| {
        let pairs = words.iter().skip(row).step_by(ROWS).map(|word| halves(*word));
        pairs.reduce(|sum, pair| [sum[0] + pair[0], sum[1] + pair[1]]).expect("a block has columns")
    })
}

impl Weight for Bf16 {
    /// The lower value of a word is moved up by one shift. The upper one is read as an f32 in place: the lower value is
    /// then noise below its last bit, of 0.24 units on average, 1.35e-3 of the value. One multiplication takes the mean
    /// off. Relative error on peaked scores 1.56e-3, against 1.50e-3 with both unpacked and 2.14e-3 if l summed the weights
    /// before rounding; unpacking costs 1 to 4 % of a kernel's time (head_dim 128; H200, 2026-11).
    fn row_sums<'k>(words: &[Reg<'k, Bits32>]) -> PerRow<Reg<'k, f32>> {
        const NOISE_MEAN: f32 = 1.35e-3;
        let halves = |word: Reg<'k, Bits32>| [(word.reinterpret::<u32>() << 16).reinterpret(), word.reinterpret()];
        sums_of_halves(words, halves).map(|[lower, upper]| upper.mul_add(1.0 - NOISE_MEAN, lower))
    }

    fn unpack<'k>(word: Reg<'k, Bits32>) -> [Reg<'k, f32>; 2] {
        let bits = word.reinterpret::<u32>();
        [bits << 16, bits & 0xffff_0000].map(|bits| bits.reinterpret())
    }
}

impl Weight for F16 {
    fn row_sums<'k>(words: &[Reg<'k, Bits32>]) -> PerRow<Reg<'k, f32>> {
        Self::exact_row_sums(words)
    }

    fn unpack<'k>(word: Reg<'k, Bits32>) -> [Reg<'k, f32>; 2] {
        word.unpack_f16()
    }
}
