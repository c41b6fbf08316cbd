//! Turns that the consumer warpgroups take, by named barriers: each waits for its own and then opens the next one's.

use crate::ptx::builder::Kernel;
use crate::ptx::types::Reg;
use crate::ptx::warpgroup::WARPGROUP;

/// What is done in turn.
#[derive(Clone, Copy, PartialEq)]
pub enum Order {
    /// Nothing.
    Free,
    /// Starting the exponentials of a block. Two warpgroups alternate, they do not exclude each other.
    Exponentials,
    /// Issuing the products of a step.
    Products,
}

/// A warpgroup's turns.
#[derive(Clone, Copy)]
pub struct Turns<'k> {
    k: &'k Kernel,
    order: Order,
    mine: Reg<'k, u32>,
    next: Reg<'k, u32>,
}

/// A warpgroup waits, and the one before it arrives.
const THREADS: u32 = 2 * WARPGROUP;

impl<'k> Turns<'k> {
    /// The turns of `warpgroup`, one of `count`. The first one's turn comes first.
    pub fn new(k: &'k Kernel, order: Order, warpgroup: Reg<'k, u32>, count: u32) -> Self {
        let is_last = (warpgroup + 1).eq(count);
        let next = is_last.select(1u32, warpgroup + 2);
        let turns = Turns { k, order, mine: warpgroup + 1, next };
        if order != Order::Free {
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

    /// Before the exponentials of a block.
    pub fn take_for_exponentials(&self) {
        if self.order == Order::Exponentials {
            self.wait();
            self.pass();
        }
    }

    /// Before the products of a step.
    pub fn begin_products(&self) {
        if self.order == Order::Products {
            self.wait();
        }
    }

    /// Behind the products of a step.
    pub fn end_products(&self) {
        if self.order == Order::Products {
            self.pass();
        }
    }
}
