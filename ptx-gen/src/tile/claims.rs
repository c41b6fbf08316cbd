//! Tiles for the blocks of a persistent grid, claimed one by one without memory from the caller.
//!
//! A claimant is a block or, where two blocks take neighbouring tiles together, the first of the two. Claimant i takes tile i
//! first. Every further tile is claimed by an atomic increment of a counter that belongs to the grid. Counters live in a table
//! of the module, `.global` and zero when the module is loaded:
//! ```text
//! entry = { tag: 40 bits, next: 24 bits }     0: free
//! tag   = %gridid + 1
//! ```
//! Each claimant first *joins* its grid's entry: the one with its tag. The first of a grid to join writes the entry, at
//! `%gridid` mod 4096 or, if another grid alive is there, at the next free place. Writing needs a lock, so that a
//! grid never gets two entries; finding the own tag at its usual place needs none.
//!
//! Why no tile is lost or computed from another grid's count:
//! 1. `%gridid` differs between grids that are alive at once in a context. Launches get consecutive numbers; a graph's
//!    nodes get theirs when it is instantiated and keep them in every replay, but two instantiations differ and the
//!    replays of one do not overlap. Seen on an H200 (driver 580, 2026-11-30) with 8 streams, 3 priorities,
//!    programmatic launches, graphs with parallel branches, and up to 8 instantiations beside launches: 18,800 pairs of
//!    overlapping blocks of different grids, none with the same number. Grids of one stream overlap where a launch is a
//!    programmatic one: the second joins while the first still claims. To the table they are two grids like any others.
//! 2. Every claimant makes exactly one claim beyond the last tile. The claim that returns the last number, tiles - 1, comes
//!    after all claimants have joined and made theirs; it frees the entry. So an entry lives from its grid's first join to
//!    its last claim, and a replay with the same number starts from a free one.
//! 3. A multiprocessor array holds at most 128 grids (CUDA C++ Programming Guide, "Technical Specifications"), so one of
//!    128 neighbouring places is always free.
//! 4. The lock's holder is a running thread that waits for nothing, so waiting for the lock ends.
//!
//! What two grids of one kernel that are alive together and have numbers equal mod 4096 pay: the second one's blocks search
//! the places one by one under the lock, some 100 us each (estimated), and so do grids that come while one is displaced.
//! Never with one stream: of the two grids that may overlap there, the second has the number after the first's. A search from
//! the usual place up, left when it has found, would be short; but it changes how ptxas orders the consumers, and must be timed.
//!
//! Counters that grids share under a tag, restarting where they collide, need no lock. But a restart loses the count of
//! the blocks that have ended, the entry is then never freed, and a replay with the same number finds it used up.

use super::element::Word;
use super::ring::Handoff;
use crate::ptx::builder::Kernel;
use crate::ptx::inst::Order;
use crate::ptx::types::{Global, Ptr, Reg, Var};

/// Entries of the table.
const ENTRIES: u32 = 4096;

/// Places among which a grid's entry is: one more than other grids can be alive.
const WINDOW: u32 = 128;

/// Bits of an entry that count.
const NEXT_BITS: u32 = 24;

/// Behind the table: the lock, and the number of entries that are not at their usual place.
const LOCK: u32 = ENTRIES;

const DISPLACED: u32 = ENTRIES + 1;

/// The claims of a block; one thread joins, one claims.
#[derive(Clone, Copy)]
pub struct Claims<'k> {
    k: &'k Kernel,
    table: Ptr<'k, Global, Word>,
    /// How many claim: see above.
    claimants: Reg<'k, u32>,
    tiles: Reg<'k, u32>,
    /// Where the grid's entry is, from the thread that joins to the one that claims.
    joined: Handoff<'k>,
}

impl<'k> Claims<'k> {
    /// The claims of this grid, by so many claimants, for `tiles` tiles.
    pub fn new(k: &'k Kernel, claimants: Reg<'k, u32>, tiles: Reg<'k, u32>, joined: Handoff<'k>) -> Self {
        let table = Ptr::from_address(k.module_table("tile_claims", ENTRIES + 2));
        Claims { k, table, claimants, tiles, joined }
    }

