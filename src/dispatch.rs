//! Picks the kernel for a problem: a pure function over a catalogue and a device's capability.

use std::fmt;

use crate::catalog::{Arch, Cubin, Entry, Group, MaskSupport, Ptx, Schedule};
use crate::cost;
use crate::error::Result;
use crate::grid::Grid;
use crate::launch::Pointers;
use crate::problem::Problem;
use crate::refusal;
use crate::shape::{Mask, Operand};
use crate::tensor_map;

/// What decides which code a device can run. [`crate::Device::capability`] has that of a real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capability {
    /// Major version of the compute capability.
    pub major: u32,
    /// Minor version of the compute capability.
    pub minor: u32,
    /// The most shared memory that a block can have when it asks for it.
    pub shared_optin_bytes: u32,
    /// Multiprocessors: what the work of a launch is shared out among.
    pub multiprocessors: u32,
}

impl Capability {
    /// The cargo feature of this crate whose machine code suits a device best; `None` where there is none.
    pub fn cargo_feature(&self) -> Option<&'static str> {
        const FEATURES: [(u32, u32, &str); 6] =
            [(8, 9, "sm_89"), (8, 6, "sm_86"), (8, 0, "sm_80"), (9, 0, "sm_90"), (10, 0, "sm_100"), (12, 0, "sm_120")];
        let suits = |&&(major, minor, _): &&(u32, u32, &str)| major == self.major && minor <= self.minor;
        FEATURES.iter().find(suits).map(|(.., feature)| *feature)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// Whether the driver's just-in-time compiler may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Machine code where the build has it, otherwise PTX, which the driver compiles when it is first loaded:
    /// some hundred milliseconds per kernel and context, reported by [`crate::jit_stats`].
    #[default]
    CubinFirst,
    /// Machine code only: what would need a compilation is [`crate::Error::JitRefused`].
    CubinOnly,
}

/// The largest power of two, at most 16, that divides the address of every row of q, k, v and o, in bytes.
///
/// The strides of dimensions of extent 1 do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    bytes: u32,
    /// Addresses of q, k, v and o, to name the culprit.
    pub(crate) addresses: [u64; 4],
}

impl Alignment {
    /// What the problem's strides allow, for addresses that are aligned, as allocations are.
    pub fn of_strides(problem: &Problem) -> Self {
        Self::new(problem, [0; 4])
    }

    /// What strides and addresses allow.
    pub fn of(problem: &Problem, pointers: &Pointers) -> Self {
        Self::new(problem, Operand::STRIDED.map(|operand| pointers.address(operand)))
    }

    fn new(problem: &Problem, addresses: [u64; 4]) -> Self {
        let bits = addresses.iter().fold(problem.stride_bits() | 16, |bits, address| bits | address);
        Alignment { bytes: 1 << bits.trailing_zeros(), addresses }
    }

