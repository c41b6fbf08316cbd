//! Warp specialisation and what runs beside the threads on sm_90a: roles, barriers with transactions, tensor
//! copies, and warpgroup multiplications in flight.
//!
//! - A **role** is a closure: [`Kernel::roles`] gives each its warpgroups and registers, one branch each.
//! - What is **in flight** is a value: [`Kernel::issue`] borrows the accumulators that the multiplications write
//!   and gives them back only to who awaits. Until then there is no register to read.
//! - **Placement** is program order: an instruction stands where its Rust line ran, so what overlaps with
//!   work in flight is what stands between `issue` and `await_leaving`.

use super::builder::Kernel;
use super::inst::{Inst, MmaType, Special, WgmmaLeft};
use super::types::{Bits32, ClusterShared, Element, Operand, Ptr, Reg, RegId, Shared, Src, Var};
use crate::params::FieldType;

/// Threads of a warpgroup.
pub const WARPGROUP: u32 = 128;

/// Registers of a multiprocessor.
const REGISTER_FILE: u32 = 64 * 1024;

/// What some warpgroups of a block do.
pub struct Role<'a, 'k> {
    /// How many warpgroups.
    pub warpgroups: u32,
    /// Registers of each of their threads: a multiple of 8 from 24 to 256 (PTX ISA, "setmaxnreg"). `None`: as at entry.
    pub registers: Option<u32>,
    /// What they do; takes the warpgroup's index within the role, uniform.
    pub body: Box<dyn FnOnce(Reg<'k, u32>) + 'a>,
}

impl Kernel {
    /// Splits the block's warpgroups into roles, in order. Registers move from one role to another.
    #[track_caller]
    pub fn roles<'k>(&'k self, roles: Vec<Role<'_, 'k>>) {
        let at_entry = REGISTER_FILE / (self.header.blocks_per_sm * self.header.threads) / 8 * 8;
        let threads: u32 = roles.iter().map(|r| r.warpgroups * WARPGROUP).sum();
        let registers: u32 = roles.iter().map(|r| r.warpgroups * WARPGROUP * r.registers.unwrap_or(at_entry)).sum();
        assert_eq!(threads, self.header.threads, "the roles take every thread of the block");
        // Only what the block got at its start is there to be redistributed: to want more is to wait forever.
        let available = at_entry * threads;
        assert!(registers <= available, "the roles want {registers} registers of {available}");
        let warpgroup = (self.special(Special::TidX) >> WARPGROUP.ilog2()).broadcast();
        let mut first = 0;
        for role in roles {
            let index = warpgroup - first;
            let other_role = self.branch_unless(index.lt(role.warpgroups));
            if let Some(registers) = role.registers {
                self.push(Inst::SetMaxNReg { increase: registers > at_entry, registers });
            }
            (role.body)(index);
            self.place(other_role);
            first += role.warpgroups;
        }
    }

    /// Runs `body` in one lane of the warp: what starts copies must, or ptxas wraps each in a loop over lanes.
    #[track_caller]
    pub fn elected(&self, body: impl FnOnce()) {
        let elected = self.elect();
        self.when(elected, || self.alone(body));
    }

