//! What is run: shapes around the edges of tiles, all layouts, and the five kinds of data at sizes that models use.

use std::collections::BTreeSet;
use std::fmt;

use attnpack::{DType, Entry, Error, Group, Mask, Problem, ProblemBuilder, Schedule, Shape};

use super::data::{Data, Kind};
use super::image::Image;
use super::layout::{Layout, Placement};

/// A problem and its data.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Shape,
    /// Elements of a head of v and o.
    pub v_head_dim: u32,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Factor of the scores; `None`: the default.
    pub scale: Option<f32>,
    /// Kind of data.
    pub kind: Kind,
    /// Where the tensors lie.
    pub layout: Layout,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { batch, q_len, kv_len, q_heads, kv_heads, head_dim } = self.shape;
        write!(
            f,
            "{} b={batch} q={q_len} kv={kv_len} h={q_heads}/{kv_heads} d={head_dim}/{} {} mask, ",
            self.dtype, self.v_head_dim, self.mask
        )?;
        write!(f, "{:?} data, {:?} layout", self.kind, self.layout)?;
        self.scale.map_or(Ok(()), |scale| write!(f, ", scale {scale}"))
    }
}

impl Case {
    /// The problem, at some strides.
    pub fn builder(&self, placement: &Placement) -> ProblemBuilder {
        let [q, k, v, o] = placement.tensors.map(|place| place.strides);
        let builder = Problem::prefill(self.dtype, self.shape).v_head_dim(self.v_head_dim).mask(self.mask);
        let builder = self.scale.map_or(builder, |scale| builder.scale(scale));
        builder.q_strides(q).k_strides(k).v_strides(v).o_strides(o)
    }

    /// The problem and its data in memory.
    ///
    /// # Errors
    /// Those of [`ProblemBuilder::build`].
    pub fn image(&self) -> Result<Image, Error> {
        let placement = Placement::new(self.layout, &self.shape, self.dtype);
        let Shape { q_len, kv_len, q_heads, .. } = self.shape;
        let seed = u64::from(q_len) << 40 | u64::from(kv_len) << 16 | u64::from(q_heads);
        Image::new(self.builder(&placement), placement, &Data::new(self.kind, &self.shape, seed))
    }
}

/// What kernels have in common that serve the same problems: their cases are the same.
#[derive(Clone, Debug)]
pub struct Family {
    dtype: DType,
    /// Elements of a head: of q and k, and of v and o.
    head_dims: [u32; 2],
    group: u32,
    /// Query tokens of a tile.
    token_tiles: BTreeSet<u32>,
    /// Keys of a tile.
    key_tiles: BTreeSet<u32>,
    /// Query tokens and keys of a tile, of kernels that split the keys of a tile.
    split_tiles: BTreeSet<(u32, u32)>,
    /// Whether a kernel takes rows that start on 4 bytes.
    unaligned: bool,
    /// Whether a few cases are enough.
    few: bool,
}

/// Ratios at which kernels are tested that take every ratio.
const RATIOS: [u32; 4] = [1, 2, 3, 5];

/// Further ones, of a few cases each, at which kernels are tested that pack the heads of any group into their tiles: those that
/// fill a tile, leave rows of it to nobody, or leave no room for a second token. They serve no more heads than a tile has rows.
const PACKED_RATIOS: [u32; 7] = [4, 6, 7, 8, 16, 65, 128];

/// Whether the keys of a tile are split among blocks, and its rows are of all heads of a group.
fn splits_keys(entry: &Entry) -> bool {
    matches!(entry.schedule, Schedule::Split { .. })
}

/// How many blocks take neighbouring tiles together, which then end where the last of them ends.
fn neighbours(entry: &Entry) -> u32 {
    if let Schedule::Persistent { cluster, .. } = entry.schedule { cluster } else { 1 }
}

