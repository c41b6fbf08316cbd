//! The packaged kernels, as data.

use std::fmt;

use crate::shape::DType;

/// One kernel variant: everything that dispatch and launch need to know about it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Name of the variant, of its files and of its entry point.
    pub name: &'static str,
    /// How it works: `prefill_mma` is prefill with `mma.sync` and `cp.async`, for Ampere and newer; `prefill_wgmma` with
    /// `wgmma`, tensor copies and specialised warps, for Hopper.
    pub family: &'static str,
    /// Element type of q, k, v and o.
    pub dtype: DType,
    /// Elements of a head of q and k.
    pub head_dim: u32,
    /// Elements of a head of v and o.
    pub v_head_dim: u32,
    /// Ratios of query heads to KV heads that it serves.
    pub group: Group,
    /// Masks that it serves.
    pub mask: MaskSupport,
    /// Alignment of row starts that it needs, in bytes: 16 or 4.
    pub copy_bytes: u32,
    /// Rows of a tile: query tokens of one head, or (token, head) pairs where a group is packed or keys are split.
    pub block_q: u32,
    /// Keys of a step.
    pub block_kv: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks for which a multiprocessor has room, on the GPUs that it was made for.
    pub blocks_per_sm: u32,
    /// How tiles are shared out among blocks.
    pub schedule: Schedule,
    /// Published models whose heads it was made for: with this head_dim and ratio, or without groups where it takes every ratio.
    pub models: &'static str,
    /// Machine code, one image per architecture.
    pub cubins: &'static [Cubin],
    /// Text for the driver's just-in-time compiler, where the build embeds it.
    pub ptx: Option<Ptx>,
}

/// Machine code of a kernel for one architecture.
#[derive(Debug)]
pub struct Cubin {
    /// What it runs on: the same major version, and a minor version that is not older.
    pub arch: Arch,
    /// The ELF image.
    pub image: &'static [u8],
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes spilled to local memory: stores and loads.
    pub spill_bytes: u32,
    /// The assembler, such as `ptxas 13.5.37`.
    pub checked_by: &'static str,
}

/// PTX of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Ptx {
    /// The text.
    pub text: &'static str,
    /// PTX ISA version that a driver must know.
    pub version: (u32, u32),
    /// The oldest architecture that can run it.
    pub target: Arch,
    /// The assembler that accepted it at build time, if there was one.
    pub checked_by: Option<&'static str>,
}

/// An architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Major version of the compute capability.
    pub major: u32,
    /// Minor version of the compute capability.
    pub minor: u32,
    /// Architecture-specific code, such as `sm_90a`: runs on exactly this capability.
    pub specific: bool,
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Arch { major, minor, specific } = self;
        write!(f, "sm_{major}{minor}{}", if *specific { "a" } else { "" })
    }
}

/// Ratios of query heads to KV heads that a kernel serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// This ratio only: the query heads of a group are packed into one tile.
    Packed(u32),
    /// Every ratio: a launch parameter. Of a kernel that splits keys every one up to [`Entry::block_q`], for its tiles have the
    /// rows of a token's heads.
    Any,
}

/// Masks that a kernel serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskSupport {
    /// Causal only.
    Causal,
    /// Full only.
    Full,
    /// Causal and full: a launch parameter.
    Any,
}

/// How the tiles of a problem are shared out among blocks, and how a kernel addresses tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// A block for each tile. Tensors by address and strides.
    Grid,
    /// One block or some for each multiprocessor, in whole clusters, which stay and claim tiles, and no more than there are
    /// tiles. Tensors by tensor maps.
    Persistent {
        /// Of the tensor maps.
        boxes: Boxes,
        /// Blocks of a cluster, which take neighbouring tiles of a head together; 1: each takes its own.
        cluster: u32,
        /// How many blocks a multiprocessor can be given; dispatch picks one number for each launch.
        together: &'static [u32],
    },
    /// A cluster of blocks for each tile; each block takes a share of its keys. A tile has the query tokens of all heads of a
    /// group, as many as there are rows for. Tensors by tensor maps.
    Split {
        /// Of the tensor maps; those of q and o for one head.
        boxes: Boxes,
        /// Sizes that a cluster can have; dispatch picks one for each launch.
        clusters: &'static [u32],
    },
}

impl Schedule {
    /// The boxes of the tensor maps, of a kernel that addresses tensors by them.
    pub fn boxes(&self) -> Option<&Boxes> {
        match self {
            Schedule::Grid => None,
            Schedule::Persistent { boxes, .. } | Schedule::Split { boxes, .. } => Some(boxes),
        }
    }
}

/// The boxes of a kernel's tensor maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What the copy engine moves at once: rows of a head or of a group of them, cut into chunks of columns that lie one after
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorBox {
    /// Columns of a chunk; their bytes are the span of the swizzle.
    pub columns: u32,
    /// Heads: one in the catalogue. Where keys are split, a launch divides the rows of q and o into heads of a group and tokens.
    pub heads: u32,
    /// Tokens.
    pub rows: u32,
    /// Chunks of a row.
    pub chunks: u32,
}

/// How the packaged kernels were built.
#[derive(Debug)]
pub struct Build {
    /// Version of the ptxas that checked and assembled them; `None`: PTX only, checked by nothing.
    pub ptxas: Option<&'static str>,
    /// Architectures that were enabled.
    pub archs: &'static [Arch],
    /// Whether every warning was an error (`ATTNPACK_STRICT=1`).
    pub strict: bool,
}

/// Every kernel of this build.
///
/// ```
/// for entry in attnpack::catalog() {
///     println!("{} for {}", entry.name, entry.models);
/// }
/// ```
pub fn catalog() -> &'static [Entry] {
    generated::ENTRIES
}

/// How the kernels of [`catalog`] were built.
pub fn build_info() -> &'static Build {
    &generated::BUILD
}

mod generated {
    //! Written by the build script.

    #[allow(unused_imports, reason = "a catalogue without PTX, or without cubins, needs fewer")]
    use super::{Arch, Boxes, Build, Cubin, DType, Entry, Group, MaskSupport, Ptx, Schedule, TensorBox};

    /// A cubin of `OUT_DIR`, aligned as the driver likes it.
    #[allow(unused_macros, reason = "a build without ptxas has no cubins")]
    macro_rules! cubin {
        ($path:expr) => {{
            #[repr(C, align(64))]
            struct Aligned<B: ?Sized>(B);
            const IMAGE: &Aligned<[u8]> = &Aligned(*include_bytes!($path));
            &IMAGE.0
        }};
    }

    include!(concat!(env!("OUT_DIR"), "/catalog.rs"));
}
