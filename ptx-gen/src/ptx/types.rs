//! Register types, typed register handles, loop variables and pointers.

use std::marker::PhantomData;

use super::builder::Kernel;

/// Type of a PTX register or memory access, as instructions spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ty {
    /// `.pred`
    Pred,
    /// `.b16`
    B16,
    /// `.b32`: two packed 16-bit values or one tf32 operand
    B32,
    /// `.u32`
    U32,
    /// `.s32`
    S32,
    /// `.u64`
    U64,
    /// `.f32`
    F32,
}

/// A type that a register handle can have.
pub trait Scalar: Copy + 'static {
    /// The PTX type.
    const TY: Ty;
}

/// 32 untyped bits: two packed 16-bit values (`f16x2`, `bf16x2`) or a tf32 operand.
#[derive(Clone, Copy, Debug)]
pub struct Bits32;

/// 16 untyped bits.
#[derive(Clone, Copy, Debug)]
pub struct Bits16;

macro_rules! scalars {
    ($($rust:ty => $ty:ident),*) => { $(impl Scalar for $rust { const TY: Ty = Ty::$ty; })* };
}
scalars!(bool => Pred, Bits16 => B16, Bits32 => B32, u32 => U32, i32 => S32, u64 => U64, f32 => F32);

/// A scalar with arithmetic.
pub trait Number: Scalar {
    /// The bit pattern of a constant.
    fn bits(self) -> u64;
}

macro_rules! numbers {
    ($($rust:ty: $to_bits:expr),*) => { $(impl Number for $rust {
        fn bits(self) -> u64 {
            $to_bits(self)
        }
    })* };
}
numbers!(u32: u64::from, i32: |v: i32| u64::from(v as u32), u64: |v| v, f32: |v: f32| u64::from(v.to_bits()));

/// Index of a register in its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegId(pub(super) u32);

/// A source operand: a register or a constant's bit pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Src {
    /// A register.
    Reg(RegId),
    /// A constant, in the type of the instruction.
    Imm(u64),
}

/// A typed, single-assignment register. Copies are the same register; loop state is a [`Var`].
#[derive(Clone, Copy)]
pub struct Reg<'k, T> {
    pub(super) k: &'k Kernel,
    pub(super) id: RegId,
    pub(super) ty: PhantomData<T>,
}

impl<'k, T: Scalar> Reg<'k, T> {
    /// The kernel that this register belongs to.
    pub fn kernel(self) -> &'k Kernel {
        self.k
    }

    /// Whether every lane of a warp holds the same value, as far as the builder can prove.
    pub fn is_uniform(self) -> bool {
        self.k.is_uniform(self.id)
    }
}

/// A typed source operand: what an operation accepts where either a register or a constant may stand.
#[derive(Clone, Copy)]
pub struct Operand<T> {
    pub(super) src: Src,
    ty: PhantomData<T>,
}

impl<T> From<Reg<'_, T>> for Operand<T> {
    fn from(reg: Reg<'_, T>) -> Self {
        Operand { src: Src::Reg(reg.id), ty: PhantomData }
    }
}

impl<T: Number> From<T> for Operand<T> {
    fn from(value: T) -> Self {
        Operand { src: Src::Imm(value.bits()), ty: PhantomData }
    }
}

/// A mutable register: state that a GPU loop carries. Reading copies, so a value read before an
/// assignment keeps what it was.
#[derive(Clone, Copy)]
pub struct Var<'k, T>(pub(super) Reg<'k, T>);

/// The state space of global memory (64-bit addresses).
#[derive(Clone, Copy, Debug)]
pub struct Global;

/// The state space of the block's shared memory (32-bit addresses).
#[derive(Clone, Copy, Debug)]
pub struct Shared;

/// The state space of the shared memory of all blocks of a cluster (32-bit addresses).
#[derive(Clone, Copy, Debug)]
pub struct ClusterShared;

impl Space for ClusterShared {
    type Address = u32;
    const NAME: &'static str = "shared::cluster";
}

/// A state space and the integer that addresses it.
pub trait Space: Copy {
    /// Integer type of an address.
    type Address: Number;
    /// Name in load, store and copy instructions.
    const NAME: &'static str;
}

impl Space for Global {
    type Address = u64;
    const NAME: &'static str = "global";
}

impl Space for Shared {
    type Address = u32;
    const NAME: &'static str = "shared";
}

/// Element of a tensor in memory.
pub trait Element: Copy + 'static {
    /// Size in bytes.
    const BYTES: u32;
}

/// A pointer: state space and element are part of its type, so that global and shared addresses, or
/// addresses of different elements, do not mix.
#[derive(Clone, Copy)]
pub struct Ptr<'k, S: Space, E> {
    pub(super) addr: Reg<'k, S::Address>,
    element: PhantomData<E>,
}

impl<'k, S: Space, E: Element> Ptr<'k, S, E> {
    /// A pointer from an address in bytes.
    pub fn from_address(addr: Reg<'k, S::Address>) -> Self {
        Ptr { addr, element: PhantomData }
    }

    /// The address in bytes.
    pub fn address(self) -> Reg<'k, S::Address> {
        self.addr
    }
}

impl<'k, E: Element> Ptr<'k, Global, E> {
    /// This pointer moved by a number of elements (64-bit, modulo 2^64: a "negative" offset works).
    #[track_caller]
    pub fn offset(self, elements: Reg<'k, u64>) -> Self {
        Self::from_address(self.addr + elements * u64::from(E::BYTES))
    }

    /// This pointer moved by a constant number of bytes.
    #[track_caller]
    pub fn byte_offset(self, bytes: Reg<'k, u64>) -> Self {
        Self::from_address(self.addr + bytes)
    }
}
