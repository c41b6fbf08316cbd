//! The instruction set: one enum, and what each instruction needs from the target.

use super::types::{RegId, Src, Ty};

/// Operations with two sources of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// Sum (floats round to nearest, never contracted).
    Add,
    /// Difference.
    Sub,
    /// Product (integers: low half).
    Mul,
    /// High half of the product of integers.
    MulHigh,
    /// Smaller value.
    Min,
    /// Larger value.
    Max,
    /// Larger value, NaN if either is (f32).
    MaxNan,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Logical shift left.
    Shl,
    /// Shift right (logical for unsigned types).
    Shr,
}

/// Operations with one f32 source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// 2^x, flushing denormals (with denormals ptxas adds a guard around each).
    Ex2,
    /// log2(x).
    Lg2,
    /// 1/x.
    Rcp,
    /// -x.
    Neg,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// a = b
    Eq,
    /// a < b
    Lt,
    /// a <= b
    Le,
    /// a > b
    Gt,
    /// a != b
    Ne,
    /// a > b, or either is NaN (f32)
    Gtu,
}

/// Special registers that kernels read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Thread index in the block.
    TidX,
    /// Lane in the warp.
    LaneId,
    /// Block index, first dimension.
    CtaIdX,
    /// Block index, second dimension.
    CtaIdY,
    /// Block index, third dimension.
    CtaIdZ,
    /// Number of blocks, first dimension.
    NctaIdX,
    /// Number of blocks, second dimension.
    NctaIdY,
    /// A number (64 bits) that no other grid alive in the context has.
    GridId,
    /// Index of the block's cluster, first dimension.
    ClusterIdX,
    /// Index of the block in its cluster.
    ClusterRank,
    /// Blocks of a cluster, first dimension.
    ClusterSizeX,
}

/// Atomic operations on 64-bit words of global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// The word grows by the operand.
    Add,
    /// The lower 32 bits of the word grow by the operand, and are the result.
    AddLow,
    /// The word becomes the second operand if it equals the first.
    CompareSwap,
}

/// What an access to global memory orders for the whole GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing but itself.
    Relaxed,
    /// Later accesses come after it.
    Acquire,
    /// Earlier accesses come before it.
    Release,
}

/// Operand type of a tensor-core multiplication. Accumulation is in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmaType {
    /// `mma.m16n8k16`, f16 operands.
    F16,
    /// `mma.m16n8k16`, bf16 operands.
    Bf16,
    /// `mma.m16n8k8`, tf32 operands (the low 13 bits of each are ignored).
    Tf32,
}

/// State space of a load or store.
pub type SpaceName = &'static str;

