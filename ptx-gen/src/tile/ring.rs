//! Rings of buffers in shared memory, which a producer fills by tensor copies and consumers read.
//!
//! Each stage has two barriers: *full* completes when the bytes of a copy have arrived, *empty* when every reader has
//! released it. Both sides walk the ring on their own and count parities: a barrier's phase flips each time around.
//!
//! Two blocks of a cluster may fill a ring together: then each copies a part to both, and the readers of both release a stage to
//! both.

use super::stream::NoteWord;
use crate::ptx::builder::Kernel;
use crate::ptx::types::{Operand, Ptr, Reg, Shared, Var};
use crate::ptx::warpgroup::{Mbarrier, RemoteMbarrier, TensorMap};

/// Bytes of a barrier.
pub const BARRIER_BYTES: u32 = 8;

/// Where a ring lies in shared memory.
#[derive(Clone, Copy)]
pub struct Ring {
    /// Offset of its barriers: all full ones, then all empty ones.
    pub barriers: u32,
    /// Offset of its buffers.
    pub buffers: u32,
    /// Buffers, 1 or 2.
    pub stages: u32,
    /// Bytes of a buffer.
    pub stage_bytes: u32,
    /// Arrivals that make a stage empty. One for a warpgroup is enough where its products were waited for: no warp of a
    /// warpgroup completes a product that another has not issued. PTX does not say so; FlashAttention-3 and CUTLASS rely on it.
    pub readers: u32,
    /// Blocks of the cluster that read the same, and of which each fills an equal part for all: 1 or 2.
    pub blocks: u32,
}

impl Ring {
    /// Offset behind the barriers.
    pub const fn barriers_end(&self) -> u32 {
        self.barriers + 2 * self.stages * BARRIER_BYTES
    }

    /// Offset behind the buffers.
    pub const fn buffers_end(&self) -> u32 {
        self.buffers + self.stages * self.stage_bytes
    }

    /// Initialises the barriers; one thread does.
    pub fn init(&self, shared: Reg<'_, u32>) {
        for stage in 0..self.stages {
            Mbarrier::new(shared, self.barriers + stage * BARRIER_BYTES).init(1);
            Mbarrier::new(shared, self.barriers + (self.stages + stage) * BARRIER_BYTES).init(self.readers * self.blocks);
        }
    }

    /// The producer's place in the ring: it waits for empty stages, which all are at first.
    pub fn producer<'k>(&self, k: &'k Kernel, shared: Reg<'k, u32>) -> Stage<'k> {
        Stage { ring: *self, shared, other: None, index: k.var(0u32), parity: k.var(1u32) }
    }

    /// A consumer's place in the ring: it waits for full stages. `other` is the shared memory of the other block of the cluster.
    pub fn consumer<'k>(&self, k: &'k Kernel, shared: Reg<'k, u32>, other: Option<Reg<'k, u32>>) -> Stage<'k> {
        let other = other.filter(|_| self.blocks > 1);
        Stage { ring: *self, shared, other, index: k.uniform_var(0u32), parity: k.uniform_var(0u32) }
    }
}

/// One side's current stage.
#[derive(Clone, Copy)]
pub struct Stage<'k> {
    ring: Ring,
    shared: Reg<'k, u32>,
    /// Shared memory of the other block that reads the same.
    other: Option<Reg<'k, u32>>,
    index: Var<'k, u32>,
    /// Parity of the phase that is waited for. The producer is a time around ahead: all stages start empty.
    parity: Var<'k, u32>,
}

