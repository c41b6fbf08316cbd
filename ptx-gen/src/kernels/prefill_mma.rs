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
//! 6. Blocks start with the last query rows of all heads, which see the most keys.
//! 7. With a packed group, a tile row is a (token, query head) pair: K and V are read once per group.

use crate::params;
use crate::ptx::builder::{Header, Kernel};
use crate::ptx::types::Reg;
use crate::tile::copy::TileCopy;
use crate::tile::element::{Bf16, F16, F32};
use crate::tile::lanes::Lanes;
use crate::tile::product::{Online, Product, Shrink};
use crate::tile::shared::{Fragments, SharedTile};
use crate::tile::store::{RowTarget, store_row};
use crate::tile::work::{HeadRows, QueryRows, VisibleKeys};
use crate::variant::{DType, Tiling, Variant};

/// Builds a variant's kernel.
pub fn build(variant: &Variant) -> Kernel {
    let tiling = &variant.tiling;
    let kernel = Kernel::new(Header {
        name: variant.name(),
        target: variant.target(),
        threads: tiling.threads(),
        blocks_per_sm: tiling.blocks_per_sm,
        params: &params::PREFILL,
    });
    match variant.dtype {
        DType::F16 => prefill::<F16>(&kernel, variant),
        DType::Bf16 => prefill::<Bf16>(&kernel, variant),
        DType::F32 => prefill::<F32>(&kernel, variant),
    }
    kernel
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

    let mut online = Online::start(k, t.fragments_per_warp(), t.head_dim);
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
    k.each_down("masked tile", keys.tiles, keys.whole_tiles, |n| step.absorb(n, true, &mut online));
    k.each_down("whole tile", keys.whole_tiles, k.constant(0), |n| step.absorb(n, false, &mut online));
    finish::<E>(k, variant, &online);
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
    fn absorb(&self, n: Reg<'k, u32>, masked: bool, row: &mut Online<'k>) {
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
        let old = row.m.get();
        let new = old.max(&(&s.row_max() * self.scale_log2));
        let m = if masked { new.zero_if_unseen() } else { new.clone() };
        let shrink = Shrink { factor: (&old - &m).exp2(), any: new.differs_in_any_lane(&old) };
        row.m.set(&new);

        k.note("P = 2^(scale S - m)");
        let p = s.weights(self.scale_log2, &m);
        row.l.scale(&shrink.factor);
        row.l.add(&p.lane_sum());

        k.note("O = shrink O + P V");
        E::accumulate(k, &row.o, &shrink, &E::left_operands(k, &p), &self.v_rows);
    }
}

/// O / l and the log-sum-exp, stored.
///
/// Indices are computed anew: carried through the loops they would cost registers there.
fn finish<'k, E: Product>(k: &'k Kernel, variant: &Variant, row: &Online<'k>) {
    let t = &variant.tiling;
    let at = Lanes::new(k);
    let rows = QueryRows::<E>::of_block(k, variant);
    let tensor_o = rows.tensor(k, "o");
    k.await_copies(0);
    k.note("O / l; a row that saw no key gives 0");
    let l = row.l.get().sum_over_quad();
    row.o.scale_rows(&l.map(|l| l.eq(0.0f32).select(0.0f32, l.recip())));
    k.note("lse = (m + log2 l) * ln 2, -inf for a row that saw no key");
    let lse = row.m.get().zip(&l, |m, l| (m + l.log2()) * std::f32::consts::LN_2);
    let stores_lse = at.in_quad.eq(0u32).and(rows.wants_lse(k));
    for (i, r) in rows.of_lane(t, at).0.into_iter().enumerate() {
        let pairs: Vec<_> = row.o.0[i / 2].iter().map(|f| [f[2 * (i % 2)].get(), f[2 * (i % 2) + 1].get()]).collect();
        let target = RowTarget { start: rows.start_of(r, &tensor_o), exists: rows.exists(r), align_bytes: t.form.copy_bytes() };
        store_row(k, at, &target, &pairs);
        k.when(stores_lse.and(target.exists), || rows.lse_row(k, r).store(&[lse.0[i]], 0));
    }
}
