//! What the blocks of a GPU share: tables of the module, and words that they change under each other's eyes.

use super::builder::Kernel;
use super::inst::{Atomic, Inst, Order, Special};
use super::types::{Element, Global, Operand, Ptr, Reg, Scalar, Src};

impl Kernel {
    /// Address of the module's table `name`: `words` 64-bit words, zeros when the module is loaded.
    #[track_caller]
    pub fn module_table(&self, name: &'static str, words: u32) -> Reg<'_, u64> {
        let d = self.reg();
        self.push(Inst::ModuleTable { d: d.id, name, words });
        d
    }

    /// A number that no other grid alive in the context has.
    #[track_caller]
    pub fn grid_id(&self) -> Reg<'_, u64> {
        let d = self.reg();
        self.push(Inst::ReadSpecial { d: d.id, from: Special::GridId });
        d
    }

    /// Rests for about `ns` nanoseconds.
    #[track_caller]
    pub fn sleep_ns(&self, ns: u32) {
        self.push(Inst::Nanosleep { ns });
    }
}

impl<'k, E: Element> Ptr<'k, Global, E> {
    #[track_caller]
    fn atomic<T: Scalar>(self, op: Atomic, order: Order, operands: Vec<Src>) -> Reg<'k, T> {
        let d = self.addr.k.reg();
        self.addr.k.push(Inst::Atomic { op, order, d: d.id, addr: self.addr.id, operands });
        d
    }

    /// Adds to the word; what it was before.
    #[track_caller]
    pub fn atomic_add(self, term: impl Into<Operand<u64>>) -> Reg<'k, u64> {
        self.atomic(Atomic::Add, Order::Relaxed, vec![term.into().src])
    }

    /// Adds to the word's lower half, which does not overflow; what that was before.
    #[track_caller]
    pub fn atomic_add_low(self, term: impl Into<Operand<u32>>) -> Reg<'k, u32> {
        self.atomic(Atomic::AddLow, Order::Relaxed, vec![term.into().src])
    }

    /// Puts `new` where the word is `expected`; what it was before.
    #[track_caller]
    pub fn compare_swap(self, order: Order, expected: impl Into<Operand<u64>>, new: impl Into<Operand<u64>>) -> Reg<'k, u64> {
        self.atomic(Atomic::CompareSwap, order, vec![expected.into().src, new.into().src])
    }

    /// Loads a word that other blocks change.
    #[track_caller]
    pub fn load_strong(self) -> Reg<'k, u64> {
        let d = self.addr.k.reg();
        self.addr.k.push(Inst::LdStrong { d: d.id, addr: self.addr.id });
        d
    }

    /// Stores a word that other blocks read.
    #[track_caller]
    pub fn store_strong(self, order: Order, value: impl Into<Operand<u64>>) {
        self.addr.k.push(Inst::StStrong { order, addr: self.addr.id, v: value.into().src });
    }
}