/// One PTX instruction. Registers are untyped here: the builder's handles have checked them.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "a variant's remark names its operands: d is what it defines, a, b, c what it reads")]
pub enum Inst {
    /// A remark that heads the instructions which follow.
    Note(String),
    /// A branch target.
    Label(Label),
    /// Branch; `uniform` promises that all lanes of the warp agree.
    Bra { to: Label, uniform: bool },
    /// Copy.
    Mov { ty: Ty, d: RegId, a: Src },
    /// Read a special register.
    ReadSpecial { d: RegId, from: Special },
    /// Address of the block's dynamic shared memory.
    SharedBase { d: RegId },
    /// Address of a table of 64-bit words in global memory that belongs to the module and starts as zeros.
    ModuleTable { d: RegId, name: &'static str, words: u32 },
    /// Atomic operation on a 64-bit word of global memory; `d` is what the word was.
    Atomic { op: Atomic, order: Order, d: RegId, addr: RegId, operands: Vec<Src> },
    /// Load of a 64-bit word that other blocks write.
    LdStrong { d: RegId, addr: RegId },
    /// Store of a 64-bit word that other blocks read.
    StStrong { order: Order, addr: RegId, v: Src },
    /// Rests for about so many nanoseconds.
    Nanosleep { ns: u32 },
    /// Load from the kernel's parameter block.
    LdParam { ty: Ty, d: RegId, offset: u32 },
    /// Two-source arithmetic.
    Binary { op: Binary, ty: Ty, d: RegId, a: Src, b: Src },
    /// One-source f32 arithmetic.
    Unary { op: Unary, d: RegId, a: Src },
    /// d = a * b + c, f32 rounded once; integers: low half of the product.
    MulAdd { ty: Ty, d: RegId, a: Src, b: Src, c: Src },
    /// Predicate from a comparison.
    SetP { cmp: Compare, ty: Ty, d: RegId, a: Src, b: Src },
    /// d = p ? a : b
    SelP { ty: Ty, d: RegId, a: Src, b: Src, p: RegId },
    /// u64 from u32.
    Widen { d: RegId, a: RegId },
    /// The low half of a u64.
    Narrow { d: RegId, a: RegId },
    /// f32 from s32, rounded to nearest.
    FloatFromInt { d: RegId, a: RegId },
    /// The two 16-bit halves of a 32-bit value.
    Halves { lo: RegId, hi: RegId, a: RegId },
    /// f32 from f16.
    WidenF16 { d: RegId, a: RegId },
    /// Two f32 rounded to nearest and packed; `hi` goes to the upper half.
    Pack { ty: MmaType, d: RegId, hi: RegId, lo: RegId },
    /// Load of 1, 2 or 4 values.
    Ld { space: SpaceName, ty: Ty, d: Vec<RegId>, addr: RegId, offset: i32 },
    /// Store of 1, 2 or 4 values.
    St { space: SpaceName, ty: Ty, v: Vec<RegId>, addr: RegId, offset: i32 },
    /// Asynchronous copy global -> shared of 4 or 16 bytes; fewer source bytes than that zero-fill the rest.
    CpAsync { bytes: u32, dst: RegId, dst_offset: i32, src: RegId, src_bytes: Option<RegId> },
    /// Closes a group of asynchronous copies.
    CpAsyncCommit,
    /// Waits until at most `pending` groups of this thread are in flight.
    CpAsyncWait { pending: u32 },
    /// Four 8x8 matrices of 16-bit elements from shared memory; lane l gives the address of a row.
    LdMatrix { trans: bool, d: [RegId; 4], addr: RegId, offset: i32 },
    /// Warp-level matrix multiplication, m16n8: d = a * b + c.
    Mma { ty: MmaType, d: [RegId; 4], a: [RegId; 4], b: [RegId; 2], c: [RegId; 4] },
    /// Value of the lane whose number differs in `lane_mask`.
    ShflBfly { d: RegId, a: RegId, lane_mask: u32 },
    /// Value of lane `lane`.
    ShflIdx { d: RegId, a: RegId, lane: u32 },
    /// Whether the predicate holds in any lane of the warp.
    VoteAny { d: RegId, a: RegId },
    /// Block-wide barrier 0.
    BarSync,
    /// Waits for the lanes of the warp; orders their accesses to memory.
    WarpSync,
    /// Named barrier: counts `threads` threads; arrive only, or wait too.
    NamedBarrier { id: Src, threads: u32, wait: bool },
    /// Registers per thread of this warpgroup from here on.
    SetMaxNReg { increase: bool, registers: u32 },
    /// A predicate that holds in one lane of the warp.
    Elect { d: RegId },
    /// Initialises a barrier in shared memory for a number of arrivals.
    MbarrierInit { addr: RegId, offset: i32, arrivals: u32 },
    /// Arrives, and announces bytes that asynchronous copies will bring.
    MbarrierExpect { addr: RegId, offset: i32, bytes: Src },
    /// Arrives.
    MbarrierArrive { addr: RegId, offset: i32 },
    /// Arrives at the barrier of another block of the cluster.
    MbarrierArriveRemote { addr: RegId, offset: i32 },
    /// Stores a 32-bit value to another block of the cluster; a barrier there counts its bytes.
    StAsync { v: RegId, addr: RegId, offset: i32, barrier: RegId, barrier_offset: i32 },
    /// Whether the phase of this parity has completed; may suspend the thread for a while.
    MbarrierTryWait { d: RegId, addr: RegId, offset: i32, parity: RegId },
    /// Makes initialised barriers visible to the copy engine and to the cluster.
    FenceMbarrierInit,
    /// Orders this thread's writes to shared memory before reads by the copy engine and tensor cores.
    FenceProxyAsync,
    /// Address of the parameter block plus an offset, as the copy engine takes it.
    ParamAddress { d: RegId, offset: u32 },
    /// Copy of a box of a tensor to shared memory; completes on a barrier. Coordinates: innermost first. To the same places of
    /// several blocks of the cluster if `blocks` says so, bit by bit.
    TensorLoad { dst: RegId, dst_offset: i32, map: RegId, at: Vec<RegId>, barrier: RegId, barrier_offset: i32, blocks: Option<u16> },
    /// Copy of a box from shared memory to a tensor.
    TensorStore { map: RegId, at: Vec<RegId>, src: RegId, src_offset: i32 },
    /// Closes a group of tensor stores.
    BulkCommit,
    /// Waits until at most `pending` groups of tensor stores still read shared memory.
    BulkWaitRead { pending: u32 },
    /// Waits until at most `pending` groups of tensor stores are incomplete.
    BulkWait { pending: u32 },
    /// Four 8x8 matrices of 16-bit elements to shared memory.
    StMatrix { v: [RegId; 4], addr: RegId, offset: i32 },
    /// Warpgroup matrix multiplication, m64 x n x k16: d (+)= a b, b from shared memory.
    Wgmma { ty: MmaType, n: u32, d: Vec<RegId>, a: WgmmaLeft, b: RegId, accumulate: RegId, trans_b: bool },
    /// Orders register writes before the next `Wgmma` that uses them.
    WgmmaFence,
    /// Closes a group of `Wgmma`.
    WgmmaCommit,
    /// Waits until at most `pending` groups are in flight.
    WgmmaWait { pending: u32 },
    /// Address, in the cluster's shared memory, of what lies at `addr` in the shared memory of block `rank`.
    MapShared { d: RegId, addr: RegId, rank: RegId },
    /// Arrives at the barrier of the cluster's threads; orders earlier writes before it if it releases.
    ClusterArrive { releases: bool },
    /// Waits for the arrivals of the cluster's threads.
    ClusterWait,
    /// Waits for the grids that this one was launched to depend on.
    AwaitPrerequisites,
    /// Lets the grids start that depend on this one, as far as this block is concerned.
    LaunchDependents,
}

/// Left operand of a warpgroup multiplication.
#[derive(Clone, Copy, Debug)]
pub enum WgmmaLeft {
    /// A descriptor of shared memory.
    Shared(RegId),
    /// A fragment in registers.
    Registers([RegId; 4]),
}

/// A branch target: a number and a word for the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    pub(super) number: u32,
    pub(super) what: &'static str,
}