impl Family {
    /// The families of some entries.
    pub fn all(entries: &[&Entry]) -> Vec<Self> {
        let mut families: Vec<Self> = Vec::new();
        for entry in entries {
            let groups = match entry.group {
                Group::Packed(group) => vec![group],
                Group::Any if splits_keys(entry) => [&RATIOS[..], &PACKED_RATIOS].concat(),
                Group::Any => RATIOS.to_vec(),
            };
            for group in groups.into_iter().filter(|group| !splits_keys(entry) || *group <= entry.block_q) {
                let head_dims = [entry.head_dim, entry.v_head_dim];
                let same = |family: &Family| (family.dtype, family.head_dims, family.group) == (entry.dtype, head_dims, group);
                if !families.iter().any(same) {
                    families.push(Family::new(entries, entry.dtype, head_dims, group));
                }
            }
        }
        families
    }

    fn new(entries: &[&Entry], dtype: DType, head_dims: [u32; 2], group: u32) -> Self {
        let serves = |entry: &&&Entry| {
            let ratio_fits = match entry.group {
                Group::Packed(packed) => packed == group,
                Group::Any => !splits_keys(entry) || group <= entry.block_q,
            };
            entry.dtype == dtype && [entry.head_dim, entry.v_head_dim] == head_dims && ratio_fits
        };
        let serving = || entries.iter().filter(serves);
        let tokens = |entry: &&Entry| {
            let is_packed = splits_keys(entry) || entry.group != Group::Any;
            if is_packed { entry.block_q / group } else { entry.block_q * neighbours(entry) }
        };
        Family {
            dtype,
            head_dims,
            group,
            token_tiles: serving().map(tokens).collect(),
            key_tiles: serving().map(|entry| entry.block_kv).collect(),
            split_tiles: serving().filter(|entry| splits_keys(entry)).map(|entry| (tokens(entry), entry.block_kv)).collect(),
            unaligned: serving().any(|entry| entry.copy_bytes < 16),
            few: !RATIOS.contains(&group) && !serving().any(|entry| entry.group == Group::Packed(group)),
        }
    }

    fn case(&self, [batch, q_len, kv_len, kv_heads]: [u32; 4], mask: Mask, kind: Kind, layout: Layout) -> Case {
        let [head_dim, v_head_dim] = self.head_dims;
        let shape = Shape { batch, q_len, kv_len, q_heads: kv_heads * self.group, kv_heads, head_dim };
        Case { dtype: self.dtype, shape, v_head_dim, mask, scale: None, kind, layout }
    }

    /// Lengths around the edges of tiles, with as many, more and fewer keys, and a full mask, in every layout.
    pub fn edges(&self) -> Vec<Case> {
        let around_tiles = if self.few { Vec::new() } else { self.around_tiles() };
        [around_tiles, self.shares()].concat()
    }

    fn around_tiles(&self) -> Vec<Case> {
        let around = |tile: &u32| [tile.saturating_sub(1).max(1), *tile, tile + 1];
        let mut tokens: BTreeSet<u32> = self.token_tiles.iter().flat_map(around).collect();
        tokens.extend([1, 2 * self.token_tiles.last().unwrap_or(&64) + 11]);
        let key_tiles: Vec<u32> = self.key_tiles.iter().copied().collect();
        let mut cases = Vec::new();
        for (n, q_len) in tokens.into_iter().enumerate() {
            let tile = key_tiles[n % key_tiles.len()];
            let more = [1, tile - 1, tile, 2 * tile + 5][n % 4];
            let any = [1, tile - 1, tile, tile + 1, 2 * tile + 17][n % 5];
            let fewer = (q_len / 2 + n as u32 % 2).max(1);
            for (mask, kv_len) in [(Mask::Causal, q_len), (Mask::Causal, q_len + more), (Mask::Causal, fewer), (Mask::Full, any)] {
                self.add_edge(q_len, kv_len, mask, &mut cases);
            }
        }
        cases
    }