    /// A predicate that holds in one lane of the warp, always the same.
    #[track_caller]
    pub fn elect(&self) -> Reg<'_, bool> {
        let p = self.reg::<bool>();
        self.push(Inst::Elect { d: p.id });
        p
    }

    /// Waits at named barrier `id` (1 to 15) until `threads` threads have come to it, these included.
    #[track_caller]
    pub fn named_barrier_wait(&self, id: Reg<'_, u32>, threads: u32) {
        self.push(Inst::NamedBarrier { id: Src::Reg(id.id), threads, wait: true });
    }

    /// Comes to named barrier `id` without waiting.
    #[track_caller]
    pub fn named_barrier_arrive(&self, id: Reg<'_, u32>, threads: u32) {
        self.push(Inst::NamedBarrier { id: Src::Reg(id.id), threads, wait: false });
    }

    /// Waits for every thread of the cluster that has not ended; what they wrote before is visible after.
    #[track_caller]
    pub fn cluster_barrier(&self) {
        self.push(Inst::ClusterArrive { releases: true });
        self.push(Inst::ClusterWait);
    }

    /// The same, but nothing is known of what they wrote: without the wait for the writes.
    #[track_caller]
    pub fn await_cluster(&self) {
        self.push(Inst::ClusterArrive { releases: false });
        self.push(Inst::ClusterWait);
    }

    /// Waits until the grids have ended that this one was launched to depend on; what they wrote is visible to the whole grid
    /// after. Returns at once where the launch was not a programmatic one (PTX ISA, "griddepcontrol").
    #[track_caller]
    pub fn await_prerequisites(&self) {
        self.push(Inst::AwaitPrerequisites);
    }

    /// Lets the grids start that were launched to depend on this one, once every block has come here or ended. That is all it
    /// does: they have to wait for what this grid writes.
    #[track_caller]
    pub fn launch_dependents(&self) {
        self.push(Inst::LaunchDependents);
    }

    /// Waits for the lanes of the warp, and orders their accesses to memory.
    #[track_caller]
    pub fn warp_barrier(&self) {
        self.push(Inst::WarpSync);
    }

    /// Waits until at most `pending` of this thread's groups of tensor stores still read shared memory.
    #[track_caller]
    pub fn await_stores_read(&self, pending: u32) {
        self.push(Inst::BulkWaitRead { pending });
    }

    /// Waits until this thread's tensor stores are complete.
    #[track_caller]
    pub fn await_stores(&self) {
        self.push(Inst::BulkWait { pending: 0 });
    }

    /// `stmatrix.x4`: four 8x8 matrices of 16-bit elements; lane l addresses row l % 8 of matrix l / 8.
    #[track_caller]
    pub fn store_matrices<E: Element>(&self, words: [Reg<'_, Bits32>; 4], rows: Ptr<'_, Shared, E>, byte_offset: u32) {
        self.push(Inst::StMatrix { v: words.map(|r| r.id), addr: rows.addr.id, offset: byte_offset as i32 });
    }

    /// Makes the barriers that this thread initialised usable by all; every thread of the block calls it.
    #[track_caller]
    pub fn publish_barriers(&self) {
        self.push(Inst::FenceMbarrierInit);
        self.block_barrier();
    }

    /// Orders this thread's writes to shared memory before reads by the copy engine and the tensor cores.
    #[track_caller]
    pub fn fence_shared_for_async(&self) {
        self.push(Inst::FenceProxyAsync);
    }

    /// A tensor map of the parameter block, by its name in `params.rs`.
    #[track_caller]
    pub fn tensor_map(&self, field: &str) -> TensorMap<'_> {
        let (offset, ty) = self.header.params.field(field);
        assert_eq!(ty, FieldType::TensorMap, "parameter {field}");
        let d = self.reg();
        self.push(Inst::ParamAddress { d: d.id, offset });
        TensorMap(d)
    }

    /// Where what lies at `shared` lies in block `rank` of the cluster.
    #[track_caller]
    pub fn shared_of<'k>(&'k self, shared: Reg<'k, u32>, rank: Reg<'k, u32>) -> Reg<'k, u32> {
        let d = self.reg();
        self.push(Inst::MapShared { d: d.id, addr: shared.id, rank: rank.id });
        d
    }

    /// Issues the multiplications of `body` as one group; `acc` is theirs until they are awaited.
    #[track_caller]
    pub fn issue<'a, 'k>(&'k self, acc: &'a mut Accumulator<'k>, body: impl FnOnce(&Multiplier<'_, 'k>)) -> InFlight<'a, 'k> {
        self.push(Inst::WgmmaFence);
        body(&Multiplier { k: self, acc, columns: 2 * acc.values.len() as u32 });
        self.push(Inst::WgmmaCommit);
        InFlight { k: self, acc }
    }
}

impl<'k, E: Element> Ptr<'k, Shared, E> {
    /// The same place in the shared memory of block `rank` of the cluster.
    #[track_caller]
    pub fn in_block(self, rank: Reg<'k, u32>) -> Ptr<'k, ClusterShared, E> {
        Ptr::from_address(self.addr.k.shared_of(self.addr, rank))
    }
}

/// A tensor map: what the copy engine knows of a tensor in global memory.
#[derive(Clone, Copy)]
pub struct TensorMap<'k>(Reg<'k, u64>);

