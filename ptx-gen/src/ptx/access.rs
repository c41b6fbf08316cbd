//! Special registers, parameters, memory, copies, matrix instructions and barriers: each method records one
//! instruction.

use super::builder::Kernel;
use super::inst::{Inst, MmaType, Special};
use super::types::{Bits32, Element, Global, Number, Ptr, Reg, RegId, Scalar, Shared, Space, Var};
use crate::params::FieldType;

impl Kernel {
    /// A special register.
    #[track_caller]
    pub fn special(&self, from: Special) -> Reg<'_, u32> {
        let d = self.reg();
        self.push(Inst::ReadSpecial { d: d.id, from });
        d
    }

    /// A field of the kernel's parameter block, by its name in `params.rs`.
    #[track_caller]
    pub fn param<T: Number>(&self, field: &str) -> Reg<'_, T> {
        let (offset, ty) = self.header.params.field(field);
        assert_eq!(ty, FieldType::Scalar(T::TY), "parameter {field}");
        let d = self.reg();
        self.push(Inst::LdParam { ty: T::TY, d: d.id, offset });
        d
    }

    /// Start of the block's dynamic shared memory, aligned to 1024 bytes.
    #[track_caller]
    pub fn shared_base(&self) -> Reg<'_, u32> {
        let d = self.reg();
        self.push(Inst::SharedBase { d: d.id });
        d
    }

    /// Waits for every thread of the block.
    #[track_caller]
    pub fn block_barrier(&self) {
        self.push(Inst::BarSync);
    }

    /// Closes a group of asynchronous copies.
    #[track_caller]
    pub fn commit_copies(&self) {
        self.push(Inst::CpAsyncCommit);
    }

    /// Waits until at most `pending` groups of this thread's asynchronous copies are in flight.
    #[track_caller]
    pub fn await_copies(&self, pending: u32) {
        self.push(Inst::CpAsyncWait { pending });
    }

    /// Starts an asynchronous copy of `bytes` (4 or 16). `src_bytes`, if given, is how many of them exist: the rest reads as zero.
    #[track_caller]
    pub fn copy_async<E: Element>(
        &self,
        bytes: u32,
        (dst, dst_offset): (Ptr<'_, Shared, E>, u32),
        src: Ptr<'_, Global, E>,
        src_bytes: Option<Reg<'_, u32>>,
    ) {
        self.push(Inst::CpAsync {
            bytes,
            dst: dst.addr.id,
            dst_offset: dst_offset as i32,
            src: src.addr.id,
            src_bytes: src_bytes.map(|r| r.id),
        });
    }

    /// `ldmatrix.x4`: four 8x8 matrices of 16-bit elements (or 8x4 of 32-bit ones); lane l addresses row l % 8 of matrix l / 8.
    #[track_caller]
    pub fn load_matrices<E: Element>(&self, trans: bool, rows: Ptr<'_, Shared, E>, byte_offset: u32) -> [Reg<'_, Bits32>; 4] {
        let d = self.regs::<Bits32, 4>();
        self.push(Inst::LdMatrix { trans, d: d.map(|r| r.id), addr: rows.addr.id, offset: byte_offset as i32 });
        d
    }

    /// `mma.sync` m16n8: a * b + c in fresh registers.
    #[track_caller]
    pub fn mma<'k>(&'k self, ty: MmaType, a: [Reg<'k, Bits32>; 4], b: [Reg<'k, Bits32>; 2], c: [Reg<'k, f32>; 4]) -> [Reg<'k, f32>; 4] {
        let d = self.regs::<f32, 4>();
        self.push_mma(ty, d.map(|r| r.id), a, b, c.map(|r| r.id));
        d
    }

    /// `mma.sync` m16n8 in place: acc += a * b.
    #[track_caller]
    pub fn mma_into<'k>(&'k self, ty: MmaType, acc: [Var<'k, f32>; 4], a: [Reg<'k, Bits32>; 4], b: [Reg<'k, Bits32>; 2]) {
        let acc = acc.map(|v| v.0.id);
        self.push_mma(ty, acc, a, b, acc);
    }

    #[track_caller]
    fn push_mma<'k>(&'k self, ty: MmaType, d: [RegId; 4], a: [Reg<'k, Bits32>; 4], b: [Reg<'k, Bits32>; 2], c: [RegId; 4]) {
        self.push(Inst::Mma { ty, d, a: a.map(|r| r.id), b: b.map(|r| r.id), c });
    }

    /// Two f32 rounded to nearest 16-bit values and packed, `lo` in the lower half.
    #[track_caller]
    pub fn pack<'k>(&'k self, ty: MmaType, lo: Reg<'k, f32>, hi: Reg<'k, f32>) -> Reg<'k, Bits32> {
        let d = self.reg();
        self.push(Inst::Pack { ty, d: d.id, hi: hi.id, lo: lo.id });
        d
    }
}

impl<'k, S: Space, E: Element> Ptr<'k, S, E> {
    /// Loads one 32-bit value at a constant distance.
    #[track_caller]
    pub fn load<T: Scalar>(self, byte_offset: u32) -> Reg<'k, T> {
        let d = self.addr.k.reg::<T>();
        self.addr.k.push(Inst::Ld { space: S::NAME, ty: T::TY, d: vec![d.id], addr: self.addr.id, offset: byte_offset as i32 });
        d
    }

    /// Loads two 32-bit values that lie side by side, aligned to 8 bytes.
    #[track_caller]
    pub fn load2<T: Scalar>(self, byte_offset: u32) -> [Reg<'k, T>; 2] {
        let d = self.addr.k.regs::<T, 2>();
        let ids = d.iter().map(|r| r.id).collect();
        self.addr.k.push(Inst::Ld { space: S::NAME, ty: T::TY, d: ids, addr: self.addr.id, offset: byte_offset as i32 });
        d
    }

    /// Loads four 32-bit values that lie side by side, aligned to 16 bytes.
    #[track_caller]
    pub fn load4<T: Scalar>(self, byte_offset: u32) -> [Reg<'k, T>; 4] {
        let d = self.addr.k.regs::<T, 4>();
        let ids = d.iter().map(|r| r.id).collect();
        self.addr.k.push(Inst::Ld { space: S::NAME, ty: T::TY, d: ids, addr: self.addr.id, offset: byte_offset as i32 });
        d
    }

    /// Stores 1, 2 or 4 values side by side at a constant distance, aligned to their whole size.
    #[track_caller]
    pub fn store<T: Scalar>(self, values: &[Reg<'k, T>], byte_offset: u32) {
        let v = values.iter().map(|r| r.id).collect();
        self.addr.k.push(Inst::St { space: S::NAME, ty: T::TY, v, addr: self.addr.id, offset: byte_offset as i32 });
    }
}
