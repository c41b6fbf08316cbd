//! Inputs: the five kinds of data on which numerical quality is judged.

use std::f32::consts::TAU;

use attnpack::Shape;

/// A kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Independent, standard normal.
    Normal,
    /// An attention sink: every query points at the key of token 0, which takes most of the mass.
    Sink,
    /// Peaked scores: normal inputs times 4.
    Peaked,
    /// Keys that grow along the sequence: the maximum of a row moves to the right.
    Growing,
    /// Keys that shrink along the sequence: the maximum of a row is found early.
    Shrinking,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Normal, Kind::Sink, Kind::Peaked, Kind::Growing, Kind::Shrinking];
}

/// Queries, keys and values, each `[batch, seq, heads, head_dim]` without gaps, not yet rounded to an element type.
#[derive(Clone)]
pub struct Data {
    /// Queries.
    pub q: Vec<f32>,
    /// Keys.
    pub k: Vec<f32>,
    /// Values.
    pub v: Vec<f32>,
}

impl Data {
    /// The same kind, shape and seed give the same data everywhere.
    pub fn new(kind: Kind, shape: &Shape, seed: u64) -> Self {
        let Shape { batch, q_len, kv_len, q_heads, kv_heads, head_dim } = *shape;
        let mut normal = normal(seed);
        let mut tensor =
            |seq, heads| -> Vec<f32> { normal.by_ref().take(batch as usize * seq as usize * heads as usize * head_dim as usize).collect() };
        let mut data = Data { q: tensor(q_len, q_heads), k: tensor(kv_len, kv_heads), v: tensor(kv_len, kv_heads) };
        let key_elems = kv_heads as usize * head_dim as usize;
        // A number from 0 at the first token to 1 at the last.
        let place = |element: usize| (element / key_elems % kv_len as usize) as f32 / (kv_len.max(2) - 1) as f32;
        match kind {
            Kind::Normal => {}
            Kind::Sink => data.add_sink(shape),
            Kind::Peaked => data.each_mut().into_iter().flatten().for_each(|value| *value *= 4.0),
            Kind::Growing => data.k.iter_mut().enumerate().for_each(|(n, value)| *value *= 0.1 + 3.9 * place(n)),
            Kind::Shrinking => data.k.iter_mut().enumerate().for_each(|(n, value)| *value *= 4.0 - 3.9 * place(n)),
        }
        data
    }

    fn each_mut(&mut self) -> [&mut Vec<f32>; 3] {
        [&mut self.q, &mut self.k, &mut self.v]
    }

    /// Scores of token 0 become 1.5 sqrt(head_dim), give or take 3: the others are about 0, give or take 1.
    fn add_sink(&mut self, shape: &Shape) {
        let (kv_len, kv_heads, head_dim) = (shape.kv_len as usize, shape.kv_heads as usize, shape.head_dim as usize);
        let sign = |element: usize| if (element % head_dim).is_multiple_of(3) { -1.0 } else { 1.0 };
        self.q.iter_mut().enumerate().for_each(|(n, q)| *q += 0.5 * sign(n));
        for keys in self.k.chunks_mut(kv_len * kv_heads * head_dim) {
            keys[..kv_heads * head_dim].iter_mut().enumerate().for_each(|(n, k)| *k = 3.0 * sign(n));
        }
    }
}

/// An endless sequence of standard normal numbers, the same for the same seed.
pub fn normal(seed: u64) -> impl Iterator<Item = f32> {
    Normal { state: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1), spare: None }
}

/// xorshift64*, then Box and Muller's transform.
struct Normal {
    state: u64,
    spare: Option<f32>,
}

impl Normal {
    /// Above 0 and at most 1.
    fn uniform(&mut self) -> f32 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        ((self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) + 1) as f32 / (1 << 24) as f32
    }
}

impl Iterator for Normal {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        self.spare.take().or_else(|| {
            let (radius, (sin, cos)) = ((-2.0 * self.uniform().ln()).sqrt(), (TAU * self.uniform()).sin_cos());
            self.spare = Some(radius * sin);
            Some(radius * cos)
        })
    }
}
