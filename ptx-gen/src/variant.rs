//! What a variant is: its names, the sizes that follow from its tiling, and what makes a tiling legal.

use std::fmt;

use crate::params::Layout;
use crate::ptx::builder::{Header, Kernel};
use crate::ptx::inst::Target;

/// Element type of q, k, v and o.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
}

impl DType {
    /// Size of an element in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            DType::F16 | DType::Bf16 => 2,
            DType::F32 => 4,
        }
    }

    /// Bytes that keep rows apart in shared memory; 0: tiles are swizzled instead. Splitting f32 operands
    /// leaves no registers for the addresses of a swizzle.
    pub const fn row_padding_bytes(self) -> u32 {
        match self {
            DType::F16 | DType::Bf16 => 0,
            DType::F32 => 16,
        }
    }
}

/// How query heads meet their KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The query heads of a group are packed into one tile: a row is a (token, head) pair, and the
    /// variant serves this ratio only.
    Packed(u32),
    /// The ratio is a launch parameter. A tile holds rows of one query head; where keys are split, (token, head) pairs.
    Any,
}

/// Masks that a variant serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// The causal mask only, aligned to the bottom right.
    Causal,
    /// No mask: every key is visible.
    Full,
    /// Causal or full, chosen by a launch parameter.
    Any,
}

/// Where a tiling serves. The classes differ in the shared memory that a block may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiles {
    /// 163 KB and more: sm_80, sm_90, sm_100.
    Large,
    /// 99 KB: sm_86, sm_89, sm_120.
    Small,
    /// Fits 99 KB and is used everywhere.
    Everywhere,
    /// 227 KB, with the instructions of Hopper: sm_90a.
    Hopper,
}

impl Tiles {
    /// Largest dynamic shared memory of a block, in bytes.
    pub const fn shared_limit(self) -> u32 {
        match self {
            Tiles::Large => 163 * 1024,
            Tiles::Small | Tiles::Everywhere => 99 * 1024,
            Tiles::Hopper => 227 * 1024,
        }
    }

    /// Architectures whose cubins use this tiling.
    pub fn archs(self) -> &'static [&'static str] {
        match self {
            Tiles::Large => &["sm_80", "sm_90", "sm_100"],
            Tiles::Small => &["sm_86", "sm_89", "sm_120"],
            Tiles::Hopper => &["sm_90a"],
            Tiles::Everywhere => &["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"],
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Tiles::Large | Tiles::Everywhere => "sm80",
            Tiles::Small => "sm86",
            Tiles::Hopper => "sm90a",
        }
    }
}

/// What a tiling is made for, among those of one head_dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Large tiles, for problems that fill the GPU.
    Main,
    /// More query rows a block, which read keys and values less often: for many tiles of many keys.
    Long,
    /// Large tiles, two neighbours of a head at once, for the two blocks of a cluster. They keep in step, so that keys and values
    /// leave L2 once for both: that takes less power, of which the GPU is short where many keys are seen.
    Paired,
    /// Fewer query rows a block: under the causal mask fewer keys that a row does not see, which counts over few keys.
    Medium,
    /// Half the query rows a block, or less: more blocks, for problems that do not.
    Short,
    /// Large tiles whose keys are split among the blocks of a cluster: for few rows and many keys.
    Split,
    /// The same with half the query rows.
    ShortSplit,
    /// Rows that start on 4 bytes instead of 16.
    Unaligned,
}

impl Form {
    /// Whether the keys of a tile are split among the blocks of a cluster.
    pub const fn splits_keys(self) -> bool {
        matches!(self, Form::Split | Form::ShortSplit)
    }

    /// Blocks of a cluster that take neighbouring tiles together; 1 where each takes its own.
    pub const fn neighbours(self) -> u32 {
        if matches!(self, Form::Paired) { 2 } else { 1 }
    }

    /// Alignment in bytes that rows of q, k, v and o must have: the size of one copy.
    pub const fn copy_bytes(self) -> u32 {
        match self {
            Form::Main | Form::Long | Form::Paired | Form::Medium | Form::Short | Form::Split | Form::ShortSplit => 16,
            Form::Unaligned => 4,
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Form::Main => "",
            Form::Long => "_long",
            Form::Paired => "_paired",
            Form::Medium => "_medium",
            Form::Short => "_short",
            Form::Split => "_split",
            Form::ShortSplit => "_short_split",
            Form::Unaligned => "_unaligned",
        }
    }
}

/// Tile sizes of a kernel and the hardware that they are for.
#[derive(Clone, Copy, Debug)]
pub struct Tiling {
    /// Elements of a row of q and k.
    pub head_dim: u32,
    /// Elements of a row of v and o; `head_dim` in most models.
    pub value_dim: u32,
    /// Query rows of a tile.
    pub block_q: u32,
    /// Keys of a step.
    pub block_kv: u32,
    /// Warps of a block; each owns `block_q / warps` rows.
    pub warps: u32,
    /// What it is made for.
    pub form: Form,
    /// Blocks meant to share a multiprocessor.
    pub blocks_per_sm: u32,
    /// Where it serves.
    pub tiles: Tiles,
}

