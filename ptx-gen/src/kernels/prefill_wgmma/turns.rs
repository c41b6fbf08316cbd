//! Turns that the consumer warpgroups take, by named barriers: each waits for its own and then opens the next one's.

use crate::ptx::builder::Kernel;
use crate::ptx::types::Reg;
use crate::ptx::warpgroup::WARPGROUP;

/// A warpgroup's turns at issuing the products of a step. In turn, they leave the tensor cores one after another, and
/// exponentials of one warpgroup run beside products of the other. Without, or with turns at the exponentials, all are in step by
/// chance: 67 against 45 us for a share of 4,096 keys at head_dim 128, 120 against 112 for 32 x 512 tokens under the full mask
/// (H200, 2026-11-30).
#[derive(Clone, Copy)]
pub struct Turns<'k> {
    k: &'k Kernel,
    /// Whether there is more than one warpgroup.
    are_taken: bool,
    mine: Reg<'k, u32>,
    next: Reg<'k, u32>,
}

/// A warpgroup waits, and the one before it arrives.
const THREADS: u32 = 2 * WARPGROUP;

impl<'k> Turns<'k> {
    /// The turns of `warpgroup`, one of `count`. The first one's turn comes first.
    pub fn new(k: &'k Kernel, warpgroup: Reg<'k, u32>, count: u32) -> Self {
        let is_last = (warpgroup + 1).eq(count);
        let next = is_last.select(1u32, warpgroup + 2);
        let turns = Turns { k, are_taken: count > 1, mine: warpgroup + 1, next };
        if turns.are_taken {
            k.when(is_last, || turns.pass());
        }
        turns
    }

    fn wait(&self) {
        self.k.named_barrier_wait(self.mine, THREADS);
    }

    fn pass(&self) {
        self.k.named_barrier_arrive(self.next, THREADS);
    }

    /// Before the products of a step.
    pub fn begin_products(&self) {
        if self.are_taken {
            self.wait();
        }
    }

    /// Behind the products of a step.
    pub fn end_products(&self) {
        if self.are_taken {
            self.pass();
        }
    }

    /// A turn for a step that is passed over: all warpgroups have as many.
    pub fn take_if(&self, passed_over: Option<Reg<'k, bool>>) {
        if let Some(passed_over) = passed_over {
            self.k.when(passed_over, || {
                self.begin_products();
                self.end_products();
            });
        }
    }
}
