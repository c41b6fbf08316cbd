//! Arithmetic on registers and variables: each operation records one instruction.

use std::ops::{Add, AddAssign, BitAnd, BitXor, BitXorAssign, Div, Mul, MulAssign, Rem, Shl, Shr, Sub, SubAssign};

use super::inst::{Binary, Compare, Inst, Unary};
use super::types::{Bits16, Bits32, Number, Operand, Reg, Scalar, Src, Ty, Var};

#[track_caller]
fn binary<'k, T: Scalar>(op: Binary, a: Reg<'k, T>, b: Src) -> Reg<'k, T> {
    let d = a.k.reg();
    a.k.push(Inst::Binary { op, ty: T::TY, d: d.id, a: Src::Reg(a.id), b });
    d
}

macro_rules! operators {
    ($($trait:ident $method:ident),*) => { $(
        impl<'k, T: Number, V: Into<Operand<T>>> $trait<V> for Reg<'k, T> {
            type Output = Self;
            #[track_caller]
            fn $method(self, rhs: V) -> Self {
                binary(Binary::$trait, self, rhs.into().src)
            }
        }
    )* };
}
operators!(Add add, Sub sub, Mul mul);

/// Division by a constant, written out as a product: ptxas does not do so itself. Exact for dividends below 2^31.
impl Div<u32> for Reg<'_, u32> {
    type Output = Self;
    #[track_caller]
    fn div(self, divisor: u32) -> Self {
        if divisor.is_power_of_two() {
            return self >> divisor.ilog2();
        }
        let (factor, shift) = reciprocal(divisor);
        binary(Binary::MulHigh, self, Src::Imm(u64::from(factor))) >> shift
    }
}

/// (factor, shift) such that n / divisor = (n * factor) >> 32 >> shift for n below 2^31, for a divisor
/// that is not a power of two.
pub(super) fn reciprocal(divisor: u32) -> (u32, u32) {
    // With e = factor * divisor - 2^(32 + shift) < divisor, the quotient is exact while
    // n * e < 2^(32 + shift), and divisor < 2^(shift + 1).
    let shift = divisor.ilog2();
    let factor = (1_u64 << (32 + shift)).div_ceil(u64::from(divisor));
    (u32::try_from(factor).expect("the divisor is above 2^shift"), shift)
}

/// Remainder by a constant. Exact for dividends below 2^31.
impl Rem<u32> for Reg<'_, u32> {
    type Output = Self;
    #[track_caller]
    fn rem(self, divisor: u32) -> Self {
        if divisor.is_power_of_two() {
            return self & (divisor - 1);
        }
        self - (self / divisor) * divisor
    }
}

macro_rules! bit_operators {
    ($($trait:ident $method:ident $op:ident),*) => { $(
        impl<'k, V: Into<Operand<u32>>> $trait<V> for Reg<'k, u32> {
            type Output = Self;
            #[track_caller]
            fn $method(self, rhs: V) -> Self {
                binary(Binary::$op, self, rhs.into().src)
            }
        }
    )* };
}
bit_operators!(BitAnd bitand And, BitXor bitxor Xor, Shl shl Shl, Shr shr Shr);

impl<'k, T: Number> Reg<'k, T> {
    /// The larger of two values.
    #[track_caller]
    pub fn max(self, other: impl Into<Operand<T>>) -> Self {
        binary(Binary::Max, self, other.into().src)
    }

    /// The smaller of two values.
    #[track_caller]
    pub fn min(self, other: impl Into<Operand<T>>) -> Self {
        binary(Binary::Min, self, other.into().src)
    }

    /// self * b + c; in f32 rounded once.
    #[track_caller]
    pub fn mul_add(self, b: impl Into<Operand<T>>, c: impl Into<Operand<T>>) -> Self {
        let d = self.k.reg();
        self.k.push(Inst::MulAdd { ty: T::TY, d: d.id, a: Src::Reg(self.id), b: b.into().src, c: c.into().src });
        d
    }