    /// The alignment.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

/// The code of an entry that a device runs.
#[derive(Clone, Copy, Debug)]
pub enum Code {
    /// Machine code.
    Cubin(&'static Cubin),
    /// Text that the driver compiles.
    Ptx(&'static Ptx),
}

impl Code {
    fn arch(&self) -> Arch {
        match self {
            Code::Cubin(cubin) => cubin.arch,
            Code::Ptx(ptx) => ptx.target,
        }
    }
}

/// A kernel that serves a problem on a device. Its text says why it was chosen.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The kernel.
    pub entry: &'static Entry,
    /// The code that is loaded for it.
    pub code: Code,
    /// Place of the entry in its catalogue.
    pub(crate) index: usize,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { name, group, copy_bytes, block_q, block_kv, schedule, .. } = self.entry;
        write!(f, "{name}: ")?;
        match self.code {
            Code::Cubin(cubin) => write!(f, "machine code for {} by {}", cubin.arch, cubin.checked_by)?,
            Code::Ptx(ptx) if ptx.target.specific => write!(f, "PTX for {}, compiled by the driver", ptx.target)?,
            Code::Ptx(ptx) => write!(f, "PTX for {} or newer, compiled by the driver", ptx.target)?,
        }
        match (group, schedule) {
            (Group::Packed(group), _) => write!(f, "; {group} query heads packed")?,
            (Group::Any, Schedule::Split { .. }) => write!(f, "; the query heads of a group packed, their keys split among blocks")?,
            (Group::Any, Schedule::Grid | Schedule::Persistent { .. }) => write!(f, "; any ratio of heads")?,
        }
        write!(f, "; tiles of {block_q} rows and {block_kv} keys, copied by {copy_bytes} bytes")
    }
}

/// Picks the kernel for `problem` on `device` from `catalog`.
///
/// In this order it prefers
/// 1. machine code to PTX;
/// 2. copies by 16 bytes to copies by 4;
/// 3. the newest architecture that the device runs, `sm_90` and `sm_90a` being one;
/// 4. the tiling, the size of clusters and the blocks of a multiprocessor whose launch is expected to end first: large tiles cost
///    less for each row, small ones spread few rows over more multiprocessors or share one, tiles packed with the heads of a group
///    waste no rows on few query tokens, and clusters spread the keys of few tiles;
/// 5. the largest tiles;
/// 6. a kernel for every ratio to one for this ratio alone, which packs a group of heads: it is chosen where that saves tiles;
/// 7. a kernel made for the mask to one that takes it as a parameter;
/// 8. code for this architecture alone.
///
/// Machine code runs on a device of the same major version whose minor version is not older; `sm_90a` code on 9.0 only;
/// PTX on every newer device.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType),
/// [`UnsupportedHeadDim`](crate::Error::UnsupportedHeadDim), [`UnsupportedVHeadDim`](crate::Error::UnsupportedVHeadDim),
/// [`UnsupportedMask`](crate::Error::UnsupportedMask),
/// [`UnsupportedGroup`](crate::Error::UnsupportedGroup), [`TooLarge`](crate::Error::TooLarge),
/// [`Misaligned`](crate::Error::Misaligned), [`UnsupportedDevice`](crate::Error::UnsupportedDevice),
/// [`SharedMemory`](crate::Error::SharedMemory) and [`JitRefused`](crate::Error::JitRefused).
pub fn dispatch(problem: &Problem, alignment: Alignment, device: Capability, policy: Policy, catalog: &'static [Entry]) -> Result<Choice> {
    select(problem, alignment, device, policy, catalog).map(|(choice, _)| choice)
}

/// [`dispatch`], with the grid of the launch.
pub(crate) fn select(
    problem: &Problem,
    alignment: Alignment,
    device: Capability,
    policy: Policy,
    catalog: &'static [Entry],
) -> Result<(Choice, Grid)> {
    best(problem, alignment, device, policy, catalog).ok_or_else(|| refusal::explain(problem, alignment, device, catalog))
}

/// The choice, if there is one.
pub(crate) fn best(
    problem: &Problem,
    alignment: Alignment,
    device: Capability,
    policy: Policy,
    catalog: &'static [Entry],
) -> Option<(Choice, Grid)> {
    let mut best = None;
    for (index, entry) in catalog.iter().enumerate() {
        if !entry.serves(problem) || entry.copy_bytes > alignment.bytes {
            continue;
        }
        let Some(code) = entry.on(device, policy) else { continue };
        let choice = Choice { entry, code, index };
        for grid in Grid::all(entry, problem) {
            let rank = rank(&choice, &grid, problem, device);
            if best.as_ref().is_none_or(|(best, _)| rank > *best) {
                best = Some((rank, (choice, grid)));
            }
        }
    }
    best.map(|(_, found)| found)
}

/// The preferences of [`dispatch`], most important first; the greatest is chosen, and the first of equals.
fn rank(choice: &Choice, grid: &Grid, problem: &Problem, device: Capability) -> impl PartialOrd + use<> {
    let Choice { entry, code, .. } = choice;
    (
        matches!(code, Code::Cubin(_)),
        entry.copy_bytes,
        (code.arch().major, code.arch().minor),
        cost::estimate(entry, grid, problem, device).map(|time| -time),
        u64::from(entry.block_q) * u64::from(entry.block_kv),
        entry.group == Group::Any,
        entry.mask != MaskSupport::Any,
        code.arch().specific,
    )
}

/// The kernels of `catalog` that some problem can get on `device`, with their code: all that it can run, but no PTX of what
/// machine code serves as well.
pub(crate) fn reachable(device: Capability, policy: Policy, catalog: &'static [Entry]) -> impl Iterator<Item = Choice> {
    let choice = move |(index, entry): (usize, &'static Entry)| entry.on(device, policy).map(|code| Choice { entry, code, index });
    catalog.iter().enumerate().filter_map(choice).filter(move |choice| {
        let is_better = |other: &'static Entry| other.covers(choice.entry) && matches!(other.on(device, policy), Some(Code::Cubin(_)));
        matches!(choice.code, Code::Cubin(_)) || !catalog.iter().any(is_better)
    })
}

impl Entry {
    /// Whether it computes the problem, alignment and device aside.
    fn serves(&self, problem: &Problem) -> bool {
        self.dtype == problem.dtype()
            && self.head_dim == problem.shape().head_dim
            && self.v_head_dim == problem.v_head_dim()
            && self.serves_mask(problem.mask())
            && self.serves_group(problem.group())
            && self.takes_layout(problem)
    }

    /// Whether it can address the problem's tensors, alignment aside.
    pub(crate) fn takes_layout(&self, problem: &Problem) -> bool {
        self.schedule.boxes().is_none() || tensor_map::can_express(problem)
    }

    /// Whether it serves every problem that `other` serves.
    fn covers(&self, other: &Entry) -> bool {
        self.dtype == other.dtype
            && (self.head_dim, self.v_head_dim) == (other.head_dim, other.v_head_dim)
            && (self.mask == MaskSupport::Any || self.mask == other.mask)
            && self.schedule_covers(other)
            && (self.group == Group::Any || self.group == other.group)
            && self.copy_bytes <= other.copy_bytes
    }

    /// Whether it takes every layout and ratio that `other` takes, as far as their schedules say.
    fn schedule_covers(&self, other: &Entry) -> bool {
        match (self.schedule, other.schedule) {
            (Schedule::Grid, _) | (Schedule::Persistent { .. }, Schedule::Persistent { .. } | Schedule::Split { .. }) => true,
            // A tile has to have the rows of a token's heads.
            (Schedule::Split { .. }, Schedule::Split { .. }) => other.block_q <= self.block_q,
            (Schedule::Persistent { .. }, Schedule::Grid) | (Schedule::Split { .. }, _) => false,
        }
    }

    pub(crate) fn serves_mask(&self, mask: Mask) -> bool {
        match self.mask {
            MaskSupport::Any => true,
            MaskSupport::Causal => mask == Mask::Causal,
            MaskSupport::Full => mask == Mask::Full,
        }
    }

    pub(crate) fn serves_group(&self, group: u32) -> bool {
        match (self.group, self.schedule) {
            (Group::Packed(packed), _) => packed == group,
            // A tile has the rows of a token's heads.
            (Group::Any, Schedule::Split { .. }) => group <= self.block_q,
            (Group::Any, Schedule::Grid | Schedule::Persistent { .. }) => true,
        }
    }

    /// The code for a device, or `None` when it has none or its tiles do not fit.
    pub(crate) fn on(&'static self, device: Capability, policy: Policy) -> Option<Code> {
        if self.shared_bytes > device.shared_optin_bytes {
            return None;
        }
        self.code_for(device).filter(|code| policy == Policy::CubinFirst || matches!(code, Code::Cubin(_)))
    }

    /// The best code for a device, whatever its shared memory.
    pub(crate) fn code_for(&'static self, device: Capability) -> Option<Code> {
        let cubins = self.cubins.iter().filter(|cubin| cubin.arch.runs_on(device));
        let newest = cubins.max_by_key(|cubin| cubin.arch).map(Code::Cubin);
        newest.or_else(|| self.ptx.as_ref().filter(|ptx| ptx.target.compiles_for(device)).map(Code::Ptx))
    }
}

impl Arch {
    /// Whether machine code for it runs on a device.
    fn runs_on(self, device: Capability) -> bool {
        let minor_fits = if self.specific { self.minor == device.minor } else { self.minor <= device.minor };
        self.major == device.major && minor_fits
    }

    /// Whether PTX for it can be compiled for a device.
    fn compiles_for(self, device: Capability) -> bool {
        let (target, device) = ((self.major, self.minor), (device.major, device.minor));
        if self.specific { target == device } else { target <= device }
    }
}

#[cfg(test)]
mod tests {
    use crate::catalog::{Boxes, Entry, Group, MaskSupport, Schedule, TensorBox};
    use crate::shape::DType;

    const BOX: TensorBox = TensorBox { columns: 64, heads: 1, rows: 64, chunks: 1 };
    const BOXES: Boxes = Boxes { q: BOX, k: BOX, v: BOX, o: BOX };

    const fn entry(schedule: Schedule, block_q: u32) -> Entry {
        Entry {
            name: "",
            family: "",
            dtype: DType::BF16,
            head_dim: 128,
            v_head_dim: 128,
            group: Group::Any,
            mask: MaskSupport::Any,
            copy_bytes: 16,
            block_q,
            block_kv: 128,
            threads: 128,
            shared_bytes: 0,
            blocks_per_sm: 1,
            schedule,
            models: "",
            cubins: &[],
            ptx: None,
        }
    }

    #[test]
    fn a_kernel_covers_those_whose_layouts_and_ratios_it_takes() {
        let split = Schedule::Split { boxes: BOXES, clusters: &[1, 2] };
        let (grid, persistent) = (entry(Schedule::Grid, 64), entry(Schedule::Persistent { boxes: BOXES, cluster: 1, together: &[1] }, 64));
        let (short, tall) = (entry(split, 64), entry(split, 128));
        for other in [&grid, &persistent, &short, &tall] {
            assert!(grid.covers(other));
            assert_eq!(persistent.covers(other), other.schedule != Schedule::Grid);
            assert_eq!(tall.covers(other), other.schedule == split, "up to 128 heads of a group");
            assert_eq!(short.covers(other), other.schedule == split && other.block_q == 64, "up to 64");
        }
    }
}
