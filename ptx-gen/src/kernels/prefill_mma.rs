//! Fused prefill attention on `mma.sync` tensor cores (sm_80 and newer), after FlashAttention-2.
//!
//! The plain algorithm, for each query row:
//! ```text
//! s[j] = scale * q . k[j]      for the keys j that the row sees
//! m    = max_j s[j]
//! p[j] = exp(s[j] - m)
//! o    = sum_j p[j] v[j] / sum_j p[j]
//! lse  = m + log(sum_j p[j])
//! ```
//! What the kernel does differently:
//! 1. A block takes `block_q` rows and walks the keys in tiles of `block_kv`. m and the sum l grow from
//!    tile to tile, and the output so far shrinks by 2^(m_old - m_new) (online softmax).
//! 2. Exponentials are base 2: log2(e) is folded into the scale.
//! 3. Keys run from right to left, so that only the first tiles can meet the causal diagonal or the end
//!    of the keys: they are masked, the rest runs without a comparison.
//! 4. V of a tile travels while its scores are computed, K of the next tile while the softmax runs.
//! 5. l is summed per lane, and over the four lanes that share a row only at the end.
//! 6. Blocks start with the last query rows of all heads, which see the most keys, unless all run at once.
//! 7. With a packed group, a tile row is a (token, query head) pair: K and V are read once per group.

use crate::params;
use crate::ptx::builder::Kernel;
use crate::ptx::inst::Target;
use crate::ptx::types::Reg;
use crate::tile::copy::TileCopy;
use crate::tile::element::{Bf16, F16, F32};
use crate::tile::lanes::Lanes;
use crate::tile::product::{Online, Product};
use crate::tile::shared::{Fragments, SharedTile};
use crate::tile::store::{RowTarget, store_row};
use crate::tile::work::{HeadRows, QueryRows, VisibleKeys};
use crate::variant::{DType, Family, Launch, Tiling, Variant};

/// The family, for the table.
pub static PREFILL_MMA: Family =
    Family { name: "prefill_mma", target: Target::SM_80, params: &params::PREFILL, launch: Launch::Grid, shared_bytes, build };

/// One tile of Q, one of K, one of V.
const fn shared_bytes(t: &Tiling, dtype: DType) -> u32 {
    (t.block_q + 2 * t.block_kv) * (t.head_dim * dtype.bytes() + dtype.row_padding_bytes())
}

/// Fails while the table is compiled if the kernel cannot have this tiling.
pub const fn assert_legal(t: &Tiling, dtype: DType) {
    assert!(t.block_q > 0 && t.block_q.is_multiple_of(16 * t.warps), "a warp owns whole m16 fragments");
    assert!(t.block_kv.is_multiple_of(16), "keys come in pairs of n8 fragments");
    assert!(t.head_dim.is_multiple_of(64), "a row is a whole number of swizzle spans, and of groups of four n8 fragments");
    let copies_per_row = t.head_dim * dtype.bytes() / t.form.copy_bytes();
    assert!(t.threads().is_multiple_of(copies_per_row), "a pass of copies covers whole rows");
    let rows_per_pass = t.threads() / copies_per_row;
    assert!(rows_per_pass <= 2 || rows_per_pass.is_multiple_of(4), "the swizzle of a pass's rows follows from the first by XOR");
    assert!(t.block_q.is_multiple_of(rows_per_pass) && t.block_kv.is_multiple_of(rows_per_pass), "whole passes cover a tile");
    assert!(shared_bytes(t, dtype) <= t.tiles.shared_limit(), "tiles exceed the shared memory of a block");
}

fn build(variant: &Variant, k: &Kernel) {
    match variant.dtype {
        DType::F16 => prefill::<F16>(k, variant),
        DType::Bf16 => prefill::<Bf16>(k, variant),
        DType::F32 => prefill::<F32>(k, variant),
    }
}

fn prefill<E: Product>(k: &Kernel, variant: &Variant) {
    let t = &variant.tiling;
    let at = Lanes::new(k);
    let rows = QueryRows::<E>::of_block(k, variant);
    let keys = VisibleKeys::of_block(k, variant, &rows);
    let sm = SharedTiles::<E>::new(k, t);
    let copy = TileCopy::new(k, at, &sm.q, t.threads(), t.form.copy_bytes());
    let operand = |name, tile| Operand::of_block(k, &rows, &copy, name, tile);
    let (keys_in, values_in) = (operand("k", sm.k), operand("v", sm.v));

    k.note("Q, and K of the last tile");
    let tensor_q = rows.tensor(k, "q");
    copy.rows(&sm.q, |r| {
        let row = rows.in_tile(r);
        (rows.start_of(row, &tensor_q), rows.exists(row))
    });
    k.when(keys.tiles.gt(0u32), || {
        let last = keys.tiles - 1;
        keys_in.fetch(last, Some(keys.existing_from(last)));
    });
    k.commit_copies();

    let state = Online::start(k, t.fragments_per_warp(), t.head_dim);
    let step = Step {
        k,
        t,
        keys: &keys,
        keys_in: &keys_in,
        values_in: &values_in,
        q: sm.q.left_fragments(at, Some(rows.first_of_warp(t, at))),
        k_rows: sm.k.right_fragments(at),
        v_rows: E::value_fragments(&sm.v, at),
        at,
        rows: &rows,
        scale_log2: k.param("scale_log2"),
    };
    k.each_down("masked tile", keys.tiles, keys.whole_tiles, |n| step.absorb(n, true, &state));
    k.each_down("whole tile", keys.whole_tiles, k.constant(0), |n| step.absorb(n, false, &state));
    finish::<E>(k, variant, &state);
}