    #[track_caller]
    fn compare(self, cmp: Compare, other: Src) -> Reg<'k, bool> {
        let d = self.k.reg();
        self.k.push(Inst::SetP { cmp, ty: T::TY, d: d.id, a: Src::Reg(self.id), b: other });
        d
    }

    /// self = other
    #[track_caller]
    pub fn eq(self, other: impl Into<Operand<T>>) -> Reg<'k, bool> {
        self.compare(Compare::Eq, other.into().src)
    }

    /// self < other
    #[track_caller]
    pub fn lt(self, other: impl Into<Operand<T>>) -> Reg<'k, bool> {
        self.compare(Compare::Lt, other.into().src)
    }

    /// self <= other
    #[track_caller]
    pub fn le(self, other: impl Into<Operand<T>>) -> Reg<'k, bool> {
        self.compare(Compare::Le, other.into().src)
    }

    /// self > other
    #[track_caller]
    pub fn gt(self, other: impl Into<Operand<T>>) -> Reg<'k, bool> {
        self.compare(Compare::Gt, other.into().src)
    }

    /// self != other
    #[track_caller]
    pub fn ne(self, other: impl Into<Operand<T>>) -> Reg<'k, bool> {
        self.compare(Compare::Ne, other.into().src)
    }

    /// The value of the lane whose number differs in the bits of `lane_mask`.
    #[track_caller]
    pub fn shuffle_xor(self, lane_mask: u32) -> Self {
        let d = self.k.reg();
        self.k.push(Inst::ShflBfly { d: d.id, a: self.id, lane_mask });
        d
    }

    /// Lane 0's value in every lane: uniform by construction.
    #[track_caller]
    pub fn broadcast(self) -> Self {
        let d = self.k.reg();
        self.k.push(Inst::ShflIdx { d: d.id, a: self.id, lane: 0 });
        d
    }
}

impl<'k> Reg<'k, bool> {
    /// `yes` where the predicate holds, `no` elsewhere.
    #[track_caller]
    pub fn select<T: Scalar>(self, yes: impl Into<Operand<T>>, no: impl Into<Operand<T>>) -> Reg<'k, T> {
        let d = self.k.reg();
        self.k.push(Inst::SelP { ty: T::TY, d: d.id, a: yes.into().src, b: no.into().src, p: self.id });
        d
    }

    /// Whether the predicate holds in any lane of the warp: uniform.
    #[track_caller]
    pub fn in_any_lane(self) -> Reg<'k, bool> {
        let d = self.k.reg();
        self.k.push(Inst::VoteAny { d: d.id, a: self.id });
        d
    }

    /// Both predicates.
    #[track_caller]
    pub fn and(self, other: Reg<'k, bool>) -> Reg<'k, bool> {
        binary(Binary::And, self, Src::Reg(other.id))
    }

    /// Either predicate.
    #[track_caller]
    pub fn or(self, other: Reg<'k, bool>) -> Reg<'k, bool> {
        binary(Binary::Or, self, Src::Reg(other.id))
    }
}

impl<'k> Reg<'k, f32> {
    /// The larger of two values, NaN if either is (sm_80).
    #[track_caller]
    pub fn max_or_nan(self, other: Self) -> Self {
        binary(Binary::MaxNan, self, Src::Reg(other.id))
    }

    /// self > other, or either is NaN
    #[track_caller]
    pub fn gt_or_nan(self, other: f32) -> Reg<'k, bool> {
        self.compare(Compare::Gtu, Src::Imm(other.bits()))
    }

    /// self + a * b, rounded once.
    #[track_caller]
    pub fn add_mul(self, a: Self, b: Self) -> Self {
        a.mul_add(b, self)
    }

    #[track_caller]
    fn unary(self, op: Unary) -> Self {
        let d = self.k.reg();
        self.k.push(Inst::Unary { op, d: d.id, a: Src::Reg(self.id) });
        d
    }

    /// 2^self, within 2 ulp (PTX ISA, `ex2.approx`).
    #[track_caller]
    pub fn exp2(self) -> Self {
        self.unary(Unary::Ex2)
    }

    /// log2(self).
    #[track_caller]
    pub fn log2(self) -> Self {
        self.unary(Unary::Lg2)
    }

    /// 1/self, within 1 ulp.
    #[track_caller]
    pub fn recip(self) -> Self {
        self.unary(Unary::Rcp)
    }

    /// -self
    #[track_caller]
    pub fn negate(self) -> Self {
        self.unary(Unary::Neg)
    }

    /// The same 32 bits, untyped.
    #[track_caller]
    pub fn to_bits(self) -> Reg<'k, Bits32> {
        self.reinterpret()
    }
}

impl<'k, T: Scalar> Reg<'k, T> {
    /// The same 32 bits as another type.
    #[track_caller]
    pub fn reinterpret<U: Scalar>(self) -> Reg<'k, U> {
        let d = self.k.reg::<U>();
        self.k.push(Inst::Mov { ty: Ty::B32, d: d.id, a: Src::Reg(self.id) });
        d
    }
}

impl<'k> Reg<'k, u32> {
    /// The high half of the 64-bit product.
    #[track_caller]
    pub fn mul_high(self, other: Self) -> Self {
        binary(Binary::MulHigh, self, Src::Reg(other.id))
    }

