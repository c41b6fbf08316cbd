//! Real activations, embedded: a program that includes this module carries them.

use attnpack::{DType, Error, Mask, Problem, Shape, Strides};
use safetensors::SafeTensors;

use super::data::Data;
use super::image::Image;
use super::layout::{Layout, Placement};

/// Query, key and value projections of one layer of a model, after RoPE, as an engine has them: packed.
pub struct Activations {
    /// Where they come from.
    pub name: &'static str,
    /// Batch 1, as many keys as queries.
    pub shape: Shape,
    /// `[tokens, columns]`: a row holds the heads of q, then those of k, then those of v.
    pub qkv: Vec<f32>,
    /// The attention of these, causal, computed in float64 elsewhere: `[tokens, q_heads, head_dim]`.
    pub o: Option<Vec<f32>>,
}

impl Activations {
    /// Layer 14 of SmolLM2-135M: 197 tokens.
    ///
    /// # Errors
    /// The embedded file is damaged.
    pub fn layer_14() -> Result<Self, String> {
        const FILE: &[u8] = include_bytes!("../fixtures/smollm2_l14_m197_packed.safetensors");
        Self::parse("SmolLM2-135M, layer 14", FILE)
    }

    /// Layer 29, the last of SmolLM2-135M: 131 tokens.
    ///
    /// # Errors
    /// The embedded file is damaged.
    pub fn layer_29() -> Result<Self, String> {
        const FILE: &[u8] = include_bytes!("../fixtures/smollm2_l29_m131_packed.safetensors");
        Self::parse("SmolLM2-135M, layer 29", FILE)
    }

    fn parse(name: &'static str, file: &[u8]) -> Result<Self, String> {
        let tensors = SafeTensors::deserialize(file).map_err(|error| format!("{name}: {error}"))?;
        let values = |tensor: &str| {
            let bytes = tensors.tensor(tensor).map_err(|error| format!("{name}: {error}"))?.data().to_vec();
            Ok::<_, String>(super::element::decode(DType::F32, &bytes))
        };
        let qkv = values("qkv")?;
        let (q_heads, kv_heads, head_dim) = (9, 3, 64);
        let tokens = qkv.len() as u32 / ((q_heads + 2 * kv_heads) * head_dim);
        let shape = Shape { batch: 1, q_len: tokens, kv_len: tokens, q_heads, kv_heads, head_dim };
        Ok(Activations { name, shape, qkv, o: values("o").ok() })
    }

    /// Elements of a packed row.
    pub fn columns(&self) -> usize {
        ((self.shape.q_heads + 2 * self.shape.kv_heads) * self.shape.head_dim) as usize
    }

    /// Columns at which k and v start; q starts at 0.
    pub fn starts(&self) -> [usize; 2] {
        let Shape { q_heads, kv_heads, head_dim, .. } = self.shape;
        [q_heads, q_heads + kv_heads].map(|heads| (heads * head_dim) as usize)
    }

    /// Strides of q, k and v.
    pub fn strides(&self) -> Strides {
        Strides::packed_rows(self.columns() as u64, self.shape.head_dim, self.shape.q_len)
    }

    /// The tensors, each without gaps.
    pub fn unpacked(&self) -> Data {
        let [k, v] = self.starts();
        let columns =
            |range: std::ops::Range<usize>| self.qkv.chunks(self.columns()).flat_map(|row| &row[range.clone()]).copied().collect();
        Data { q: columns(0..k), k: columns(k..v), v: columns(v..self.columns()) }
    }

    /// The activations in an element type, packed, with o in the same rows.
    ///
    /// # Errors
    /// Those of [`attnpack::ProblemBuilder::build`].
    pub fn image(&self, dtype: DType) -> Result<Image, Error> {
        let placement = Placement::new(Layout::PackedRows, &self.shape, dtype);
        let [q, k, v, o] = placement.tensors.map(|place| place.strides);
        let builder = Problem::prefill(dtype, self.shape).mask(Mask::Causal).q_strides(q).k_strides(k).v_strides(v).o_strides(o);
        Image::new(builder, placement, &self.unpacked())
    }
}