/// A PTX ISA version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PtxVersion(pub u32, pub u32);

/// A `.target`: compute capability, and whether its architecture-specific instructions may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Compute capability times ten.
    pub capability: u32,
    /// `true` for `sm_90a` and its like.
    pub specific: bool,
}

impl Target {
    /// `sm_80`
    pub const SM_80: Target = Target { capability: 80, specific: false };

    /// `sm_90a`
    pub const SM_90A: Target = Target { capability: 90, specific: true };

    /// Whether code for `self` may use an instruction that needs `needed`.
    pub fn provides(self, needed: Target) -> bool {
        if needed.specific { self == needed } else { self.capability >= needed.capability }
    }

    /// The lowest PTX version that knows this target (PTX ISA, "Release notes").
    pub fn min_version(self) -> PtxVersion {
        match (self.capability, self.specific) {
            (..=80, _) => PtxVersion(7, 0),
            (..=86, _) => PtxVersion(7, 1),
            (..=87, _) => PtxVersion(7, 4),
            (..=90, false) => PtxVersion(7, 8),
            (..=90, true) => PtxVersion(8, 0),
            (..=100, _) => PtxVersion(8, 6),
            (..=120, _) => PtxVersion(8, 7),
            _ => PtxVersion(8, 8),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sm_{}{}", self.capability, if self.specific { "a" } else { "" })
    }
}

impl std::fmt::Display for PtxVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Inst {
    /// The PTX version and target from which the instruction exists.
    pub fn requires(&self) -> (PtxVersion, Target) {
        let sm = |capability| Target { capability, specific: false };
        let sm_90a = Target { capability: 90, specific: true };
        match self {
            Inst::Wgmma { .. } | Inst::WgmmaFence | Inst::WgmmaCommit | Inst::WgmmaWait { .. } => (PtxVersion(8, 0), sm_90a),
            Inst::SetMaxNReg { .. } => (PtxVersion(8, 0), sm_90a),
            Inst::Elect { .. } | Inst::FenceMbarrierInit | Inst::FenceProxyAsync | Inst::ClusterArrive { .. } | Inst::ClusterWait => {
                (PtxVersion(8, 0), sm(90))
            }
            Inst::TensorLoad { .. } | Inst::TensorStore { .. } => (PtxVersion(8, 0), sm(90)),
            Inst::BulkCommit | Inst::BulkWaitRead { .. } | Inst::BulkWait { .. } | Inst::MbarrierExpect { .. } => {
                (PtxVersion(8, 0), sm(90))
            }
            Inst::StAsync { .. } => (PtxVersion(8, 1), sm(90)),
            Inst::MbarrierArriveRemote { .. } => (PtxVersion(8, 0), sm(90)),
            Inst::AwaitPrerequisites | Inst::LaunchDependents => (PtxVersion(7, 8), sm(90)),
            Inst::MbarrierTryWait { .. } | Inst::StMatrix { .. } | Inst::MapShared { .. } => (PtxVersion(7, 8), sm(90)),
            Inst::ParamAddress { .. } => (PtxVersion(7, 7), sm(70)),
            Inst::MbarrierInit { .. } | Inst::MbarrierArrive { .. } => (PtxVersion(7, 0), sm(80)),
            Inst::CpAsync { .. } | Inst::CpAsyncCommit | Inst::CpAsyncWait { .. } => (PtxVersion(7, 0), sm(80)),
            Inst::Mma { .. } | Inst::Pack { .. } => (PtxVersion(7, 0), sm(80)),
            Inst::Binary { op: Binary::MaxNan, .. } => (PtxVersion(7, 0), sm(80)),
            Inst::LdMatrix { .. } => (PtxVersion(6, 5), sm(75)),
            Inst::Nanosleep { .. } => (PtxVersion(6, 3), sm(70)),
            Inst::Atomic { .. } | Inst::LdStrong { .. } | Inst::StStrong { .. } => (PtxVersion(6, 0), sm(70)),
            Inst::ShflBfly { .. } | Inst::ShflIdx { .. } | Inst::VoteAny { .. } => (PtxVersion(6, 0), sm(30)),
            _ => (PtxVersion(1, 0), sm(30)),
        }
    }

