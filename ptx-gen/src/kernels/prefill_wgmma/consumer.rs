//! A consumer warpgroup: 64 query rows of each tile of the stream, keys from right to left.

use super::input::{Input, rebuild_scores};
use super::output::Output;
use super::part::{HALF, Part};
use super::share::Shares;
use super::turns::Turns;
use super::{Block, WARP_ROWS, WARPGROUP_ROWS, WARPS, consumers};
use crate::ptx::builder::Kernel;
use crate::ptx::inst::Special;
use crate::ptx::types::{Reg, Var};
use crate::ptx::warpgroup::{Accumulator, InFlight, WARPGROUP};
use crate::tile::lanes::Lanes;
use crate::tile::operand::Chunk;
use crate::tile::product::{N8, Scores};
use crate::tile::rows::PerRow;
use crate::tile::stream::QueryTile;
use crate::tile::weigh::{REFERENCE_KEYS, Rows, Weight};

/// Consumes the stream.
pub fn run<'k, E: Weight>(block: &Block<'_, 'k>, warpgroup: Reg<'k, u32>) {
    let mut acc = Accumulators { s: Accumulator::unset(block.k, block.t.block_kv), o: Accumulator::unset(block.k, block.t.value_dim) };
    let consumer = Consumer::<E>::new(block, warpgroup);
    match (block.t.form.splits_keys(), block.layout.q.stages) {
        (true, _) => consumer.consume_share(&mut acc),
        (false, 1) => consumer.consume(&mut acc),
        _ => consumer.consume_ahead(&mut acc),
    }
    if block.pair.is_some() {
        block.k.note("Until nothing comes here any more from the other block");
        block.k.cluster_barrier();
    }
}

/// What the products write.
struct Accumulators<'k> {
    s: Accumulator<'k>,
    o: Accumulator<'k>,
}

struct Consumer<'a, 'k, E> {
    k: &'k Kernel,
    block: &'a Block<'a, 'k>,
    /// First row of the warpgroup in a tile, and of the warp in the warpgroup: uniform.
    first_row: Reg<'k, u32>,
    warp_row: Reg<'k, u32>,
    turns: Turns<'k>,
    one_of_warp: Reg<'k, bool>,
    one_of_warpgroup: Reg<'k, bool>,
    q: Input<'k>,
    keys: Input<'k>,
    values: Input<'k>,
    output: Output<'a, 'k>,
    /// Predicates that hold always, and never.
    always: Reg<'k, bool>,
    never: Reg<'k, bool>,
    rows: Rows<'k, E>,
    /// Whether the tile's first product has been added to O: 0 or 1.
    o_has_begun: Var<'k, u32>,
}

impl<'a, 'k, E: Weight> Consumer<'a, 'k, E> {
    fn new(block: &'a Block<'a, 'k>, warpgroup: Reg<'k, u32>) -> Self {
        let Block { k, t, layout, .. } = *block;
        let (thread, zero) = (k.special(Special::TidX), k.constant(0u32));
        let first_row = warpgroup * WARPGROUP_ROWS;
        let warp_row = ((thread >> 5).broadcast() & (WARPS - 1)) * WARP_ROWS;
        let one_of_warp = k.elect();
        Consumer {
            k,
            block,
            first_row,
            warp_row,
            turns: Turns::new(k, warpgroup, consumers(t)),
            one_of_warp,
            one_of_warpgroup: (thread & (WARPGROUP - 1)).eq(0u32),
            q: Input::new(block, layout.q, (t.block_q, t.head_dim), first_row * Chunk::of(t.head_dim).row_bytes()),
            keys: Input::new(block, layout.k, (t.block_kv, t.head_dim), zero),
            values: Input::new(block, layout.v, (t.block_kv, t.value_dim), zero),
            output: Output::new(block, first_row + warp_row, one_of_warp),
            always: thread.eq(thread),
            never: thread.ne(thread),
            rows: Rows::new(k, t.block_kv),
            o_has_begun: k.uniform_var(0u32),
        }
    }

    fn block_kv(&self) -> u32 {
        self.block.t.block_kv
    }

    fn part(&self, tile: QueryTile<Reg<'k, u32>>) -> Part<'a, 'k> {
        Part::new(self.block, tile, self.first_row)
    }

