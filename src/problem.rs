//! What is to be computed: [`Problem`], checked when built.

use crate::error::Error;
use crate::grid::LIMIT_YZ;
use crate::layout::{Region, Strides};
use crate::shape::{DType, Mask, Operand, Shape};

/// A checked attention problem: O = softmax(scale * Q K^T) V, per head.
///
/// Made by [`Problem::prefill`]. Everything that does not depend on the device or on addresses was checked:
/// sizes, strides, 64-bit extents, the scale, the limits of a grid, and that o does not overlap itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    dtype: DType,
    shape: Shape,
    v_head_dim: u32,
    mask: Mask,
    scale: f32,
    strides: [Strides; 4],
    with_lse: bool,
    /// Extents of q, k, v, o and lse in bytes, at address 0.
    regions: [Region; 5],
    /// All strides that count, in bytes, or-ed: what divides this divides each of them.
    stride_bits: u64,
}

impl Problem {
    /// Starts a prefill problem: full mask, scale `1 / sqrt(head_dim)`, no LSE, and every tensor
    /// `[batch, seq, heads, head_dim]` without gaps.
    ///
    /// ```
    /// use attnpack::{DType, Mask, Problem, Shape};
    ///
    /// let shape = Shape { batch: 1, q_len: 512, kv_len: 2048, q_heads: 32, kv_heads: 8, head_dim: 128 };
    /// let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build()?;
    /// assert_eq!(problem.group(), 4);
    /// # Ok::<(), attnpack::Error>(())
    /// ```
    pub fn prefill(dtype: DType, shape: Shape) -> ProblemBuilder {
        ProblemBuilder {
            dtype,
            shape,
            v_head_dim: shape.head_dim,
            mask: Mask::Full,
            scale: (1.0 / f64::from(shape.head_dim).sqrt()) as f32,
            strides: [None; 4],
            with_lse: false,
        }
    }

    /// Element type of q, k, v and o.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Elements of a head of v and o; those of q and k are in the shape.
    pub fn v_head_dim(&self) -> u32 {
        self.v_head_dim
    }

    /// Elements of a head of q, k, v or o.
    pub(crate) fn row_elems(&self, operand: Operand) -> u32 {
        row_elems(operand, &self.shape, self.v_head_dim)
    }

    /// Query heads per KV head.
    pub fn group(&self) -> u32 {
        self.shape.q_heads / self.shape.kv_heads
    }

    /// Which keys a query sees.
    pub fn mask(&self) -> Mask {
        self.mask
    }

    /// Factor of the scores before softmax.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Whether the log-sum-exp is wanted.
    pub fn wants_lse(&self) -> bool {
        self.with_lse
    }

    /// Strides in elements of q, k, v or o; `None` for the LSE, which is contiguous.
    pub fn strides(&self, operand: Operand) -> Option<Strides> {
        self.strides.get(operand as usize).copied()
    }

    /// Bytes from the first element of a tensor to the one after its last: what a buffer must hold from the
    /// tensor's address on. The LSE counts whether it is wanted or not.
    pub fn span_bytes(&self, operand: Operand) -> u64 {
        self.region(operand).span()
    }

    /// [`Problem::span_bytes`] in elements.
    pub fn span_elems(&self, operand: Operand) -> u64 {
        let element_bytes = if operand == Operand::Lse { DType::F32 } else { self.dtype }.bytes();
        self.span_bytes(operand) / u64::from(element_bytes)
    }

    /// The bytes of a tensor, at address 0.
    pub(crate) fn region(&self, operand: Operand) -> Region {
        self.regions[operand as usize]
    }

    /// All strides that count, in bytes, or-ed: what divides this divides each of them.
    pub(crate) fn stride_bits(&self) -> u64 {
        self.stride_bits
    }
}

/// Builds a [`Problem`]; made by [`Problem::prefill`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct ProblemBuilder {
    dtype: DType,
    shape: Shape,
    v_head_dim: u32,
    mask: Mask,
    scale: f32,
    /// `None`: without gaps.
    strides: [Option<Strides>; 4],
    with_lse: bool,
}

impl ProblemBuilder {
    /// Which keys a query sees.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Elements of a head of v and o, where they are others than those of q and k, as in multi-head latent attention.
    pub fn v_head_dim(mut self, v_head_dim: u32) -> Self {
        self.v_head_dim = v_head_dim;
        self
    }

    /// Factor of the scores before softmax: finite and positive.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }

    /// Strides of q in elements. They may be 0 or overlap, as those of all inputs.
    pub fn q_strides(self, strides: Strides) -> Self {
        self.strides(Operand::Q, strides)
    }

    /// Strides of k in elements.
    pub fn k_strides(self, strides: Strides) -> Self {
        self.strides(Operand::K, strides)
    }

    /// Strides of v in elements.
    pub fn v_strides(self, strides: Strides) -> Self {
        self.strides(Operand::V, strides)
    }

    /// Strides of o in elements: no two rows of o may share an element.
    pub fn o_strides(self, strides: Strides) -> Self {
        self.strides(Operand::O, strides)
    }