    /// Whether all lanes of the warp (or more) must execute it together: `.sync.aligned` and block-wide barriers.
    pub fn needs_whole_warp(&self) -> bool {
        use Inst::*;
        matches!(
            self,
            LdMatrix { .. }
                | StMatrix { .. }
                | Mma { .. }
                | ShflBfly { .. }
                | ShflIdx { .. }
                | VoteAny { .. }
                | BarSync
                | WarpSync
                | NamedBarrier { .. }
        ) || matches!(
            self,
            SetMaxNReg { .. }
                | Elect { .. }
                | Wgmma { .. }
                | WgmmaFence
                | WgmmaCommit
                | WgmmaWait { .. }
                | ClusterArrive { .. }
                | ClusterWait
        )
    }

    /// The register that a computation defines and the values it is computed from: what uniformity
    /// propagates through. `None` for everything whose result differs from lane to lane.
    pub fn pure_function(&self) -> Option<(RegId, Vec<Src>)> {
        use Src::Reg;
        Some(match *self {
            Inst::Mov { d, a, .. } | Inst::Unary { d, a, .. } => (d, vec![a]),
            Inst::Binary { d, a, b, .. } | Inst::SetP { d, a, b, .. } => (d, vec![a, b]),
            Inst::MulAdd { d, a, b, c, .. } => (d, vec![a, b, c]),
            Inst::SelP { d, a, b, p, .. } => (d, vec![a, b, Reg(p)]),
            Inst::Widen { d, a } | Inst::Narrow { d, a } => (d, vec![Reg(a)]),
            Inst::FloatFromInt { d, a } => (d, vec![Reg(a)]),
            Inst::LdParam { d, .. }
            | Inst::SharedBase { d }
            | Inst::ModuleTable { d, .. }
            | Inst::ParamAddress { d, .. }
            | Inst::ShflIdx { d, .. }
            | Inst::VoteAny { d, .. } => (d, vec![]),
            Inst::ReadSpecial { d, from } if !matches!(from, Special::TidX | Special::LaneId) => (d, vec![]),
            _ => return None,
        })
    }
}