    /// This block's share of its cluster's tile, then its slices of what all blocks of the cluster found.
    fn consume_share(&self, acc: &mut Accumulators<'k>) {
        let k = self.k;
        let (tile, before) = self.block.order.share(self.await_tile());
        self.keys.stage.await_full();
        self.issue_scores(&mut acc.s, self.block_kv()).await_leaving(0);
        self.walk(acc, self.part(tile).of_share(before), k.constant(0));
        self.values.stage.await_full();
        let o = self.issue_output(&mut acc.o, self.block_kv()).await_leaving(0);
        k.note("To the other blocks of the cluster, and what they found");
        let shares = Shares::new(self.block, self.first_row + self.warp_row);
        k.await_cluster();
        shares.send(&self.rows, o);
        k.cluster_barrier();
        shares.merge::<E>(&self.output, &tile);
        self.output.finish();
    }

    /// With one buffer for Q: one tile after another.
    fn consume(&self, acc: &mut Accumulators<'k>) {
        self.k.repeat("tile", |stream| {
            let tile = self.await_tile();
            stream.when(tile.blocks.eq(0u32));
            let mut part = self.part(tile);
            if self.block.passes_over_first() {
                part = part.without_unseen_block();
                self.when_passed_over(&part, &self.keys, self.one_of_warp);
                self.turns.take_if(part.passed_over);
            }
            self.keys.stage.await_full();
            self.issue_scores(&mut acc.s, self.block_kv()).await_leaving(0);
            self.walk(acc, part, self.takes_half(tile));
            self.q.release(self.one_of_warp);
            self.values.stage.await_full();
            let o = self.issue_output(&mut acc.o, self.block_kv()).await_leaving(0);
            self.values.release(self.one_of_warpgroup);
            self.write(&tile, o);
        });
        self.output.finish();
    }

    /// Hands back unread what belongs to a block that is passed over. Where one thread does it for the warpgroup, only its
    /// warp waits: nothing holds the warps together here, and for one that looked late the stage could have come round, full
    /// with the same parity as before.
    fn hand_back_unread(&self, input: &Input<'k>, by: Reg<'k, bool>) {
        self.k.when(by.in_any_lane(), || input.stage.await_full());
        input.release(by);
    }

    /// Hands back what belongs to the first block if it was passed over.
    fn when_passed_over(&self, part: &Part<'a, 'k>, input: &Input<'k>, by: Reg<'k, bool>) {
        if let Some(passed_over) = part.passed_over {
            self.k.when(passed_over, || self.hand_back_unread(input, by));
        }
    }

    /// The tile without the blocks of which the rows see nothing, handed back unread.
    fn pass_over_unseen(&self, tile: QueryTile<Reg<'k, u32>>) -> QueryTile<Reg<'k, u32>> {
        if !self.block.passes_over_many() {
            return tile;
        }
        let unseen = self.part(tile).unseen_blocks();
        self.pass_over(unseen);
        self.part(tile).without(unseen).tile
    }

    /// Hands back unread the keys and values of `unseen` blocks, and takes the turns of their steps.
    fn pass_over(&self, unseen: Reg<'k, u32>) {
        let k = self.k;
        k.each_down("unseen block", unseen, k.constant(0), |_| {
            self.hand_back_unread(&self.keys, self.one_of_warp);
            self.hand_back_unread(&self.values, self.one_of_warpgroup);
            self.turns.begin_products();
            self.turns.end_products();
        });
    }

    /// With two buffers for Q: the output of a tile is written while the next one's first scores are computed.
    fn consume_ahead(&self, acc: &mut Accumulators<'k>) {
        let k = self.k;
        let first = self.pass_over_unseen(self.await_tile());
        let tile = first.map(|value| k.uniform_var(value));
        let half = k.uniform_var(self.takes_half(first));
        self.keys.stage.await_full();
        k.note("S of the first block of the first tile, whole even where half of it is wanted");
        self.issue_scores(&mut acc.s, self.block_kv()).await_leaving(0);
        k.repeat("tile", |stream| {
            self.walk(acc, self.part(tile.get()), half.get());
            self.q.release(self.one_of_warp);
            let mut next = self.await_tile();
            stream.when(next.blocks.eq(0u32));
            let unseen = self.block.passes_over_many().then(|| self.part(next).unseen_blocks());
            if let Some(unseen) = unseen {
                next = self.part(next).without(unseen).tile;
            }
            half.set(self.takes_half(next));
            self.values.stage.await_full();
            let change = |acc: &mut Accumulators<'k>| {
                self.keys.stage.await_full();
                self.half_or_whole(half.get(), |keys| self.change_tile(acc, &tile.get(), keys));
            };
            match unseen {
                None => change(acc),
                Some(unseen) => {
                    k.either(unseen.ne(0u32), || self.end_tile_then_pass_over(acc, &tile.get(), unseen)).otherwise(|| change(acc));
                }
            }
            tile.set(&next);
        });
        k.note("The last product of the last tile");
        self.values.stage.await_full();
        self.turns.begin_products();
        let o = self.issue_output(&mut acc.o, self.block_kv());
        self.turns.end_products();
        self.write(&tile.get(), o.await_leaving(0));
        self.output.finish();
    }

