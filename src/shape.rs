//! The terms of a problem: element type, mask, tensors and sizes.

use std::fmt;

/// Element type of q, k, v and o. Accumulation is always in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// IEEE single precision.
    F32,
}

impl DType {
    /// Size of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 => 4,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
        })
    }
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mask {
    /// Every key.
    #[default]
    Full,
    /// Query `i` sees keys `0 ..= i + kv_len - q_len`: the diagonal ends in the bottom right corner, so that a
    /// chunk of queries at the end of a sequence sees all keys before it. A query that sees no key
    /// (`kv_len < q_len`) gives O = 0 and LSE = -inf.
    Causal,
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mask::Full => "full",
            Mask::Causal => "causal",
        })
    }
}

/// A tensor of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// Queries, `[batch, q_len, q_heads, head_dim]`.
    Q,
    /// Keys, `[batch, kv_len, kv_heads, head_dim]`.
    K,
    /// Values, `[batch, kv_len, kv_heads, v_head_dim]`.
    V,
    /// Output, `[batch, q_len, q_heads, v_head_dim]`.
    O,
    /// Log-sum-exp, f32, `[batch, q_heads, q_len]` without gaps.
    Lse,
}

impl Operand {
    pub(crate) const STRIDED: [Operand; 4] = [Operand::Q, Operand::K, Operand::V, Operand::O];
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operand::Q => "q",
            Operand::K => "k",
            Operand::V => "v",
            Operand::O => "o",
            Operand::Lse => "lse",
        })
    }
}

/// Sizes of an attention problem.
///
/// q and o are `[batch, q_len, q_heads, head_dim]`, k and v `[batch, kv_len, kv_heads, head_dim]`, where v and o may have a
/// head_dim of their own ([`crate::ProblemBuilder::v_head_dim`]). Query head `h` reads KV head `h / (q_heads / kv_heads)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences.
    pub batch: u32,
    /// Query tokens of a sequence.
    pub q_len: u32,
    /// Key and value tokens of a sequence.
    pub kv_len: u32,
    /// Query heads.
    pub q_heads: u32,
    /// Key and value heads; a divisor of `q_heads`.
    pub kv_heads: u32,
    /// Elements of a head of q and k, and unless said otherwise of v and o.
    pub head_dim: u32,
}

impl Shape {
    /// `[batch, seq, heads]` of an operand.
    pub(crate) fn extents(&self, operand: Operand) -> [u32; 3] {
        match operand {
            Operand::Q | Operand::O | Operand::Lse => [self.batch, self.q_len, self.q_heads],
            Operand::K | Operand::V => [self.batch, self.kv_len, self.kv_heads],
        }
    }
}
