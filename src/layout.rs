//! Where the elements of a tensor lie: strides, extents, and whether two tensors share an element.

/// Strides of a tensor `[batch, seq, heads, head_dim]` in elements; the last dimension is contiguous.
///
/// The constructors saturate: a product beyond 64 bits becomes a stride that [`crate::Problem`] refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// Elements between batches.
    pub batch: u64,
    /// Elements between tokens.
    pub seq: u64,
    /// Elements between heads.
    pub head: u64,
}

impl Strides {
    /// `[batch, seq, heads, head_dim]` without gaps: the layout of projections and of FlashAttention.
    pub fn contiguous(seq: u32, heads: u32, head_dim: u32) -> Self {
        Self::packed_rows(u64::from(heads) * u64::from(head_dim), head_dim, seq)
    }

    /// Heads side by side in the rows of a wider matrix `[batch * seq, row_stride]`: packed projections, such as
    /// the columns of q in a fused QKV matrix. The tensor's first head starts at the pointer.
    pub fn packed_rows(row_stride: u64, head_dim: u32, seq: u32) -> Self {
        Strides { batch: row_stride.saturating_mul(seq.into()), seq: row_stride, head: head_dim.into() }
    }

    /// `[batch, heads, seq, head_dim]` without gaps: the layout of most KV caches, where `seq` is the capacity
    /// of the cache rather than the tokens in it.
    pub fn head_major(heads: u32, seq: u32, head_dim: u32) -> Self {
        let head = u64::from(seq) * u64::from(head_dim);
        Strides { batch: head.saturating_mul(heads.into()), seq: head_dim.into(), head }
    }
}

/// One strided dimension: how many steps, and how far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dim {
    extent: u64,
    stride: u64,
}

/// The elements of a tensor as a set of equally long rows: `start + sum(index * stride) + [0, row)`.
/// Bytes or elements; dimensions of extent 1 have stride 0, because their stride means nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Region {
    start: u64,
    dims: [Dim; 3],
    row: u64,
    span: u64,
}

impl Region {
    /// The region of a tensor `[extents.., row]`, or `None` when an offset in it does not fit 64 bits.
    pub(crate) fn new(extents: [u32; 3], strides: [u64; 3], row: u64) -> Option<Self> {
        let mut dims = [Dim { extent: 1, stride: 0 }; 3];
        let mut span = row;
        for ((dim, extent), stride) in dims.iter_mut().zip(extents).zip(strides) {
            if extent > 1 {
                *dim = Dim { extent: extent.into(), stride };
                span = span.checked_add(stride.checked_mul(u64::from(extent) - 1)?)?;
            }
        }
        Some(Region { start: 0, dims, row, span })
    }

    /// The region with every length multiplied: elements to bytes.
    pub(crate) fn scaled(mut self, factor: u64) -> Option<Self> {
        for dim in &mut self.dims {
            dim.stride = dim.stride.checked_mul(factor)?;
        }
        self.row = self.row.checked_mul(factor)?;
        self.span = self.span.checked_mul(factor)?;
        Some(self)
    }

    /// The region moved to an address, or `None` when it would end beyond 64 bits.
    pub(crate) fn at(self, start: u64) -> Option<Self> {
        start.checked_add(self.span)?;
        Some(Region { start, ..self })
    }

    /// Distance from the first element to the one after the last.
    pub(crate) fn span(&self) -> u64 {
        self.span
    }

    /// Strides of the three dimensions; 0 where the extent is 1.
    pub(crate) fn strides(&self) -> [u64; 3] {
        self.dims.map(|dim| dim.stride)
    }

    /// Whether two rows may share an element. Exact for nested dimensions, where each stride spans all that
    /// is inside it; anything more intricate counts as an overlap.
    pub(crate) fn overlaps_itself(&self) -> bool {
        let mut dims = self.dims;
        dims.sort_unstable_by_key(|dim| dim.stride);
        let mut inner = self.row;
        for dim in dims.iter().filter(|dim| dim.extent > 1) {
            if dim.stride < inner {
                return true;
            }
            inner += (dim.extent - 1) * dim.stride;
        }
        false
    }

    /// Whether two regions may share a byte. Never false for a true overlap.
    ///
    /// Exact for disjoint ranges and for tensors that interleave at one level: columns of the same packed
    /// rows, heads by turns, slots of a batch. At such a level every longer stride is a multiple of a common
    /// period; within a period each tensor occupies one interval, and the two intervals do not meet. Tensors
    /// that interleave at two levels at once are taken for overlapping.
    pub(crate) fn may_overlap(&self, other: &Region) -> bool {
        let (first, second) = if self.start <= other.start { (self, other) } else { (other, self) };
        let distance = second.start - first.start;
        if distance >= first.span {
            return false;
        }
        let strides = first.dims.iter().chain(&second.dims).map(|dim| dim.stride).filter(|&stride| stride > 0);
        !strides.clone().any(|level| {
            let period = strides.clone().filter(|&stride| stride >= level).fold(0, gcd);
            let offset = distance % period;
            offset >= first.span_below(level) && period - offset >= second.span_below(level)
        })
    }