    pub(crate) fn strides(mut self, operand: Operand, strides: Strides) -> Self {
        self.strides[operand as usize] = Some(strides);
        self
    }

    /// Asks for the log-sum-exp of the scaled scores: natural logarithm, f32, `[batch, q_heads, q_len]`
    /// without gaps; -inf for a query that sees no key.
    pub fn with_lse(mut self) -> Self {
        self.with_lse = true;
        self
    }

    /// Checks the problem.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::HeadRatio`], [`Error::TooLarge`], [`Error::Scale`],
    /// [`Error::ExtentOverflow`] and [`Error::OutputOverlapsItself`].
    pub fn build(self) -> Result<Problem, Error> {
        let ProblemBuilder { dtype, shape, v_head_dim, mask, scale, strides, with_lse } = self;
        check_sizes(&shape, v_head_dim)?;
        // The kernels take the scale times log2(e), which must be finite as well.
        if !(scale > 0.0 && (scale * std::f32::consts::LOG2_E).is_finite()) {
            return Err(Error::Scale { scale });
        }
        let strides = Operand::STRIDED.map(|operand| {
            let [_, seq, heads] = shape.extents(operand);
            let contiguous = || Strides::contiguous(seq, heads, row_elems(operand, &shape, v_head_dim));
            strides[operand as usize].unwrap_or_else(contiguous)
        });
        let regions = regions(dtype, &shape, v_head_dim, &strides)?;
        let stride_bits = regions.iter().flat_map(Region::strides).fold(0, |bits, stride| bits | stride);
        let problem = Problem { dtype, shape, v_head_dim, mask, scale, strides, with_lse, regions, stride_bits };
        if problem.region(Operand::O).overlaps_itself() {
            return Err(Error::OutputOverlapsItself { strides: strides[Operand::O as usize], shape, v_head_dim });
        }
        Ok(problem)
    }
}

/// Heads: a dimension of the grid in some kernels, and with the ratio of heads a factor of a 32-bit product.
const HEADS: u32 = LIMIT_YZ;
/// Lengths are signed 32-bit numbers in the kernels, and so is the end of every tile of rows or keys, which may lie up to a
/// tile or two beyond the last: a length just below 2^31 would make it negative, and the tile empty. A round number that leaves
/// room for tiles of any size.
const LENGTH: u64 = 2_000_000_000;

/// Elements of a head of a tensor.
fn row_elems(operand: Operand, shape: &Shape, v_head_dim: u32) -> u32 {
    match operand {
        Operand::Q | Operand::K => shape.head_dim,
        Operand::V | Operand::O => v_head_dim,
        Operand::Lse => 1,
    }
}

fn check_sizes(shape: &Shape, v_head_dim: u32) -> Result<(), Error> {
    let Shape { batch, q_len, kv_len, q_heads, kv_heads, head_dim } = *shape;
    let sizes = [
        ("batch", batch, LIMIT_YZ.into()),
        ("q_len", q_len, LENGTH),
        ("kv_len", kv_len, LENGTH),
        ("q_heads", q_heads, HEADS.into()),
        ("kv_heads", kv_heads, HEADS.into()),
        ("head_dim", head_dim, LENGTH),
        ("v_head_dim", v_head_dim, LENGTH),
    ];
    for (what, value, limit) in sizes {
        if value == 0 {
            return Err(Error::ZeroSize { what });
        }
        if u64::from(value) > limit {
            return Err(Error::TooLarge { what, value: value.into(), limit });
        }
    }
    if q_heads % kv_heads != 0 {
        return Err(Error::HeadRatio { q_heads, kv_heads });
    }
    let rows = u64::from(q_len) * u64::from(q_heads / kv_heads);
    if rows > LENGTH {
        return Err(Error::TooLarge { what: "q_len * (q_heads / kv_heads)", value: rows, limit: LENGTH });
    }
    Ok(())
}

fn regions(dtype: DType, shape: &Shape, v_head_dim: u32, strides: &[Strides; 4]) -> Result<[Region; 5], Error> {
    let region = |operand: Operand| {
        let Strides { batch, seq, head } = strides[operand as usize];
        let region = Region::new(shape.extents(operand), [batch, seq, head], row_elems(operand, shape, v_head_dim).into());
        let bytes = region.and_then(|region| region.scaled(dtype.bytes().into()));
        bytes.ok_or(Error::ExtentOverflow { operand })
    };
    let heads = u64::from(shape.batch) * u64::from(shape.q_heads);
    let lse = heads.checked_mul(shape.q_len.into()).and_then(|elems| elems.checked_mul(DType::F32.bytes().into()));
    let lse = lse.and_then(|bytes| Region::new([1; 3], [0; 3], bytes));
    let lse = lse.ok_or(Error::ExtentOverflow { operand: Operand::Lse })?;
    Ok([region(Operand::Q)?, region(Operand::K)?, region(Operand::V)?, region(Operand::O)?, lse])
}
