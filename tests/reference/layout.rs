//! Where the tensors of a problem lie in one buffer.

use attnpack::{DType, Shape, Strides};

/// A memory layout. In all of them something lies around and between the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[batch, seq, heads, head_dim]` without gaps.
    Contiguous,
    /// Packed projections: a row holds the heads of q, of k, of v and of o, and something else.
    PackedRows,
    /// KV caches `[batch, heads, capacity, head_dim]` of a larger capacity; q is head-major too, o is not.
    HeadMajor,
    /// One k and one v for all batches (a batch stride of 0).
    SharedCache,
    /// Gaps after each head, each token and each batch, other ones in each tensor.
    Gaps,
    /// Like the gaps, in rows that start on multiples of 4 bytes only.
    FourBytes,
}

impl Layout {
    /// Those whose rows start on 16 bytes.
    pub const ALIGNED: [Layout; 5] = [Layout::Contiguous, Layout::PackedRows, Layout::HeadMajor, Layout::SharedCache, Layout::Gaps];

    /// What divides the address of each row, in bytes.
    pub fn alignment(self) -> u32 {
        if self == Layout::FourBytes { 4 } else { 16 }
    }
}

/// A tensor of `[batch, seq, heads, head_dim]` in the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Of the first element, in bytes.
    pub offset: usize,
    /// In elements.
    pub strides: Strides,
}

/// The whole buffer.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// Queries, keys, values, output.
    pub tensors: [Place; 4],
    /// Of the LSE, in bytes.
    pub lse: usize,
    /// Size in bytes.
    pub bytes: usize,
}

/// Around each tensor: enough for a stray row of every shape in the tests.
const GUARD_BYTES: usize = 4096;

/// `[batch, seq, heads]` of q, k, v and o.
pub fn extents(shape: &Shape) -> [[u32; 3]; 4] {
    let (q, kv) = ([shape.batch, shape.q_len, shape.q_heads], [shape.batch, shape.kv_len, shape.kv_heads]);
    [q, kv, kv, q]
}

impl Placement {
    /// Places the tensors of a shape.
    pub fn new(layout: Layout, shape: &Shape, dtype: DType) -> Self {
        if layout == Layout::PackedRows {
            return Self::packed(shape, dtype);
        }
        // An odd number of 4-byte units is added to every stride, and to the address.
        let unit = 4 / dtype.bytes();
        let strides: [Strides; 4] = std::array::from_fn(|n| {
            let [_, seq, heads] = extents(shape)[n];
            let (is_kv, n) = (n == 1 || n == 2, n as u32);
            match layout {
                Layout::HeadMajor if is_kv => Strides::head_major(heads, seq + 13, shape.head_dim),
                Layout::HeadMajor if n == 0 => Strides::head_major(heads, seq, shape.head_dim),
                Layout::SharedCache if is_kv => Strides { batch: 0, ..Strides::contiguous(seq, heads, shape.head_dim) },
                Layout::Gaps => spread([seq, heads, shape.head_dim], [40 + 8 * n, 24 * (n + 1), 8 * (n + 1)]),
                Layout::FourBytes => spread([seq, heads, shape.head_dim], [unit * 5, unit * (2 * n + 3), unit * (2 * n + 1)]),
                _ => Strides::contiguous(seq, heads, shape.head_dim),
            }
        });
        let mut end = GUARD_BYTES;
        let tensors = std::array::from_fn(|n| {
            let offset = end.next_multiple_of(64) + if layout == Layout::FourBytes { 4 } else { 0 };
            end = offset + span(extents(shape)[n], strides[n], shape.head_dim) * dtype.bytes() as usize + GUARD_BYTES;
            Place { offset, strides: strides[n] }
        });
        Self::with_lse(tensors, end, shape)
    }

    /// q, k, v and o side by side in the rows of one matrix, with 64 unused columns after them.
    fn packed(shape: &Shape, dtype: DType) -> Self {
        let Shape { batch, q_len, kv_len, q_heads, kv_heads, head_dim } = *shape;
        let columns = (2 * q_heads + 2 * kv_heads) * head_dim + 64;
        let strides = Strides::packed_rows(columns.into(), head_dim, q_len.max(kv_len));
        let starts = [0, q_heads, q_heads + kv_heads, q_heads + 2 * kv_heads].map(|heads| heads * head_dim * dtype.bytes());
        let tensors = starts.map(|start| Place { offset: GUARD_BYTES + start as usize, strides });
        let end = GUARD_BYTES + (strides.batch as u32 * batch * dtype.bytes()) as usize;
        Self::with_lse(tensors, end, shape)
    }

    fn with_lse(tensors: [Place; 4], end: usize, shape: &Shape) -> Self {
        let lse = end.next_multiple_of(64) + GUARD_BYTES;
        let lse_elems = shape.batch as usize * shape.q_heads as usize * shape.q_len as usize;
        Placement { tensors, lse, bytes: lse + 4 * lse_elems + GUARD_BYTES }
    }
}

/// Strides of `[seq, heads, head_dim]` with gaps in elements after each batch, token and head.
fn spread([seq, heads, head_dim]: [u32; 3], [batch_gap, seq_gap, head_gap]: [u32; 3]) -> Strides {
    let head = head_dim + head_gap;
    let token = heads * head + seq_gap;
    Strides { batch: u64::from(seq * token + batch_gap), seq: token.into(), head: head.into() }
}

/// Elements from the first to the one after the last.
fn span([batch, seq, heads]: [u32; 3], strides: Strides, head_dim: u32) -> usize {
    let steps = [(batch, strides.batch), (seq, strides.seq), (heads, strides.head)];
    steps.iter().map(|(extent, stride)| u64::from(extent - 1) * stride).sum::<u64>() as usize + head_dim as usize
}