/// The tiles of a block in shared memory.
struct SharedTiles<'k, E> {
    q: SharedTile<'k, E>,
    k: SharedTile<'k, E>,
    v: SharedTile<'k, E>,
}

impl<'k, E: Product> SharedTiles<'k, E> {
    fn new(k: &'k Kernel, t: &Tiling) -> Self {
        let q = SharedTile::first(k, t.block_q, t.head_dim);
        let keys = q.followed_by(t.block_kv);
        SharedTiles { q, k: keys, v: keys.followed_by(t.block_kv) }
    }
}

/// K or V in global memory, and the way into its tile.
struct Operand<'a, 'k, E> {
    head: HeadRows<'k, E>,
    copy: &'a TileCopy<'k, E>,
    tile: SharedTile<'k, E>,
}

impl<'a, 'k, E: Product> Operand<'a, 'k, E> {
    fn of_block(k: &'k Kernel, rows: &QueryRows<'k, E>, copy: &'a TileCopy<'k, E>, name: &str, tile: SharedTile<'k, E>) -> Self {
        Operand { head: HeadRows::new(k, name, rows.batch, rows.kv_head), copy, tile }
    }

    /// Starts to copy tile `n`. With `existing`, only so many of its rows exist; the rest becomes zero.
    fn fetch(&self, n: Reg<'k, u32>, existing: Option<Reg<'k, i32>>) {
        let rows = (self.head.start, self.head.seq_stride);
        self.copy.strided_rows(&self.tile, rows, n * self.tile.rows, existing);
    }
}

/// What a step over one tile of keys needs, besides the rows' state.
struct Step<'a, 'k, E> {
    k: &'k Kernel,
    t: &'a Tiling,
    keys: &'a VisibleKeys<'k>,
    keys_in: &'a Operand<'a, 'k, E>,
    values_in: &'a Operand<'a, 'k, E>,
    q: Fragments<'k, E>,
    k_rows: Fragments<'k, E>,
    v_rows: Fragments<'k, E>,
    at: Lanes<'k>,
    rows: &'a QueryRows<'k, E>,
    scale_log2: Reg<'k, f32>,
}

impl<'k, E: Product> Step<'_, 'k, E> {
    /// Folds key tile `n` into (m, l, O): FlashAttention-2's inner step.
    fn absorb(&self, n: Reg<'k, u32>, masked: bool, state: &Online<'k>) {
        let Step { k, t, keys, .. } = *self;
        k.note("K(n) is here, and nobody reads V(n + 1) any more: V(n) travels during S");
        k.await_copies(0);
        k.block_barrier();
        self.values_in.fetch(n, masked.then(|| keys.existing_from(n)));
        k.commit_copies();

        k.note("S = Q K^T");
        let mut s = E::scores(k, t.fragments_per_warp(), &self.q, &self.k_rows);
        if masked {
            let first_column = keys.first_of(n) + (self.at.in_quad << 1).to_i32();
            let seen = keys.seen_by_lane(self.rows, &self.rows.of_lane(t, self.at));
            s = s.mask_beyond(&seen.map(|seen| seen - first_column));
        }

        k.note("V(n) is here, and nobody reads K(n) any more: K(n - 1) travels during the softmax");
        k.await_copies(0);
        k.block_barrier();
        k.when(n.gt(0u32), || self.keys_in.fetch(n - 1, None));
        k.commit_copies();

        k.note("m grows to cover this tile");
        let old = state.m.get();
        let new = old.max(&(&s.row_max() * self.scale_log2));
        let m = if masked { new.zero_if_unseen() } else { new.clone() };
        let shrink = (&old - &m).exp2();
        state.m.set(&new);

        k.note("P = 2^(scale S - m)");
        let p = s.weights(self.scale_log2, &m);
        state.l.scale(&shrink);
        state.l.add(&p.lane_sum());

        k.note("O = shrink O + P V");
        E::accumulate(k, &state.o, &shrink, &E::left_operands(k, &p), &self.v_rows);
    }
}

/// O / l and the log-sum-exp, stored.
///
/// Indices are computed anew: carried through the loops they would cost registers there.
fn finish<'k, E: Product>(k: &'k Kernel, variant: &Variant, state: &Online<'k>) {
    let t = &variant.tiling;
    let at = Lanes::new(k);
    let rows = QueryRows::<E>::of_block(k, variant);
    let tensor_o = rows.tensor(k, "o");
    k.await_copies(0);
    k.note("O / l; a row that saw no key gives 0");
    let l = state.l.get().sum_over_quad();
    state.o.scale_rows(&l.map(|l| l.eq(0.0f32).select(0.0f32, l.recip())));
    k.note("lse = (m + log2 l) * ln 2, -inf for a row that saw no key");
    let lse = state.m.get().zip(&l, |m, l| (m + l.log2()) * std::f32::consts::LN_2);
    let stores_lse = at.in_quad.eq(0u32).and(rows.wants_lse(k));
    for (i, r) in rows.of_lane(t, at).0.into_iter().enumerate() {
        let target = RowTarget { start: rows.start_of(r, &tensor_o), exists: rows.exists(r), align_bytes: t.form.copy_bytes() };
        store_row(k, at, &target, &state.o.row(i));
        k.when(stores_lse.and(target.exists), || rows.lse_row(k, r).store(&[lse.0[i]], 0));
    }
}