    /// Span of one repetition at `level`: the dimensions with shorter strides and the row.
    fn span_below(&self, level: u64) -> u64 {
        let inner = self.dims.iter().filter(|dim| dim.stride < level);
        self.row + inner.map(|dim| (dim.extent - 1) * dim.stride).sum::<u64>()
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element, one by one.
    fn elements(region: &Region) -> Vec<u64> {
        let [a, b, c] = region.dims;
        let mut all = Vec::new();
        for i in 0..a.extent {
            for j in 0..b.extent {
                for k in 0..c.extent {
                    let start = region.start + i * a.stride + j * b.stride + k * c.stride;
                    all.extend(start..start + region.row);
                }
            }
        }
        all.sort_unstable();
        all
    }

    /// A small deterministic source of shapes.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % n
        }

        fn region(&mut self) -> Region {
            let extents = [0; 3].map(|_| self.below(3) as u32 + 1);
            let strides = [0; 3].map(|_| self.below(40));
            let row = self.below(4) + 1;
            let start = self.below(60);
            Region::new(extents, strides, row).and_then(|region| region.at(start)).expect("small")
        }
    }

    #[test]
    fn no_overlap_is_ever_missed() {
        let mut random = Random(1);
        let (mut shared, mut apart) = (0, 0);
        for _ in 0..200_000 {
            let (a, b) = (random.region(), random.region());
            let others = elements(&b);
            let share = elements(&a).iter().any(|element| others.binary_search(element).is_ok());
            assert!(!share || a.may_overlap(&b), "{a:?} and {b:?} share an element");
            assert_eq!(a.may_overlap(&b), b.may_overlap(&a), "{a:?} {b:?}");
            shared += u32::from(share);
            apart += u32::from(!a.may_overlap(&b));
        }
        assert!(shared > 10_000 && apart > 10_000, "the cases are one-sided: {shared} {apart}");
    }

    #[test]
    fn no_self_overlap_is_ever_missed() {
        let mut random = Random(2);
        let mut apart = 0;
        for _ in 0..100_000 {
            let region = random.region();
            let all = elements(&region);
            let repeats = all.windows(2).any(|pair| pair[0] == pair[1]);
            assert!(!repeats || region.overlaps_itself(), "{region:?} repeats an element");
            assert_eq!(*all.last().expect("not empty") + 1 - region.start, region.span, "{region:?}");
            apart += u32::from(!region.overlaps_itself());
        }
        assert!(apart > 10_000, "the cases are one-sided: {apart}");
    }

    #[test]
    fn packed_columns_do_not_overlap() {
        // q | k | v | o in rows of 4 * 64 elements, two heads of 32, batch 2, 5 tokens.
        let columns = |start| Region::new([2, 5, 2], [5 * 256, 256, 32], 32).and_then(|region| region.at(start)).expect("small");
        for other in [64, 128, 192] {
            assert!(!columns(0).may_overlap(&columns(other)));
        }
        assert!(columns(0).may_overlap(&columns(63)));
        assert!(columns(0).may_overlap(&columns(256 - 63)));
        assert!(columns(0).may_overlap(&columns(0)));
    }

    #[test]
    fn heads_by_turns_do_not_overlap() {
        // One row holds head 0 of q, head 0 of o, head 1 of q, head 1 of o.
        let turns = |start| Region::new([1, 5, 2], [0, 128, 64], 32).and_then(|region| region.at(start)).expect("small");
        assert!(!turns(0).may_overlap(&turns(32)));
        assert!(turns(0).may_overlap(&turns(31)));
        assert!(turns(0).may_overlap(&turns(64)));
    }

    #[test]
    fn offsets_beyond_64_bits_have_no_region() {
        assert!(Region::new([3, 1, 1], [u64::MAX / 2, 0, 0], 1).is_some());
        assert!(Region::new([3, 1, 1], [u64::MAX / 2, 0, 0], 2).is_none());
        assert!(Region::new([3, 1, 1], [u64::MAX / 2 + 1, 0, 0], 1).is_none());
        assert!(Region::new([1, 1, 1], [u64::MAX; 3], 1).is_some_and(|region| region.span() == 1));
        assert!(Region::new([2, 1, 1], [1 << 62, 0, 0], 1).is_some_and(|region| region.scaled(4).is_none()));
        assert!(Region::new([1, 1, 1], [0; 3], 8).is_some_and(|region| region.at(u64::MAX - 7).is_none()));
    }
}
