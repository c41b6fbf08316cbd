//! The builder that kernels are written with: it records instructions in program order, each with the
//! Rust line that asked for it.
//!
//! Rust's `for` and `if` unroll and select while generating; [`Kernel::each_down`] and [`Kernel::when`]
//! run on the GPU. Placement is program order: the builder never moves an instruction.
//!
//! Uniformity (all lanes of a warp hold the same value) is tracked per register: parameters, block
//! indices, constants and broadcasts are uniform, and so is what is computed from uniform values alone.
//! Loop bounds must be; branches on uniform conditions become uniform branches. A variable is uniform if
//! it was made so, and then takes uniform values only. Where one lane runs alone, everything is uniform.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::panic::Location;

use super::inst::{Inst, Label, Target};
use super::types::{Bits32, Number, Operand, Reg, RegId, Scalar, Src, Ty, Var};
use crate::params::Layout;

/// An instruction, its guard predicate and its origin.
#[derive(Clone, Debug)]
pub struct Stmt {
    pub(super) inst: Inst,
    pub(super) guard: Option<Guard>,
    /// The Rust line that emitted it.
    pub origin: &'static Location<'static>,
}

/// Predicate that an instruction runs under.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    pub(super) predicate: RegId,
    pub(super) negated: bool,
}

#[derive(Clone, Copy)]
pub(super) struct RegInfo {
    pub ty: Ty,
    pub uniform: bool,
    /// A variable whose every value is uniform.
    pub pinned: bool,
}

/// What a kernel promises to its launcher, and asks of the hardware.
#[derive(Clone, Debug)]
pub struct Header {
    /// Entry point.
    pub name: String,
    /// `.target` of the text.
    pub target: Target,
    /// Threads per block, exactly.
    pub threads: u32,
    /// Blocks that must fit on one multiprocessor: what caps the registers.
    pub blocks_per_sm: u32,
    /// Layout of the parameter block.
    pub params: &'static Layout,
}

/// A kernel under construction.
pub struct Kernel {
    pub(super) header: Header,
    pub(super) body: RefCell<Vec<Stmt>>,
    pub(super) regs: RefCell<Vec<RegInfo>>,
    guard: Cell<Option<Guard>>,
    /// How many divergent branches the current place lies behind.
    divergent: Cell<u32>,
    /// Whether a single lane runs here.
    alone: Cell<bool>,
    labels: Cell<u32>,
}

impl Kernel {
    /// An empty kernel.
    pub fn new(header: Header) -> Self {
        Kernel {
            header,
            body: RefCell::default(),
            regs: RefCell::default(),
            guard: Cell::new(None),
            divergent: Cell::new(0),
            alone: Cell::new(false),
            labels: Cell::new(0),
        }
    }

    /// Heads the following instructions with a remark.
    #[track_caller]
    pub fn note(&self, text: &str) {
        self.push(Inst::Note(text.to_owned()));
    }