    /// Waits for the next tile of the stream.
    fn await_tile(&self) -> QueryTile<Reg<'k, u32>> {
        self.q.stage.await_full();
        self.block.notes.read(self.q.stage.index())
    }

    /// 1 if the warpgroup takes half of the tile's first block, else 0.
    fn takes_half(&self, tile: QueryTile<Reg<'k, u32>>) -> Reg<'k, u32> {
        self.part(tile).takes_half().select(1u32, 0u32)
    }

    /// Writes `body` for half a first block and for a whole one, apart: no product may be in flight where paths join.
    fn half_or_whole(&self, half: Reg<'k, u32>, mut body: impl FnMut(u32)) {
        if self.block.takes_halves() {
            self.k.either(half.ne(0u32), || body(HALF)).otherwise(|| body(self.block_kv()));
        } else {
            body(self.block_kv());
        }
    }

    /// All blocks of a tile, but for the product with the last one's values. S of the first block is there.
    fn walk(&self, acc: &mut Accumulators<'k>, part: Part<'a, 'k>, half: Reg<'k, u32>) {
        let k = self.k;
        let rest = part.tile.blocks - 1;
        // Carried from block to block they cost registers, which three warpgroups are short of.
        let seen = (consumers(self.block.t) < 3).then(|| self.seen(&part));
        let whole = k.uniform_var(part.whole_blocks());
        self.o_has_begun.set(0u32);
        self.half_or_whole(half, |keys| {
            self.first_block(acc, &part, keys, &self.visible(&part, seen.as_ref(), rest));
            self.when_passed_over(&part, &self.values, self.one_of_warpgroup);
            if keys < self.block_kv() {
                k.either(rest.eq(0u32), || self.rows.clear_from(keys)).otherwise(|| {
                    self.step(acc, None, keys);
                    whole.set(rest - 1);
                });
            } else if self.block.is_causal() {
                k.each_down("masked block", rest, whole.get(), |n| self.step(acc, Some(&self.visible(&part, seen.as_ref(), n)), keys));
            }
        });
        k.each_down("whole block", whole.get(), k.constant(0), |_| self.step(acc, None, self.block_kv()));
    }

    /// How many keys of block `n` each of the lane's rows sees, less the lane's first column.
    fn visible(&self, part: &Part<'a, 'k>, seen: Option<&PerRow<Reg<'k, i32>>>, n: Reg<'k, u32>) -> PerRow<Reg<'k, i32>> {
        let before = part.first_key(n);
        let of_block = |seen: &PerRow<Reg<'k, i32>>| seen.map(|seen| seen - before);
        seen.map_or_else(|| of_block(&self.seen(part)), of_block)
    }

    /// How many keys each of the lane's rows sees, less the lane's first column.
    fn seen(&self, part: &Part<'a, 'k>) -> PerRow<Reg<'k, i32>> {
        let at = Lanes::new(self.k);
        part.seen(self.warp_row + at.quad, at.in_quad << 1)
    }

    /// Weighs a tile's first block, of which the warpgroup takes `keys` keys.
    fn first_block(&self, acc: &mut Accumulators<'k>, part: &Part<'a, 'k>, keys: u32, visible: &PerRow<Reg<'k, i32>>) {
        let k = self.k;
        k.note("The first block: S is there");
        let scores = Scores::of(&acc.s, keys);
        // `visible` counts from the lane's first column, this from the block's.
        let column = (Lanes::new(k).in_quad << 1).to_i32();
        let in_block = visible.map(|visible| visible + column);
        let simple = |masked_from: u32| {
            let scores = if masked_from < keys { scores.mask_beyond_from(masked_from, visible) } else { scores.clone() };
            self.rows.start(&scores, (masked_from < REFERENCE_KEYS).then_some(&in_block));
            self.weigh(&acc.s, &scores, None, Some(visible));
        };
        if keys < self.block_kv() {
            simple(0);
        } else {
            // The diagonal cuts the last 64 columns only, and every row sees the first one.
            let masked_from = if self.block.is_causal() { keys - HALF } else { keys };
            k.either(part.takes_whole(), || simple(masked_from)).otherwise(|| {
                self.rows.start_masked(&scores.mask_beyond(visible), &in_block);
            });
        }
        self.keys.release(self.one_of_warp);
    }

    /// S of a block and O += P V of the block before, of `values` keys, together; then the block's weights. `visible`
    /// masks it.
    fn step(&self, acc: &mut Accumulators<'k>, visible: Option<&PerRow<Reg<'k, i32>>>, values: u32) {
        let k = self.k;
        k.note("S = Q K^T, and O += P V of the block before");
        self.keys.stage.await_full();
        self.turns.begin_products();
        let s = self.issue_scores(&mut acc.s, self.block_kv());
        self.values.stage.await_full();
        let o = self.issue_output(&mut acc.o, values);
        self.turns.end_products();
        self.o_has_begun.set(1u32);
        let s = s.await_leaving(1);
        k.note("P = 2^(scale S - m)");
        if visible.is_some() {
            self.keys.release(self.one_of_warp);
        }
        let scores = Scores::of(s, self.block_kv());
        match visible {
            None => {
                self.weigh(s, &scores, Some(o), None);
                self.keys.release(self.one_of_warp);
            }
            Some(visible) => {
                // Such blocks are few: nothing runs beside their softmax.
                let o = self.settle(o);
                self.rows.take_masked(&scores.mask_beyond(visible), o);
            }
        }
    }

    /// Waits for O, and hands V back.
    fn settle<'o>(&self, o: InFlight<'o, 'k>) -> &'o mut Accumulator<'k> {
        let o = o.await_leaving(0);
        self.values.release(self.one_of_warpgroup);
        o
    }

    /// Weighs a block against the reference, which moves if it must; `o` is in flight meanwhile.
    fn weigh(&self, s: &Accumulator<'k>, scores: &Scores<'k>, o: Option<InFlight<'_, 'k>>, visible: Option<&PerRow<Reg<'k, i32>>>) {
        let k = self.k;
        let p = self.rows.weights(scores);
        p.put(s);
        let o = o.map(|o| &*self.settle(o));
        if o.is_some() {
            self.rows.take(&p);
        } else {
            self.rows.take_exactly(&p);
        }
        k.when(self.rows.have_grown(), || {
            k.note("Rare: the reference moves");
            let keys = scores.0[0].len() as u32 * N8;
            self.rows.move_reference(&p, o, || {
                let scores = rebuild_scores::<E>(self.block, self.first_row + self.warp_row, &self.q, &self.keys, keys);
                visible.map_or(scores.clone(), |visible| scores.mask_beyond(visible))
            });
            k.warp_barrier();
        });
        self.rows.add_block();
    }

    fn issue_scores<'o>(&self, s: &'o mut Accumulator<'k>, keys: u32) -> InFlight<'o, 'k> {
        let (q, current) = (self.q.current(), self.keys.current());
        self.k.issue(s, |m| q.mul_t::<E>(&m.columns(keys), &current, self.never, self.always))
    }

    fn issue_output<'o>(&self, o: &'o mut Accumulator<'k>, keys: u32) -> InFlight<'o, 'k> {
        let (values, begun) = (self.values.current(), self.o_has_begun.get().ne(0u32));
        self.k.issue(o, |m| values.weighted_sum::<E>(m, self.rows.p(keys), begun, self.always))
    }

    /// The last product of `tile` and S of the next tile's first block together; the output is written under the latter.
    fn change_tile(&self, acc: &mut Accumulators<'k>, tile: &QueryTile<Reg<'k, u32>>, keys: u32) {
        self.turns.begin_products();
        let o = self.issue_output(&mut acc.o, self.block_kv());
        let s = self.issue_scores(&mut acc.s, keys);
        self.turns.end_products();
        let o = o.await_leaving(1);
        self.values.release(self.one_of_warpgroup);
        self.write(tile, o);
        s.await_leaving(0);
    }

    /// The last product of `tile`, then S of the first block of the next tile of which the rows see something.
    fn end_tile_then_pass_over(&self, acc: &mut Accumulators<'k>, tile: &QueryTile<Reg<'k, u32>>, unseen: Reg<'k, u32>) {
        self.turns.begin_products();
        let o = self.issue_output(&mut acc.o, self.block_kv());
        self.turns.end_products();
        let o = o.await_leaving(0);
        self.values.release(self.one_of_warpgroup);
        self.write(tile, o);
        self.pass_over(unseen);
        self.keys.stage.await_full();
        self.issue_scores(&mut acc.s, self.block_kv()).await_leaving(0);
    }

    fn write(&self, tile: &QueryTile<Reg<'k, u32>>, o: &Accumulator<'k>) {
        let (factor, lse) = self.rows.finish();
        self.output.write::<E>(tile, o, &factor, &lse);
    }
}