    /// Whether there are more tiles than claimants.
    pub fn needed(&self) -> Reg<'k, bool> {
        self.tiles.gt(self.claimants)
    }

    /// Claims a tile if it is needed, once the grid's entry is known. The claim travels until [`Self::tile`] looks at it.
    pub fn claim(&self, claimed: Var<'k, u32>) {
        self.k.when(self.needed(), || claimed.set(self.word(self.joined.take()).atomic_add_low(1)));
    }

    /// What stands for a claim where none is needed: no tile.
    pub fn no_claim(&self) -> Reg<'k, u32> {
        self.tiles
    }

    /// The number of the tile that was claimed; none if it is `tiles` or more.
    pub fn tile(&self, claim: Reg<'k, u32>) -> Reg<'k, u32> {
        let next = claim & ((1 << NEXT_BITS) - 1);
        let is_last_claim = next.eq(self.tiles - 1);
        self.k.when(is_last_claim, || {
            let index = self.joined.take();
            self.word(index).store_strong(Order::Relaxed, 0);
            self.k.when(index.ne(self.home()), || {
                self.displaced().atomic_add(u64::MAX);
            });
        });
        next + self.claimants
    }

    /// Finds this grid's entry, or writes it.
    pub fn join(&self) {
        let k = self.k;
        let home = self.home();
        let found = k.var(ENTRIES);
        k.repeat("join", |joined| {
            self.look_at(home, found);
            joined.when(found.get().lt(ENTRIES));
            let lock = self.word(k.constant(LOCK));
            let has_lock = lock.compare_swap(Order::Acquire, 0, 1).eq(0u64);
            k.either(has_lock, || {
                self.find_or_write(home, found);
                lock.store_strong(Order::Release, 0);
            })
            .otherwise(|| k.sleep_ns(64));
            joined.when(found.get().lt(ENTRIES));
        });
        self.joined.give(found.get());
    }

    /// The usual place of this grid's entry.
    fn home(&self) -> Reg<'k, u32> {
        self.k.grid_id().low_half() & (ENTRIES - 1)
    }

    /// How many entries are elsewhere than at their usual place.
    fn displaced(&self) -> Ptr<'k, Global, Word> {
        self.word(self.k.constant(DISPLACED))
    }

    fn word(&self, index: Reg<'k, u32>) -> Ptr<'k, Global, Word> {
        self.table.offset(index.to_u64())
    }

    /// The entry of this grid before its first claim.
    fn fresh(&self) -> Reg<'k, u64> {
        (self.k.grid_id() + 1).shift_left(NEXT_BITS)
    }

    /// Notes place `index` in `found` if it has this grid's tag; `found` is [`ENTRIES`] as long as it is not known.
    fn look_at(&self, index: Reg<'k, u32>, found: Var<'k, u32>) {
        let entry = self.word(index);
        let tag = entry.load_strong().shift_right(NEXT_BITS);
        self.k.when(tag.eq(self.fresh().shift_right(NEXT_BITS)), || found.set(index));
    }

    /// With the lock: notes this grid's entry in `found`, and writes it before if there is none.
    fn find_or_write(&self, home: Reg<'k, u32>, found: Var<'k, u32>) {
        let k = self.k;
        self.look_at(home, found);
        k.when(found.get().eq(ENTRIES), || {
            let is_home_free = self.word(home).load_strong().eq(0u64);
            let is_simple = is_home_free.and(self.displaced().load_strong().eq(0u64));
            k.either(is_simple, || self.write(home, found)).otherwise(|| self.search_or_displace(home, found));
        });
    }

    /// With the lock, where some grid's entry is not at its usual place or cannot be.
    fn search_or_displace(&self, home: Reg<'k, u32>, found: Var<'k, u32>) {
        let k = self.k;
        let each_place = |body: &dyn Fn(Reg<'k, u32>)| {
            k.each_down("place", k.constant(WINDOW), k.constant(0), |n| body(self.nth_place(home, n)));
        };
        each_place(&|place| self.look_at(place, found));
        each_place(&|place| {
            let is_free = self.word(place).load_strong().eq(0u64);
            k.when(is_free.and(found.get().eq(ENTRIES)), || {
                self.write(place, found);
                k.when(place.ne(home), || {
                    self.displaced().atomic_add(1);
                });
            });
        });
    }

    /// Place n of the window, the usual one last.
    fn nth_place(&self, home: Reg<'k, u32>, n: Reg<'k, u32>) -> Reg<'k, u32> {
        (home + n) & (ENTRIES - 1)
    }

    fn write(&self, index: Reg<'k, u32>, found: Var<'k, u32>) {
        let entry = self.word(index);
        entry.store_strong(Order::Relaxed, self.fresh());
        found.set(index);
    }
}
