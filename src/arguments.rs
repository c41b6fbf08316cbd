//! The parameter blocks of kernels, filled from a problem.

use std::f64::consts::LOG2_E;
use std::ffi::c_void;
use std::ptr;

use crate::catalog::{Boxes, Schedule, TensorBox};
use crate::dispatch::Choice;
use crate::driver::Driver;
use crate::error::Result;
use crate::grid::{Grid, packed_tokens};
use crate::launch::Pointers;
use crate::problem::Problem;
use crate::shape::{Mask, Operand};
use crate::tensor_map;

mod params {
    //! Written by the generator, which derives the kernels' parameter offsets from the same table.
    include!(concat!(env!("OUT_DIR"), "/params.rs"));
}

use params::{PrefillParams, PrefillTmaParams, TensorMap};

/// What a kernel takes.
#[allow(clippy::large_enum_variant, reason = "lives on the stack for the time of a launch, which must not allocate")]
pub(crate) enum Arguments {
    /// Tensors by address and strides.
    ByAddress(PrefillParams),
    /// Tensors by tensor maps.
    ByMap(PrefillTmaParams),
}

impl Arguments {
    /// Those of the chosen kernel.
    ///
    /// # Errors
    /// [`crate::Error::Driver`] for a tensor that has no map; dispatch chose the kernel because all have.
    pub(crate) fn new(
        driver: &Driver,
        problem: &Problem,
        pointers: &Pointers,
        choice: &Choice,
        grid: &Grid,
        multiprocessors: u32,
    ) -> Result<Self> {
        match &choice.entry.schedule {
            Schedule::Grid => Ok(Arguments::ByAddress(by_address(problem, pointers, grid.longest_first(multiprocessors)))),
            Schedule::Persistent { boxes, .. } => {
                let heads = Packed { heads: 1, tokens: choice.entry.block_q };
                by_map(driver, problem, pointers, boxes, grid, heads).map(Arguments::ByMap)
            }
            Schedule::Split { boxes, .. } => {
                let heads = problem.group();
                let packed = Packed { heads, tokens: packed_tokens(choice.entry.block_q, heads) };
                let pack = |one_head: TensorBox| TensorBox { heads, rows: packed.tokens, ..one_head };
                let boxes = Boxes { q: pack(boxes.q), o: pack(boxes.o), ..*boxes };
                by_map(driver, problem, pointers, &boxes, grid, packed).map(Arguments::ByMap)
            }
        }
    }

    /// Where they lie.
    pub(crate) fn address(&self) -> *const c_void {
        match self {
            Arguments::ByAddress(params) => ptr::from_ref(params).cast(),
            Arguments::ByMap(params) => ptr::from_ref(params).cast(),
        }
    }
}

fn scale_log2(problem: &Problem) -> f32 {
    (f64::from(problem.scale()) * LOG2_E) as f32
}

fn by_address(problem: &Problem, pointers: &Pointers, longest_first: u32) -> PrefillParams {
    let shape = problem.shape();
    let strides = |operand| problem.region(operand).strides().map(|bytes| bytes / u64::from(problem.dtype().bytes()));
    let [q_batch_stride, q_seq_stride, q_head_stride] = strides(Operand::Q);
    let [k_batch_stride, k_seq_stride, k_head_stride] = strides(Operand::K);
    let [v_batch_stride, v_seq_stride, v_head_stride] = strides(Operand::V);
    let [o_batch_stride, o_seq_stride, o_head_stride] = strides(Operand::O);
    PrefillParams {
        q: pointers.q,
        k: pointers.k,
        v: pointers.v,
        o: pointers.o,
        lse: pointers.lse.unwrap_or(0),
        q_batch_stride,
        q_seq_stride,
        q_head_stride,
        k_batch_stride,
        k_seq_stride,
        k_head_stride,
        v_batch_stride,
        v_seq_stride,
        v_head_stride,
        o_batch_stride,
        o_seq_stride,
        o_head_stride,
        q_len: shape.q_len,
        kv_len: shape.kv_len,
        q_heads: shape.q_heads,
        group_reciprocal: (1_u64 << 32).div_ceil(problem.group().into()),
        longest_first,
        causal: u32::from(problem.mask() == Mask::Causal),
        scale_log2: scale_log2(problem),
    }
}

/// What a tile's rows are: some tokens, of one query head or of all of a group.
struct Packed {
    heads: u32,
    tokens: u32,
}

fn by_map(driver: &Driver, problem: &Problem, pointers: &Pointers, boxes: &Boxes, grid: &Grid, packed: Packed) -> Result<PrefillTmaParams> {
    let map = |operand, copied| {
        let layout = tensor_map::layout(problem, operand, pointers.address(operand), copied);
        driver.encode_tensor_map(&layout).map(TensorMap)
    };
    let shape = problem.shape();
    let (q_tiles, section_heads) = (grid.tiles_of_head(), grid.section_heads(problem));
    let [section_tiles, section, heads, group] = [section_heads * q_tiles, section_heads, grid.heads(), problem.group()].map(Divisor::new);
    let cluster = Divisor::new(grid.cluster());
    Ok(PrefillTmaParams {
        q: map(Operand::Q, boxes.q)?,
        k: map(Operand::K, boxes.k)?,
        v: map(Operand::V, boxes.v)?,
        o: map(Operand::O, boxes.o)?,
        lse: pointers.lse.unwrap_or(0),
        section_tiles_factor: section_tiles.factor,
        section_tiles_shift: section_tiles.shift,
        section_heads_factor: section.factor,
        section_heads_shift: section.shift,
        heads_factor: heads.factor,
        heads_shift: heads.shift,
        group_factor: group.factor,
        group_shift: group.shift,
        cluster_factor: cluster.factor,
        cluster_shift: cluster.shift,
        tiles: grid.tiles() as u32,
        q_tiles,
        section_heads,
        heads: grid.heads(),
        q_len: shape.q_len,
        kv_len: shape.kv_len,
        scale_log2: scale_log2(problem),
        packed_heads: packed.heads,
        tile_tokens: packed.tokens,
    })
}

/// A divisor as the kernels take it: `n / d` is `(2 * n * factor) >> 32 >> shift` for n below 2^31.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    factor: u32,
    shift: u32,
}

impl Divisor {
    /// `d` is at least 1 and at most 2^31. With shift = log2(d), rounded up, the factor is at most 2^32 - 1 unless d is a
    /// power of two, where it is 2^31.
    fn new(d: u32) -> Self {
        let shift = d.next_power_of_two().trailing_zeros();
        let factor = (1_u64 << (31 + shift)).div_ceil(d.into());
        Divisor { factor: u32::try_from(factor).unwrap_or(u32::MAX), shift }
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;

    #[test]
    fn divisors_divide() {
        for d in (1..5000).chain([4369, 65_535, 65_536, 65_537, (1 << 23) - 1, 1 << 23, (1 << 30) + 1]) {
            let Divisor { factor, shift } = Divisor::new(d);
            let near = |n: u64| [n.saturating_sub(1), n, n + 1];
            let numbers =
                [0, 1, 7].into_iter().chain([1, 2, 3, 1000].into_iter().flat_map(|m| near(m * u64::from(d)))).chain(near((1 << 31) - 2));
            for n in numbers.filter(|n| *n < 1 << 31) {
                assert_eq!(((2 * n * u64::from(factor)) >> 32) >> shift, n / u64::from(d), "{n} / {d}");
            }
        }
    }
}