    /// For each tile whose keys are split, so many that a cluster of 8 has a step of them for each but the last of its blocks, one
    /// for each, and two for some and none for others; and one step more than a cluster of 5 has blocks.
    fn shares(&self) -> Vec<Case> {
        let lengths = |&(tokens, keys): &(u32, u32)| {
            [7 * keys, 8 * keys - 1, 8 * keys + 1, 13 * keys - 5, 5 * keys + 1].map(|kv_len| (tokens, kv_len))
        };
        let case = |(n, (tokens, kv_len)): (usize, (u32, u32))| {
            let q_len = [1, tokens, tokens + 1][n % 3];
            let mask = if (n + self.group as usize).is_multiple_of(2) { Mask::Causal } else { Mask::Full };
            let kv_heads = if self.group < 16 { 2 } else { 1 };
            let batch = 1 + n as u32 % 2;
            self.case([batch, q_len, kv_len, kv_heads], mask, Kind::ALL[n % 5], Layout::ALIGNED[n % 4])
        };
        self.split_tiles.iter().flat_map(lengths).enumerate().map(case).collect()
    }

    fn add_edge(&self, q_len: u32, kv_len: u32, mask: Mask, cases: &mut Vec<Case>) {
        let n = cases.len();
        let (kind, layout) = (Kind::ALL[(n + n / 5) % 5], Layout::ALIGNED[n % 5]);
        let batch = match (q_len, layout) {
            // One query over two keys says little about accuracy: whether plain was lucky decides.
            (1, _) => 8,
            (_, Layout::SharedCache) => 3,
            _ => 1 + n as u32 % 2,
        };
        let kv_heads = if self.group == 1 { 3 } else { 2 };
        let scale = [None, None, None, Some(0.3), None, None, Some(0.01)][n % 7];
        let case = Case { scale, ..self.case([batch, q_len, kv_len, kv_heads], mask, kind, layout) };
        cases.push(case);
        if self.unaligned && matches!(self.group, 1 | 3) {
            cases.push(Case { layout: Layout::FourBytes, ..case });
        }
    }

    /// Every kind of data at lengths at which errors add up: a prompt, a chunk over a long cache, a full mask.
    pub fn accuracy(&self) -> Vec<Case> {
        if self.few {
            return vec![self.case([1, 131, 517, 1], Mask::Causal, Kind::Normal, Layout::PackedRows)];
        }
        let kv_heads = if self.group > 4 { 1 } else { 2 };
        let mut cases = Vec::new();
        for (kind, layout) in Kind::ALL.into_iter().zip(Layout::ALIGNED) {
            let batch = if layout == Layout::SharedCache { 2 } else { 1 };
            cases.push(self.case([batch, 300, 300, kv_heads], Mask::Causal, kind, layout));
            cases.push(self.case([1, 64, 2048, kv_heads], Mask::Causal, kind, Layout::HeadMajor));
            cases.push(self.case([1, 131, 517, kv_heads], Mask::Full, kind, layout));
        }
        let kind = Kind::ALL[self.group as usize % 5];
        cases.push(self.case([1, 1024, 1024, kv_heads], Mask::Causal, kind, Layout::PackedRows));
        if matches!(self.group, 1 | 3) {
            cases.push(self.case([1, 2048, 2048, 1], Mask::Causal, Kind::Normal, Layout::Contiguous));
        }
        cases
    }

    /// A few of everything, for a glance at a GPU.
    pub fn quick(&self) -> Vec<Case> {
        if self.few {
            return self.shares();
        }
        let tile = self.token_tiles.last().copied().unwrap_or(64);
        let mut cases: Vec<Case> = Kind::ALL
            .into_iter()
            .zip(Layout::ALIGNED)
            .map(|(kind, layout)| self.case([2, tile + 1, tile + 1, 2], Mask::Causal, kind, layout))
            .collect();
        cases.push(self.case([1, 1, 129, 2], Mask::Causal, Kind::Normal, Layout::HeadMajor));
        cases.push(self.case([1, 100, 300, 2], Mask::Causal, Kind::Growing, Layout::PackedRows));
        cases.push(self.case([1, 200, 77, 1], Mask::Causal, Kind::Normal, Layout::Gaps));
        cases.push(self.case([1, 130, 190, 1], Mask::Full, Kind::Sink, Layout::Contiguous));
        if self.unaligned {
            cases.push(self.case([2, 130, 190, 1], Mask::Causal, Kind::Normal, Layout::FourBytes));
        }
        cases
    }
}
