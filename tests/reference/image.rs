//! The memory of a problem: one buffer that holds all tensors, and NaN wherever no input lies.
//!
//! So a kernel that reads beyond the last key spoils its result, one that skips an element of o leaves NaN there, and one
//! that writes anything else changes a byte that [`Image::results`] finds.

use attnpack::{DType, Error, Operand, Problem, ProblemBuilder, Shape};

use super::attention::{Inputs, Output, Tensor};
use super::data::Data;
use super::element::{decode, encode};
use super::layout::{Place, Placement, extents};

/// All bytes set is NaN in every element type.
const POISON: u8 = 0xff;

/// A problem's tensors in one buffer.
pub struct Image {
    /// The problem, with the strides of the placement and the LSE.
    pub problem: Problem,
    /// The same without the LSE.
    pub problem_without_lse: Problem,
    /// Where the tensors lie.
    pub placement: Placement,
    /// Before the launch.
    pub bytes: Vec<u8>,
}

impl Image {
    /// Places the data of a problem that has the strides of `placement`.
    ///
    /// # Errors
    /// Those of [`ProblemBuilder::build`].
    pub fn new(builder: ProblemBuilder, placement: Placement, data: &Data) -> Result<Self, Error> {
        let (problem, problem_without_lse) = (builder.with_lse().build()?, builder.build()?);
        let mut bytes = vec![POISON; placement.bytes];
        let (shape, dtype) = (problem.shape(), problem.dtype());
        for (n, data) in [&data.q, &data.k, &data.v].into_iter().enumerate() {
            let rows = row_offsets(&placement.tensors[n], extents(shape)[n], dtype);
            let elems = row_elems(&problem, n);
            for (start, values) in rows.zip(data.chunks(shape.head_dim as usize)) {
                encode(dtype, &values[..elems], &mut bytes[start..][..row_bytes(&problem, n)]);
            }
        }
        Ok(Image { problem, problem_without_lse, placement, bytes })
    }

    /// Calls `compute` with the inputs as a kernel reads them.
    pub fn with_inputs<R>(&self, compute: impl FnOnce(&Inputs) -> R) -> R {
        let dtype = self.problem.dtype();
        let operands = [Operand::Q, Operand::K, Operand::V];
        let elements = operands.map(|operand| {
            let start = self.placement.tensors[operand as usize].offset;
            decode(dtype, &self.bytes[start..][..self.problem.span_bytes(operand) as usize])
        });
        let tensor = |n: usize| Tensor {
            elements: &elements[n],
            strides: self.placement.tensors[n].strides,
            row_elems: row_elems(&self.problem, n),
        };
        compute(&Inputs { q: tensor(0), k: tensor(1), v: tensor(2) })
    }

    /// The results in the buffer as it is after a launch.
    ///
    /// # Errors
    /// A byte outside o and the LSE has changed.
    pub fn results(&self, after: &[u8]) -> Result<Output<f32>, String> {
        let (shape, dtype) = (self.problem.shape(), self.problem.dtype());
        let Shape { batch, q_len, q_heads, .. } = *shape;
        let (batch, q_len, q_heads) = (batch as usize, q_len as usize, q_heads as usize);
        let mut expected = self.bytes.clone();
        let mut rows: Vec<Vec<f32>> = vec![Vec::new(); batch * q_heads * q_len];
        let places = row_offsets(&self.placement.tensors[Operand::O as usize], extents(shape)[Operand::O as usize], dtype);
        for (n, start) in places.enumerate() {
            let row = start..start + row_bytes(&self.problem, Operand::O as usize);
            expected[row.clone()].copy_from_slice(&after[row.clone()]);
            // From [batch, token, head] to [batch, head, token].
            let (batch, token, head) = (n / q_heads / q_len, n / q_heads % q_len, n % q_heads);
            rows[(batch * q_heads + head) * q_len + token] = decode(dtype, &after[row]);
        }
        let lse = self.placement.lse..self.placement.lse + 4 * batch * q_heads * q_len;
        expected[lse.clone()].copy_from_slice(&after[lse.clone()]);
        match expected.iter().zip(after).position(|(expected, after)| expected != after) {
            Some(byte) => Err(format!("a byte outside o was written: {}", self.describe(byte))),
            None => Ok(Output { o: rows.concat(), lse: decode(DType::F32, &after[lse]) }),
        }
    }

    /// Where a byte of the buffer lies.
    fn describe(&self, byte: usize) -> String {
        let starts = ["q", "k", "v", "o"].iter().zip(&self.placement.tensors).map(|(name, place)| (*name, place.offset));
        let before = starts.chain([("lse", self.placement.lse)]).filter(|(_, start)| *start <= byte).max_by_key(|(_, start)| *start);
        match before {
            Some((name, start)) => format!("{} bytes after the start of {name}", byte - start),
            None => format!("{byte} bytes after the start of the buffer, before all tensors"),
        }
    }
}

/// Elements of a row of q, k, v or o. Those of v and o may be fewer than the layouts have room for.
fn row_elems(problem: &Problem, n: usize) -> usize {
    let elems = if n < Operand::V as usize { problem.shape().head_dim } else { problem.v_head_dim() };
    elems as usize
}

/// Bytes of a row of q, k, v or o.
pub fn row_bytes(problem: &Problem, n: usize) -> usize {
    row_elems(problem, n) * problem.dtype().bytes() as usize
}

/// Offset in bytes of each row, in the order `[batch, seq, heads]`.
pub fn row_offsets(place: &Place, [batch, seq, heads]: [u32; 3], dtype: DType) -> impl Iterator<Item = usize> + use<> {
    let Place { offset, strides } = *place;
    let indices = (0..batch).flat_map(move |b| (0..seq).flat_map(move |t| (0..heads).map(move |h| [b, t, h].map(u64::from))));
    indices.map(move |[b, t, h]| offset + (b * strides.batch + t * strides.seq + h * strides.head) as usize * dtype.bytes() as usize)
}