impl<'k> Stage<'k> {
    /// Number of the stage.
    pub fn index(&self) -> Reg<'k, u32> {
        self.index.get()
    }

    fn barrier(&self, first: u32) -> Mbarrier<'k> {
        Mbarrier::new((self.index() << BARRIER_BYTES.ilog2()) + self.shared, first)
    }

    /// Completes when the stage's bytes are there.
    pub fn full(&self) -> Mbarrier<'k> {
        self.barrier(self.ring.barriers)
    }

    fn empty_offset(&self) -> u32 {
        self.ring.barriers + self.ring.stages * BARRIER_BYTES
    }

    fn empty(&self) -> Mbarrier<'k> {
        self.barrier(self.empty_offset())
    }

    /// Waits until the stage is full.
    pub fn await_full(&self) {
        self.full().wait(self.parity.get());
    }

    /// Waits until every reader has released the stage.
    pub fn await_empty(&self) {
        self.empty().wait(self.parity.get());
    }

    /// Starts the copies of boxes of a tensor, each at its coordinates and to its offset in the buffer, `bytes` in all, and
    /// goes on to the next stage.
    pub fn fill(&self, map: TensorMap<'k>, boxes: &[([Reg<'k, u32>; 5], u32)], bytes: impl Into<Operand<u32>>) {
        let full = self.full();
        full.expect(bytes);
        let buffer = self.offset_from(self.shared);
        for (at, offset) in boxes {
            map.load(at, (buffer, self.ring.buffers + offset), full);
        }
        self.advance();
    }

    /// The same where the blocks of the cluster fill a part each for all: starts the copy of part `rank`, which is one box.
    pub fn fill_part(&self, map: TensorMap<'k>, at: &[Reg<'k, u32>; 5], rank: Reg<'k, u32>) {
        let Ring { buffers, stage_bytes, blocks, .. } = self.ring;
        let full = self.full();
        full.expect(stage_bytes);
        let part = rank.mul_add(stage_bytes / blocks, self.offset_from(self.shared));
        map.load_to_all(at, (part, buffers), full, blocks);
        self.advance();
    }

    /// Releases the stage from the lane that `releases` picks, to all that fill it; nothing that read it may be in flight.
    pub fn release(&self, releases: Reg<'k, bool>) {
        let (k, empty) = (releases.kernel(), self.empty());
        k.guarded(releases, || empty.arrive());
        if let Some(other) = self.other {
            let theirs = RemoteMbarrier::new((self.index() << BARRIER_BYTES.ilog2()) + other, self.empty_offset());
            k.guarded(releases, || theirs.arrive());
        }
    }

    /// Goes on to the next stage.
    pub fn advance(&self) {
        let Stage { mut index, mut parity, .. } = *self;
        match self.ring.stages {
            1 => parity ^= 1u32,
            2 => {
                index ^= 1u32;
                parity ^= index.get() ^ 1;
            }
            stages => unreachable!("a ring of {stages} stages"),
        }
    }

    /// `base` moved by the distance of the stage's buffer from the first one.
    pub fn offset_from(&self, base: Reg<'k, u32>) -> Reg<'k, u32> {
        if self.ring.stages == 1 { base } else { self.index().mul_add(self.ring.stage_bytes, base) }
    }
}

/// A value that one thread hands to another, once, through shared memory: a barrier, then the value.
#[derive(Clone, Copy)]
pub struct Handoff<'k> {
    shared: Reg<'k, u32>,
    offset: u32,
}

impl<'k> Handoff<'k> {
    /// Bytes of shared memory.
    pub const BYTES: u32 = 2 * BARRIER_BYTES;

    /// At `offset` of shared memory.
    pub fn new(shared: Reg<'k, u32>, offset: u32) -> Self {
        Handoff { shared, offset }
    }

    fn barrier(&self) -> Mbarrier<'k> {
        Mbarrier::new(self.shared, self.offset)
    }

    fn value(&self) -> Ptr<'k, Shared, NoteWord> {
        Ptr::from_address(self.shared)
    }

    /// Initialises the barrier; one thread does.
    pub fn init(&self) {
        self.barrier().init(1);
    }

    /// Hands over the value.
    pub fn give(&self, value: Reg<'k, u32>) {
        self.value().store(&[value], self.offset + BARRIER_BYTES);
        self.barrier().arrive();
    }

    /// Waits for the value; it can be taken any number of times.
    pub fn take(&self) -> Reg<'k, u32> {
        self.barrier().wait(self.shared.kernel().constant(0));
        self.value().load(self.offset + BARRIER_BYTES)
    }
}
