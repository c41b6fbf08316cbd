//! Every kernel of the catalogue that a GPU can run, each to be launched by itself: what dispatch would choose does not
//! matter here. An entry that has both machine code and PTX is two kernels.

use std::slice;

use attnpack::{Code, Device, Entry, Error, Group, Mask, MaskSupport, Policy, Problem, Ptx, Shape};

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
    /// All that the device can run, in the order of the catalogue.
    ///
    /// # Errors
    /// An entry does not serve what its description says.
    pub fn all(device: &Device) -> Result<Vec<Self>, Error> {
        let entries = device.catalog().iter();
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

    /// Name and code.
    pub fn label(&self) -> String {
        match self.code {
            Code::Cubin(cubin) => format!("{} [{}]", self.entry.name, cubin.arch),
            Code::Ptx(_) => format!("{} [PTX]", self.entry.name),
        }
    }
}

/// Whether an entry computes such problems in rows that start on multiples of `alignment` bytes. Said again here, so that
/// a dispatch that refuses too much is a failure and not a case less.
pub fn serves(entry: &Entry, problem: &Problem, alignment: u32) -> bool {
    let Entry { dtype, head_dim, group, mask, copy_bytes, .. } = *entry;
    dtype == problem.dtype()
        && head_dim == problem.shape().head_dim
        && (group == Group::Any || group == Group::Packed(problem.group()))
        && (mask == MaskSupport::Any || problem.mask() == Mask::Causal)
        && copy_bytes <= alignment
}

/// A problem that the entry says it serves.
fn served_by(entry: &Entry) -> Result<Problem, Error> {
    let q_heads = if let Group::Packed(group) = entry.group { group } else { 1 };
    let shape = Shape { batch: 1, q_len: 1, kv_len: 1, q_heads, kv_heads: 1, head_dim: entry.head_dim };
    Problem::prefill(entry.dtype, shape).mask(Mask::Causal).build()
}