    /// A fresh register of type `T`.
    pub(super) fn reg<T: Scalar>(&self) -> Reg<'_, T> {
        let mut regs = self.regs.borrow_mut();
        let id = RegId(regs.len() as u32);
        regs.push(RegInfo { ty: T::TY, uniform: false, pinned: false });
        Reg { k: self, id, ty: PhantomData }
    }

    pub(super) fn regs<T: Scalar, const N: usize>(&self) -> [Reg<'_, T>; N] {
        std::array::from_fn(|_| self.reg())
    }

    #[track_caller]
    pub(super) fn push(&self, inst: Inst) {
        let partial = self.guard.get().is_some() || self.divergent.get() > 0;
        assert!(
            !partial || !inst.needs_whole_warp(),
            "{}: {inst:?} needs every lane of the warp, but some may not reach it",
            Location::caller()
        );
        if let Some((d, sources)) = inst.pure_function() {
            let uniform = self.guard.get().is_none() && sources.iter().all(|s| self.is_uniform_src(*s));
            self.regs.borrow_mut()[d.0 as usize].uniform = uniform;
        }
        self.body.borrow_mut().push(Stmt { inst, guard: self.guard.get(), origin: Location::caller() });
    }

    pub(super) fn is_uniform(&self, reg: RegId) -> bool {
        self.alone.get() || self.regs.borrow()[reg.0 as usize].uniform
    }

    fn is_uniform_src(&self, src: Src) -> bool {
        match src {
            Src::Reg(reg) => self.is_uniform(reg),
            Src::Imm(_) => true,
        }
    }

    /// A variable that starts as `value`.
    #[track_caller]
    pub fn var<T: Scalar>(&self, value: impl Into<Operand<T>>) -> Var<'_, T> {
        let reg = self.reg::<T>();
        self.push(Inst::Mov { ty: T::TY, d: reg.id, a: value.into().src });
        self.forget_uniformity(reg.id);
        Var(reg)
    }

    /// A variable of 32 untyped bits.
    #[track_caller]
    pub fn var_bits(&self, bits: u32) -> Var<'_, Bits32> {
        let reg = self.reg::<Bits32>();
        self.push(Inst::Mov { ty: Ty::B32, d: reg.id, a: Src::Imm(u64::from(bits)) });
        Var(reg)
    }

    /// A variable that only ever takes uniform values, in uniform control flow: reading it gives a uniform value.
    #[track_caller]
    pub fn uniform_var<T: Scalar>(&self, value: impl Into<Operand<T>>) -> Var<'_, T> {
        let reg = self.reg::<T>();
        self.regs.borrow_mut()[reg.id.0 as usize] = RegInfo { ty: T::TY, uniform: true, pinned: true };
        Var(reg).set(value);
        Var(reg)
    }

    /// A constant in a register.
    #[track_caller]
    pub fn constant<T: Number>(&self, value: T) -> Reg<'_, T> {
        let reg = self.reg::<T>();
        self.push(Inst::Mov { ty: T::TY, d: reg.id, a: Src::Imm(value.bits()) });
        reg
    }

    /// Runs `body` on the GPU for n = `from` - 1 down to `to`; not at all if `from` <= `to`.
    ///
    /// Both bounds must be uniform: a loop whose lanes disagree would break every warp-wide instruction in it.
    #[track_caller]
    pub fn each_down<'k>(&'k self, what: &'static str, from: Reg<'k, u32>, to: Reg<'k, u32>, body: impl FnOnce(Reg<'k, u32>)) {
        assert!(
            from.is_uniform() && to.is_uniform(),
            "{}: the bounds of loop '{what}' are not uniform across the warp; compute them from uniform values or broadcast them",
            Location::caller()
        );
        let mut n = self.var(from);
        let (head, done) = (self.label(what), self.label(what));
        self.branch(done, from.le(to), false);
        self.place(head);
        n -= 1u32;
        let index = n.get();
        self.mark_uniform(index);
        body(index);
        let more = n.get();
        self.mark_uniform(more);
        self.branch(head, more.gt(to), false);
        self.place(done);
    }

    /// Runs `body` on the GPU in the lanes where `condition` holds. A uniform condition becomes a uniform branch.
    #[track_caller]
    pub fn when(&self, condition: Reg<'_, bool>, body: impl FnOnce()) {
        let skip = self.branch_unless(condition);
        let outside = self.divergent.get();
        self.divergent.set(outside + u32::from(!condition.is_uniform()));
        body();
        self.divergent.set(outside);
        self.place(skip);
    }

    /// Runs `body` on the GPU again and again, until it leaves through its [`Exit`].
    #[track_caller]
    pub fn repeat(&self, what: &'static str, body: impl FnOnce(Exit<'_>)) {
        let (head, done) = (self.label(what), self.label(what));
        self.place(head);
        body(Exit { k: self, to: done });
        self.jump(head);
        self.place(done);
    }

    /// Runs `yes` on the GPU where the uniform `condition` holds, and what is passed to [`Otherwise::otherwise`]
    /// where it does not.
    #[track_caller]
    pub fn either(&self, condition: Reg<'_, bool>, yes: impl FnOnce()) -> Otherwise<'_> {
        assert!(condition.is_uniform(), "{}: the lanes of a warp take the same branch of two", Location::caller());
        let (no, done) = (self.label("otherwise"), self.label("joined"));
        self.branch(no, condition, true);
        yes();
        self.jump(done);
        self.place(no);
        Otherwise { k: self, done }
    }

    /// Predicates each instruction of `body` with `condition` instead of branching around it. For a few
    /// instructions whose results nobody reads where `condition` is false.
    #[track_caller]
    pub fn guarded(&self, condition: Reg<'_, bool>, body: impl FnOnce()) {
        assert!(self.guard.get().is_none(), "{}: guards do not nest", Location::caller());
        self.guard.set(Some(Guard { predicate: condition.id, negated: false }));
        body();
        self.guard.set(None);
    }

    /// Runs `body`, for which it is known that a single lane executes it.
    pub(super) fn alone(&self, body: impl FnOnce()) {
        let outside = self.alone.replace(true);
        body();
        self.alone.set(outside);
    }

    fn mark_uniform<T>(&self, reg: Reg<'_, T>) {
        self.regs.borrow_mut()[reg.id.0 as usize].uniform = true;
    }

    /// A variable's value depends on the path taken to it, so nothing is assumed about it.
    pub(super) fn forget_uniformity(&self, reg: RegId) {
        self.regs.borrow_mut()[reg.0 as usize].uniform = false;
    }

    /// After an assignment to a variable: nothing is known of its value, unless it is a uniform variable. Then the
    /// assignment must have been one of a uniform value, where all lanes pass.
    #[track_caller]
    pub(super) fn assigned(&self, variable: RegId, sources: &[Src]) {
        if !self.regs.borrow()[variable.0 as usize].pinned {
            return self.forget_uniformity(variable);
        }
        let together = self.alone.get() || (self.divergent.get() == 0 && self.guard.get().is_none());
        let uniform = together && sources.iter().all(|s| self.is_uniform_src(*s));
        assert!(uniform, "{}: a uniform variable is assigned a value that may differ between lanes", Location::caller());
        self.regs.borrow_mut()[variable.0 as usize].uniform = true;
    }

    #[track_caller]
    fn label(&self, what: &'static str) -> Label {
        assert!(self.guard.get().is_none(), "{}: a guard covers instructions, not branches", Location::caller());
        let number = self.labels.get();
        self.labels.set(number + 1);
        Label { number, what }
    }

    /// Branches where `condition` does not hold, to where the label will be placed.
    #[track_caller]
    pub(super) fn branch_unless(&self, condition: Reg<'_, bool>) -> Label {
        let skip = self.label("skip");
        self.branch(skip, condition, true);
        skip
    }

    #[track_caller]
    pub(super) fn place(&self, label: Label) {
        self.push(Inst::Label(label));
    }

    #[track_caller]
    pub(super) fn place_label(&self, what: &'static str) -> Label {
        let label = self.label(what);
        self.place(label);
        label
    }

    #[track_caller]
    fn jump(&self, to: Label) {
        self.push(Inst::Bra { to, uniform: true });
    }

    #[track_caller]
    pub(super) fn branch(&self, to: Label, condition: Reg<'_, bool>, negated: bool) {
        self.push_branch(to, condition, negated, condition.is_uniform());
    }

    /// A branch whose condition is known to be the same in all lanes that run it.
    #[track_caller]
    pub(super) fn branch_together(&self, to: Label, condition: Reg<'_, bool>, negated: bool) {
        self.push_branch(to, condition, negated, true);
    }

    #[track_caller]
    fn push_branch(&self, to: Label, condition: Reg<'_, bool>, negated: bool, uniform: bool) {
        self.body.borrow_mut().push(Stmt {
            inst: Inst::Bra { to, uniform },
            guard: Some(Guard { predicate: condition.id, negated }),
            origin: Location::caller(),
        });
    }
}

/// The way out of a [`Kernel::repeat`].
#[derive(Clone, Copy)]
pub struct Exit<'k> {
    k: &'k Kernel,
    to: Label,
}

impl Exit<'_> {
    /// Leaves the loop if the uniform `condition` holds.
    #[track_caller]
    pub fn when(self, condition: Reg<'_, bool>) {
        assert!(condition.is_uniform(), "{}: the lanes of a warp leave a loop together", Location::caller());
        self.k.branch(self.to, condition, false);
    }
}

/// The second half of [`Kernel::either`].
#[must_use = "the branch not taken has to be written too"]
pub struct Otherwise<'k> {
    k: &'k Kernel,
    done: Label,
}

impl Otherwise<'_> {
    /// Runs `no` where the condition does not hold.
    #[track_caller]
    pub fn otherwise(self, no: impl FnOnce()) {
        no();
        self.k.place(self.done);
    }
}
