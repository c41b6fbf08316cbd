//! Every kernel of the catalogue that a GPU can run, each to be launched by itself: what dispatch would choose does not
//! matter here. An entry that has both machine code and PTX is two kernels.

use std::slice;

use attnpack::{Code, DType, Device, Entry, Error, Group, Mask, MaskSupport, Policy, Problem, Ptx, Schedule, Shape};

use super::compare::LSE_TOLERANCE;

/// An entry, and one code of it.
pub struct Kernel {
    /// The entry.
    pub entry: &'static Entry,
    /// What is loaded for it.
    pub code: Code,
    /// A device that knows this kernel only.
    pub device: Device,
}

impl Kernel {
    /// All that the device can run, in the order of the catalogue; what splits the keys of a tile, once for each size of a
    /// cluster.
    ///
    /// # Errors
    /// An entry does not serve what its description says.
    pub fn all(device: &Device) -> Result<Vec<Self>, Error> {
        let entries = device.catalog().iter().flat_map(in_each_way);
        let kernels = entries.flat_map(|entry| [Self::new(device, entry), Self::compiled(device, entry)]);
        kernels.filter_map(Result::transpose).collect()
    }

    /// The entry as machine code, if the build has some for the device.
    fn new(device: &Device, entry: &'static Entry) -> Result<Option<Self>, Error> {
        Self::forced(device.clone().with_policy(Policy::CubinOnly), entry)
    }

    /// The entry through the driver's just-in-time compiler, if the build has its PTX.
    fn compiled(device: &Device, entry: &'static Entry) -> Result<Option<Self>, Error> {
        let Some(Ptx { text, version, target, checked_by }) = entry.ptx else { return Ok(None) };
        let ptx = Some(Ptx { text, version, target, checked_by });
        // A catalogue lives as long as the process.
        let alone = Box::leak(Box::new(Entry { cubins: &[], ptx, ..*entry }));
        Self::forced(device.clone().with_policy(Policy::CubinFirst), alone)
    }

    /// The only entry of a catalogue.
    fn forced(device: Device, entry: &'static Entry) -> Result<Option<Self>, Error> {
        // SAFETY: image and description are those of a packaged entry.
        let device = unsafe { device.with_catalog(slice::from_ref(entry)) };
        match device.supports(&served_by(entry)?) {
            Ok(choice) => Ok(Some(Kernel { entry, code: choice.code, device })),
            Err(Error::JitRefused { .. } | Error::UnsupportedDevice { .. } | Error::SharedMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A mask that it serves.
    pub fn mask(&self) -> Mask {
        mask_of(self.entry)
    }

    /// How far its LSE may be off, in nats. Hopper's kernels sum weights that are rounded to 16 bits, as they go into the output
    /// and as parts are merged by them; where one key makes up a row, the rounding shows: half a unit of bf16, 3.9e-3, and
    /// 1.35e-3 that the sums are lowered by on average.
    pub fn lse_tolerance(&self) -> f64 {
        let sums_rounded = self.entry.schedule.boxes().is_some();
        if sums_rounded && self.entry.dtype == DType::BF16 { 5.5e-3 } else { LSE_TOLERANCE }
    }

    /// Name and code.
    pub fn label(&self) -> String {
        let code = match self.code {
            Code::Cubin(cubin) => cubin.arch.to_string(),
            Code::Ptx(_) => "PTX".to_owned(),
        };
        match self.entry.schedule {
            Schedule::Split { clusters: [blocks], .. } => format!("{} [{code}, clusters of {blocks}]", self.entry.name),
            Schedule::Persistent { together: [blocks], .. } if self.entry.blocks_per_sm > 1 => {
                format!("{} [{code}, {blocks} a multiprocessor]", self.entry.name)
            }
            _ => format!("{} [{code}]", self.entry.name),
        }
    }
}

/// An entry with one size of a cluster, or one number of blocks for a multiprocessor, for each that it can have.
fn in_each_way(entry: &'static Entry) -> Vec<&'static Entry> {
    match entry.schedule {
        Schedule::Split { clusters: numbers, .. } | Schedule::Persistent { together: numbers, .. } => {
            numbers.iter().map(|blocks| with_blocks(entry, blocks)).collect()
        }
        Schedule::Grid => vec![entry],
    }
}

/// An entry that splits the keys of a tile among `blocks` blocks, or whose blocks stay, `blocks` on a multiprocessor; no fewer and
/// no more.
pub fn with_blocks(entry: &Entry, blocks: &'static u32) -> &'static Entry {
    let blocks = slice::from_ref(blocks);
    let schedule = match entry.schedule {
        Schedule::Split { boxes, .. } => Schedule::Split { boxes, clusters: blocks },
        Schedule::Persistent { boxes, cluster, .. } => Schedule::Persistent { boxes, cluster, together: blocks },
        Schedule::Grid => Schedule::Grid,
    };
    // A catalogue lives as long as the process.
    Box::leak(Box::new(Entry { schedule, ..*entry }))
}

/// Whether an entry computes such problems in rows that start on multiples of `alignment` bytes. Said again here, so that
/// a dispatch that refuses too much is a failure and not a case less.
pub fn serves(entry: &Entry, problem: &Problem, alignment: u32) -> bool {
    let Entry { dtype, head_dim, v_head_dim, group, mask, copy_bytes, block_q, schedule, .. } = *entry;
    dtype == problem.dtype()
        && (head_dim, v_head_dim) == (problem.shape().head_dim, problem.v_head_dim())
        && (group == Group::Any || group == Group::Packed(problem.group()))
        && (!matches!(schedule, Schedule::Split { .. }) || problem.group() <= block_q)
        && (mask == MaskSupport::Any || mask == only(problem.mask()))
        && copy_bytes <= alignment
}

/// A mask that an entry serves: the causal one, if it does.
fn mask_of(entry: &Entry) -> Mask {
    if entry.mask == MaskSupport::Full { Mask::Full } else { Mask::Causal }
}

/// What serves a mask alone.
fn only(mask: Mask) -> MaskSupport {
    match mask {
        Mask::Causal => MaskSupport::Causal,
        Mask::Full => MaskSupport::Full,
    }
}

/// A problem that the entry says it serves.
fn served_by(entry: &Entry) -> Result<Problem, Error> {
    let q_heads = if let Group::Packed(group) = entry.group { group } else { 1 };
    let shape = Shape { batch: 1, q_len: 1, kv_len: 1, q_heads, kv_heads: 1, head_dim: entry.head_dim };
    Problem::prefill(entry.dtype, shape).v_head_dim(entry.v_head_dim).mask(mask_of(entry)).build()
}