    /// Zero-extended to 64 bits.
    #[track_caller]
    pub fn to_u64(self) -> Reg<'k, u64> {
        let d = self.k.reg();
        self.k.push(Inst::Widen { d: d.id, a: self.id });
        d
    }

    /// The same bits as a signed value.
    #[track_caller]
    pub fn to_i32(self) -> Reg<'k, i32> {
        self.reinterpret()
    }
}

impl<'k> Reg<'k, u64> {
    /// Bits 0 to 31.
    #[track_caller]
    pub fn low_half(self) -> Reg<'k, u32> {
        let d = self.k.reg();
        self.k.push(Inst::Narrow { d: d.id, a: self.id });
        d
    }

    /// Shifted right by a constant.
    #[track_caller]
    pub fn shift_right(self, bits: u32) -> Self {
        binary(Binary::Shr, self, Src::Imm(u64::from(bits)))
    }

    /// Shifted left by a constant.
    #[track_caller]
    pub fn shift_left(self, bits: u32) -> Self {
        binary(Binary::Shl, self, Src::Imm(u64::from(bits)))
    }

    /// Bits 32 to 63.
    #[track_caller]
    pub fn high_half(self) -> Reg<'k, u32> {
        let shifted = binary(Binary::Shr, self, Src::Imm(32));
        let d = self.k.reg();
        self.k.push(Inst::Narrow { d: d.id, a: shifted.id });
        d
    }
}

impl<'k> Reg<'k, Bits32> {
    /// The two f16 values, the lower one first, as f32.
    #[track_caller]
    pub fn unpack_f16(self) -> [Reg<'k, f32>; 2] {
        let [lo, hi] = self.k.regs::<Bits16, 2>();
        self.k.push(Inst::Halves { lo: lo.id, hi: hi.id, a: self.id });
        let widened = self.k.regs::<f32, 2>();
        self.k.push(Inst::WidenF16 { d: widened[0].id, a: lo.id });
        self.k.push(Inst::WidenF16 { d: widened[1].id, a: hi.id });
        widened
    }
}

impl<'k> Reg<'k, i32> {
    /// The nearest f32.
    #[track_caller]
    pub fn to_f32(self) -> Reg<'k, f32> {
        let d = self.k.reg();
        self.k.push(Inst::FloatFromInt { d: d.id, a: self.id });
        d
    }

    /// The same bits as an unsigned value.
    #[track_caller]
    pub fn to_u32(self) -> Reg<'k, u32> {
        self.reinterpret()
    }
}

impl<'k, T: Scalar> Var<'k, T> {
    /// A copy of the current value.
    #[track_caller]
    pub fn get(self) -> Reg<'k, T> {
        let d = self.0.k.reg();
        self.0.k.push(Inst::Mov { ty: T::TY, d: d.id, a: Src::Reg(self.0.id) });
        d
    }

    /// Replaces the value.
    #[track_caller]
    pub fn set(self, value: impl Into<Operand<T>>) {
        let a = value.into().src;
        self.0.k.push(Inst::Mov { ty: T::TY, d: self.0.id, a });
        self.0.k.assigned(self.0.id, &[a]);
    }
}

impl<'k, T: Number> Var<'k, T> {
    #[track_caller]
    fn update(self, op: Binary, b: Src) {
        let id = self.0.id;
        self.0.k.push(Inst::Binary { op, ty: T::TY, d: id, a: Src::Reg(id), b });
        self.0.k.assigned(id, &[b]);
    }

    /// self = self * b + c
    #[track_caller]
    pub fn mul_add_assign(self, b: impl Into<Operand<T>>, c: impl Into<Operand<T>>) {
        let id = self.0.id;
        let (b, c) = (b.into().src, c.into().src);
        self.0.k.push(Inst::MulAdd { ty: T::TY, d: id, a: Src::Reg(id), b, c });
        self.0.k.assigned(id, &[b, c]);
    }
}

macro_rules! assign_operators {
    ($($trait:ident $method:ident $op:ident),*) => { $(
        impl<'k, T: Number, V: Into<Operand<T>>> $trait<V> for Var<'k, T> {
            #[track_caller]
            fn $method(&mut self, rhs: V) {
                self.update(Binary::$op, rhs.into().src);
            }
        }
    )* };
}
assign_operators!(AddAssign add_assign Add, SubAssign sub_assign Sub, MulAssign mul_assign Mul);

impl<V: Into<Operand<u32>>> BitXorAssign<V> for Var<'_, u32> {
    #[track_caller]
    fn bitxor_assign(&mut self, rhs: V) {
        self.update(Binary::Xor, rhs.into().src);
    }
}