impl Tiling {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        self.warps * 32
    }

    /// m16 fragments that a warp owns.
    pub const fn fragments_per_warp(&self) -> u32 {
        self.block_q / (16 * self.warps)
    }
}

/// What the copy engine moves at once, of a tensor map of rank 5: `[1, chunks, rows, 1, columns]` elements. Where keys are
/// split, the launch divides the rows of q and o into tokens and the heads of a group.
#[derive(Clone, Copy, Debug)]
pub struct TensorBox {
    /// Columns of a chunk of a row: a swizzle span of 128, 64 or 32 bytes, two an element.
    pub columns: u32,
    /// Tokens.
    pub rows: u32,
    /// Chunks.
    pub chunks: u32,
}

/// The boxes of a kernel's tensor maps.
#[derive(Clone, Copy, Debug)]
pub struct Boxes {
    /// Of the queries.
    pub q: TensorBox,
    /// Of the keys.
    pub k: TensorBox,
    /// Of the values.
    pub v: TensorBox,
    /// Of the output.
    pub o: TensorBox,
}

/// How a family's kernels are launched.
#[derive(Clone, Copy, Debug)]
pub enum Launch {
    /// A block for each tile; tensors by pointer and strides.
    Grid,
    /// Blocks that stay, as many as the GPU holds at once or fewer, and no more than tiles; or a cluster of blocks for each tile.
    /// Tensors by maps.
    ByMap {
        /// The boxes of the maps.
        boxes: fn(&Variant) -> Boxes,
        /// The sizes that a cluster can have, for a tiling whose tiles take one each.
        clusters: fn(&Tiling) -> Option<&'static [u32]>,
    },
}

/// The architecture of GPUs of compute capability 9.0, without what these alone have.
const HOPPER: &str = "sm_90";

/// Kernel family: one file of `kernels/` describes itself with one of these.
#[derive(Debug)]
pub struct Family {
    /// Beginning of its variants' names.
    pub name: &'static str,
    /// The `.target` of its PTX.
    pub target: Target,
    /// Its parameter block.
    pub params: &'static Layout,
    /// How its kernels are launched.
    pub launch: Launch,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: fn(&Tiling, DType) -> u32,
    /// Writes a variant's kernel.
    pub build: fn(&Variant, &Kernel),
}

/// One kernel to generate.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Kernel family.
    pub family: &'static Family,
    /// Element type.
    pub dtype: DType,
    /// Ratio of query to KV heads.
    pub group: Group,
    /// Masks it serves.
    pub mask: Mask,
    /// Tile sizes.
    pub tiling: Tiling,
    /// Published models with this head_dim and ratio.
    pub models: &'static str,
    /// Whether a kernel for Hopper serves all that it serves, and faster.
    pub superseded_on_hopper: bool,
}

impl Variant {
    /// Architectures to build cubins for, as ptxas names them.
    pub fn archs(&self) -> impl Iterator<Item = &'static str> + use<> {
        let superseded = self.superseded_on_hopper;
        self.tiling.tiles.archs().iter().copied().filter(move |arch| !(superseded && *arch == HOPPER))
    }

    /// The one name for everything: PTX entry, catalogue key, test label, benchmark id.
    pub fn name(&self) -> String {
        let Tiling { head_dim, value_dim, .. } = self.tiling;
        let value_suffix = if value_dim == head_dim { String::new() } else { format!("v{value_dim}") };
        format!(
            "{}_{}_d{head_dim}{value_suffix}_g{}_{}{}_{}",
            self.family.name,
            self.dtype,
            self.group,
            match self.mask {
                Mask::Causal => "causal",
                Mask::Full => "full",
                Mask::Any => "anymask",
            },
            self.tiling.form.suffix(),
            self.tiling.tiles.suffix()
        )
    }

    /// Dynamic shared memory of a block in bytes.
    pub fn shared_bytes(&self) -> u32 {
        (self.family.shared_bytes)(&self.tiling, self.dtype)
    }

    /// The kernel.
    pub fn build(&self) -> Kernel {
        let kernel = Kernel::new(Header {
            name: self.name(),
            target: self.family.target,
            threads: self.tiling.threads(),
            blocks_per_sm: self.tiling.blocks_per_sm,
            params: self.family.params,
        });
        (self.family.build)(self, &kernel);
        kernel
    }

    /// Whether its PTX is the last resort on a GPU that no cubin serves: fits everywhere, takes any ratio.
    pub fn is_portable(&self) -> bool {
        matches!(self.tiling.tiles, Tiles::Small | Tiles::Everywhere) && self.group == Group::Any
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
        })
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::Main => "main",
            Form::Long => "long",
            Form::Paired => "paired",
            Form::Medium => "medium",
            Form::Short => "short",
            Form::Split => "split",
            Form::ShortSplit => "short_split",
            Form::Unaligned => "unaligned",
        })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Group::Packed(heads) => write!(f, "{heads}"),
            Group::Any => f.write_str("any"),
        }
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mask::Causal => "causal",
            Mask::Full => "full",
            Mask::Any => "any",
        })
    }
}