impl<'k> TensorMap<'k> {
    /// Starts to copy the box at the coordinates `at` (innermost first) to `dst` + `dst_offset`; `barrier`
    /// counts its bytes.
    #[track_caller]
    pub fn load(self, at: &[Reg<'k, u32>], to: (Reg<'k, u32>, u32), barrier: Mbarrier<'k>) {
        self.copy(at, to, barrier, None);
    }

    /// The same to the first `blocks` blocks of the cluster, to the same place of each; the barrier at the same place of each
    /// counts what comes to it.
    #[track_caller]
    pub fn load_to_all(self, at: &[Reg<'k, u32>], to: (Reg<'k, u32>, u32), barrier: Mbarrier<'k>, blocks: u32) {
        self.copy(at, to, barrier, Some((1 << blocks) - 1));
    }

    #[track_caller]
    fn copy(self, at: &[Reg<'k, u32>], (dst, dst_offset): (Reg<'k, u32>, u32), barrier: Mbarrier<'k>, blocks: Option<u16>) {
        self.0.k.push(Inst::TensorLoad {
            dst: dst.id,
            dst_offset: dst_offset as i32,
            map: self.0.id,
            at: at.iter().map(|r| r.id).collect(),
            barrier: barrier.base.id,
            barrier_offset: barrier.offset as i32,
            blocks,
        });
    }

    /// Starts to copy from `src` + `src_offset` to the box at `at`.
    #[track_caller]
    pub fn store(self, at: &[Reg<'k, u32>], (src, src_offset): (Reg<'k, u32>, u32)) {
        let at = at.iter().map(|r| r.id).collect();
        self.0.k.push(Inst::TensorStore { map: self.0.id, at, src: src.id, src_offset: src_offset as i32 });
        self.0.k.push(Inst::BulkCommit);
    }
}

/// A barrier in shared memory that counts arrivals and the bytes of asynchronous copies.
#[derive(Clone, Copy)]
pub struct Mbarrier<'k> {
    base: Reg<'k, u32>,
    offset: u32,
}

impl<'k> Mbarrier<'k> {
    /// The barrier at `base` + `offset`, 8 bytes.
    pub fn new(base: Reg<'k, u32>, offset: u32) -> Self {
        Mbarrier { base, offset }
    }

    /// Initialises it for `arrivals` arrivals a phase.
    #[track_caller]
    pub fn init(self, arrivals: u32) {
        self.base.k.push(Inst::MbarrierInit { addr: self.base.id, offset: self.offset as i32, arrivals });
    }

    /// Arrives, and announces `bytes` of copies.
    #[track_caller]
    pub fn expect(self, bytes: impl Into<Operand<u32>>) {
        let bytes = bytes.into().src;
        self.base.k.push(Inst::MbarrierExpect { addr: self.base.id, offset: self.offset as i32, bytes });
    }

    /// Arrives.
    #[track_caller]
    pub fn arrive(self) {
        self.base.k.push(Inst::MbarrierArrive { addr: self.base.id, offset: self.offset as i32 });
    }

    /// Waits for the end of the phase of parity `parity` (0 or 1).
    #[track_caller]
    pub fn wait(self, parity: Reg<'k, u32>) {
        let k = self.base.k;
        let again = k.place_label("again");
        let done = k.reg::<bool>();
        k.push(Inst::MbarrierTryWait { d: done.id, addr: self.base.id, offset: self.offset as i32, parity: parity.id });
        // A warp asks once for all its lanes, so the answer is uniform where the barrier is.
        k.branch_together(again, done, true);
    }
}

/// A barrier of another block of the cluster.
#[derive(Clone, Copy)]
pub struct RemoteMbarrier<'k> {
    base: Reg<'k, u32>,
    offset: u32,
}

impl<'k> RemoteMbarrier<'k> {
    /// The barrier at `base` + `offset`; `base` is [of that block](Kernel::shared_of).
    pub fn new(base: Reg<'k, u32>, offset: u32) -> Self {
        RemoteMbarrier { base, offset }
    }

    /// Arrives.
    #[track_caller]
    pub fn arrive(self) {
        self.base.k.push(Inst::MbarrierArriveRemote { addr: self.base.id, offset: self.offset as i32 });
    }

