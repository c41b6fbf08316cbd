//! How the two blocks of a cluster work on neighbouring tiles of a head, and read its keys and values from L2 once for both.
//!
//! Both walk the keys that the second one's rows see, in step. Each block copies one half of the columns of every block of
//! keys and of values, to the same place in both (multicast); a stage is full when both halves have come. It is empty when the
//! consumers of both blocks have released it, which they tell both producers.
//!
//! Why no copy meets a buffer in use, and nobody waits forever:
//! 1. A producer sends its half of a stage only after the consumers of both blocks have released what was there, so no stage is
//!    filled while it is read. Its bytes may reach the other block before that block's producer has announced them. That does
//!    no harm: the barrier's count of bytes goes below zero meanwhile, and its phase ends only after its one arrival, which
//!    announces them.
//! 2. Both producers fill K and V in the same order, for the same number of blocks. So a half that is missing in one block is
//!    the other producer's next one or an earlier one, and that producer waits for nothing that comes later in the order.
//! 3. The first block's producer claims tiles for both and sends the numbers, each after the second has read the one before:
//!    none is overwritten. The number that ends the stream is not acknowledged, and nobody waits for that.
//! 4. Neither block ends before the other is done with its memory: the consumers of both meet at the end, when all copies have
//!    come and all releases are made. The producers' threads have ended by then, or end without touching the other block, and
//!    are not waited for.

use crate::ptx::builder::Kernel;
use crate::ptx::inst::Special;
use crate::ptx::types::{Ptr, Reg, Shared, Var};
use crate::ptx::warpgroup::{Mbarrier, RemoteMbarrier};
use crate::tile::ring::BARRIER_BYTES;
use crate::tile::stream::NoteWord;

/// Where the number of a tile lies, behind two barriers; and its bytes.
const NUMBER: u32 = 2 * BARRIER_BYTES;
const NUMBER_BYTES: u32 = 4;

/// A block of a pair, and the other one.
#[derive(Clone, Copy)]
pub struct Pair<'k> {
    k: &'k Kernel,
    /// 0 or 1.
    pub rank: Reg<'k, u32>,
    shared: Reg<'k, u32>,
    /// The other block's shared memory.
    pub other: Reg<'k, u32>,
    /// Where the blocks agree on tiles.
    offset: u32,
}

impl<'k> Pair<'k> {
    /// Bytes of shared memory.
    pub const BYTES: u32 = NUMBER + BARRIER_BYTES;

    /// With [`Self::BYTES`] at `offset` of shared memory.
    pub fn new(k: &'k Kernel, shared: Reg<'k, u32>, offset: u32) -> Self {
        let rank = k.special(Special::ClusterRank);
        Pair { k, rank, shared, other: k.shared_of(shared, rank ^ 1), offset }
    }

    /// In the second block: the number of a tile has come.
    fn came(&self, shared: Reg<'k, u32>) -> (Reg<'k, u32>, u32) {
        (shared, self.offset)
    }

    /// In the first block: it was read.
    fn was_read(&self, shared: Reg<'k, u32>) -> (Reg<'k, u32>, u32) {
        (shared, self.offset + BARRIER_BYTES)
    }

    fn number(&self, shared: Reg<'k, u32>) -> (Reg<'k, u32>, u32) {
        (shared, self.offset + NUMBER)
    }

    /// Initialises the barriers; one thread does.
    pub fn init(&self) {
        for (base, offset) in [self.came(self.shared), self.was_read(self.shared)] {
            Mbarrier::new(base, offset).init(1);
        }
    }

    /// Whether this block claims for both.
    pub fn claims(&self) -> Reg<'k, bool> {
        self.rank.eq(0u32)
    }
}

/// The producers' way to agree on the next tile.
pub struct Agreement<'k> {
    pair: Pair<'k>,
    /// Parity of the phase in which the next number comes.
    parity: Var<'k, u32>,
}

impl<'k> Agreement<'k> {
    /// Of the producer of this block.
    pub fn new(pair: Pair<'k>) -> Self {
        Agreement { pair, parity: pair.k.var(0u32) }
    }

    /// The first block's `number`, in both blocks. `end` and numbers above it end the stream.
    pub fn agree(&self, number: Reg<'k, u32>, end: Reg<'k, u32>) -> Reg<'k, u32> {
        let Agreement { pair, mut parity } = *self;
        let (k, here, there) = (pair.k, pair.shared, pair.other);
        let barrier = |(base, offset)| Mbarrier::new(base, offset);
        let remote = |(base, offset)| RemoteMbarrier::new(base, offset);
        let agreed = k.var(number);
        k.either(pair.claims(), || {
            barrier(pair.was_read(here)).wait(parity.get() ^ 1);
            remote(pair.came(there)).send(number, pair.number(there));
        })
        .otherwise(|| {
            let came = barrier(pair.came(here));
            came.expect(NUMBER_BYTES);
            came.wait(parity.get());
            agreed.set(Ptr::<Shared, NoteWord>::from_address(here).load::<u32>(pair.number(here).1));
            k.when(agreed.get().lt(end), || remote(pair.was_read(there)).arrive());
        });
        parity ^= 1u32;
        agreed.get()
    }
}