    /// Stores `value` to `place` + `offset`, in the same block; the barrier counts its 4 bytes.
    #[track_caller]
    pub fn send(self, value: Reg<'k, u32>, (place, offset): (Reg<'k, u32>, u32)) {
        self.base.k.push(Inst::StAsync {
            v: value.id,
            addr: place.id,
            offset: offset as i32,
            barrier: self.base.id,
            barrier_offset: self.offset as i32,
        });
    }
}

/// Accumulators of a warpgroup's m64 x n multiplication, readable while nothing is in flight.
pub struct Accumulator<'k> {
    values: Vec<Var<'k, f32>>,
}

impl<'k> Accumulator<'k> {
    /// Zeros, for `n` columns.
    #[track_caller]
    pub fn zero(k: &'k Kernel, n: u32) -> Self {
        let mut values = Vec::new();
        // A loop, since the origin of instructions that a closure emits would be here and not in the kernel.
        for _ in 0..n / 2 {
            values.push(k.var(0.0f32));
        }
        Accumulator { values }
    }

    /// `n` columns without values: the first multiplication must not accumulate.
    pub fn unset(k: &'k Kernel, n: u32) -> Self {
        Accumulator { values: (0..n / 2).map(|_| Var(k.reg())).collect() }
    }

    /// The lane's values: index i is column 8 (i / 4) + 2 (lane % 4) + i % 2 of row lane / 4 + 8 (i / 2 % 2)
    /// of its warp's 16 rows.
    pub fn values(&self) -> &[Var<'k, f32>] {
        &self.values
    }
}

/// Multiplications in flight: they hold their accumulators until they are awaited.
#[must_use = "the accumulators are unusable until the multiplications are awaited"]
pub struct InFlight<'a, 'k> {
    k: &'k Kernel,
    acc: &'a mut Accumulator<'k>,
}

impl<'a, 'k> InFlight<'a, 'k> {
    /// Waits until at most `pending` later groups are in flight, this one not among them.
    #[track_caller]
    pub fn await_leaving(self, pending: u32) -> &'a mut Accumulator<'k> {
        self.k.push(Inst::WgmmaWait { pending });
        self.acc
    }
}

/// Issues multiplications into one accumulator.
pub struct Multiplier<'a, 'k> {
    k: &'k Kernel,
    acc: &'a Accumulator<'k>,
    columns: u32,
}

impl<'k> Multiplier<'_, 'k> {
    /// The same multiplications into the first `n` columns alone.
    pub fn columns<'m>(&'m self, n: u32) -> Multiplier<'m, 'k> {
        Multiplier { k: self.k, acc: self.acc, columns: n }
    }

    /// acc (+)= a b, one k16 step; a and b are descriptors of shared memory and must be uniform, else each
    /// costs a transfer to the uniform registers.
    #[track_caller]
    pub fn shared(&self, ty: MmaType, a: Reg<'k, u64>, b: Reg<'k, u64>, accumulate: Reg<'k, bool>) {
        assert!(a.is_uniform() && b.is_uniform(), "a descriptor is not uniform; broadcast what it is computed from");
        self.push(ty, WgmmaLeft::Shared(a.id), b.id, accumulate.id, false);
    }

    /// acc (+)= a b, a a fragment in registers, b stored with its columns contiguous (V as it was loaded).
    #[track_caller]
    pub fn registers(&self, ty: MmaType, a: [Var<'k, Bits32>; 4], b: Reg<'k, u64>, accumulate: Reg<'k, bool>) {
        assert!(b.is_uniform(), "a descriptor is not uniform; broadcast what it is computed from");
        self.push(ty, WgmmaLeft::Registers(a.map(|v| v.0.id)), b.id, accumulate.id, true);
    }

    #[track_caller]
    fn push(&self, ty: MmaType, a: WgmmaLeft, b: RegId, accumulate: RegId, trans_b: bool) {
        let d: Vec<RegId> = self.acc.values[..self.columns as usize / 2].iter().map(|v| v.0.id).collect();
        self.k.push(Inst::Wgmma { ty, n: self.columns, d, a, b, accumulate, trans_b });
    }
}
