//! What a launch by tensor maps passes to the driver: maps, blocks that claim tiles, clusters, and whether it is programmatic.

#![cfg(target_os = "linux")]

use attnpack::{Boxes, DType, Device, Entry, Error, Group, Mask, MaskSupport, Pointers, Problem, Schedule, Shape, Strides, TensorBox};

mod device_kernels;
mod fake_driver;
mod fake_kernels;

use device_kernels::PrefillTmaParams;
use fake_driver::{Fake, with_driver};
use fake_kernels::{PACKED, POINTERS, SHAPE, STREAM, launch};

/// A device with kernels, whose only context is the foreign one at 0x5000, which is current.
fn device(fake: &Fake, catalog: &'static [Entry]) -> Device {
    device_of(fake, catalog, 132)
}

fn device_of(fake: &Fake, catalog: &'static [Entry], multiprocessors: i32) -> Device {
    fake.multiprocessors(multiprocessors);
    fake.current(0x5000, 7, 0);
    fake.stream(STREAM, 0x5000);
    // SAFETY: the fake driver runs no kernel.
    unsafe { Device::from_current_context().expect("a current context").with_catalog(catalog) }
}

const BOX: TensorBox = TensorBox { columns: 64, heads: 1, rows: 128, chunks: 2 };

const PERSISTENT_BOXES: Boxes = Boxes { q: BOX, k: TensorBox { rows: 96, ..BOX }, v: BOX, o: TensorBox { rows: 16, ..BOX } };

static PERSISTENT: [Entry; 2] = [
    Entry {
        name: "persistent",
        group: Group::Any,
        blocks_per_sm: 1,
        schedule: Schedule::Persistent { boxes: PERSISTENT_BOXES, cluster: 1, together: &[1] },
        ..PACKED
    },
    Entry { name: "by_address", group: Group::Any, mask: MaskSupport::Any, copy_bytes: 4, ..PACKED },
];

#[test]
fn a_persistent_launch_passes_tensor_maps() {
    with_driver("a_persistent_launch_passes_tensor_maps", "cuda_12_0", |fake| {
        fake.expect_params::<PrefillTmaParams>();
        let device = device(fake, &PERSISTENT);
        let shape = Shape { batch: 3, q_len: 1000, kv_len: 2000, q_heads: 8, kv_heads: 2, head_dim: 128 };
        let builder = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).scale(2.0).with_lse();
        let problem = builder.q_strides(Strides::packed_rows(1536, 128, 1000)).k_strides(Strides::head_major(2, 4096, 128)).build();
        let pointers = Pointers { lse: Some(0x6000_0000), ..POINTERS };
        let launched = launch(&device, &problem.expect("legal"), pointers, STREAM).expect("launched");
        assert_eq!((launched.choice.entry.name, launched.grid), ("persistent", [132, 1, 1]), "a block for each multiprocessor");

        let (seen, params): (_, PrefillTmaParams) = fake.last_launch().expect("a launch");
        assert_eq!(seen.sizes, [132, 1, 1, 256, 1, 1, 65_536, 1, 0, 0]);
        let (bf16, swizzled) = (9_u64 << 32, 3);
        let map = |address, extents: [u64; 5], strides: [u64; 4], rows| {
            let mut words = vec![address, bf16 | swizzled];
            words.extend(extents.into_iter().chain(strides).chain([64, 1, rows, 2, 1]));
            words
        };
        assert_eq!(params.q.0.to_vec(), map(0x1000_0000, [64, 8, 1000, 2, 3], [256, 3072, 128, 3_072_000], 128));
        assert_eq!(params.k.0.to_vec(), map(0x2000_0000, [64, 2, 2000, 2, 3], [1_048_576, 256, 128, 2_097_152], 96));
        assert_eq!(params.v.0.to_vec(), map(0x3000_0000, [64, 2, 2000, 2, 3], [256, 512, 128, 1_024_000], 128));
        assert_eq!(params.o.0.to_vec(), map(0x4000_0000, [64, 8, 1000, 2, 3], [256, 2048, 128, 2_048_000], 16));
        assert_eq!((params.lse, params.scale_log2), (0x6000_0000, 2.0 * std::f32::consts::LOG2_E));
        assert_eq!([params.tiles, params.q_tiles, params.section_heads], [8 * 8 * 3, 8, 24]);
        assert_eq!([params.heads, params.q_len, params.kv_len], [8, 1000, 2000]);
    });
}

/// Where that is expected to end sooner: the tiles of prompts of 1,024 tokens, of which the first sees 64 and the last all, are
/// faster one after another if there are one or two for each multiprocessor; those of 512 tokens are not (H200, 2026-12-01;
/// RESULTS.md).
#[test]
fn blocks_that_stay_share_multiprocessors() {
    const SCHEDULE: Schedule = Schedule::Persistent { boxes: PERSISTENT_BOXES, cluster: 1, together: &[1, 2] };
    static SHORT: [Entry; 1] = [Entry { block_q: 64, blocks_per_sm: 2, schedule: SCHEDULE, ..PERSISTENT[0] }];
    with_driver("blocks_that_stay_share_multiprocessors", "cuda_12_0", |fake| {
        fake.expect_params::<PrefillTmaParams>();
        let device = device(fake, &SHORT);
        let blocks = |batch, tokens, q_heads| {
            let shape = Shape { batch, q_len: tokens, kv_len: tokens, q_heads, kv_heads: 2, head_dim: 128 };
            let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build().expect("legal");
            let launched = launch(&device, &problem, POINTERS, STREAM).expect("launched");
            let (seen, _): (_, PrefillTmaParams) = fake.last_launch().expect("a launch");
            assert_eq!((launched.grid, seen.sizes[7..].to_vec()), ([seen.sizes[0], 1, 1], vec![1, 0, 0]), "no clusters");
            seen.sizes[0]
        };
        assert_eq!(blocks(1, 512, 12), 96, "no more than tiles");
        assert_eq!(blocks(1, 1024, 12), 132, "192 tiles");
        assert_eq!(blocks(1, 512, 32), 256, "a block for each tile");
        assert_eq!(blocks(4, 2048, 32), 264, "2,048 tiles");
    });
}

/// The blocks of a cluster take neighbouring tiles, which the kernel counts as one.
#[test]
fn neighbours_are_launched_as_clusters() {
    static PAIRED: [Entry; 1] =
        [Entry { name: "paired", schedule: Schedule::Persistent { boxes: PERSISTENT_BOXES, cluster: 2, together: &[1] }, ..PERSISTENT[0] }];
    with_driver("neighbours_are_launched_as_clusters", "cuda_12_0", |fake| {
        fake.expect_params::<PrefillTmaParams>();
        let device = device(fake, &PAIRED);
        let on = |batch, q_len| {
            let shape = Shape { batch, q_len, kv_len: 2000, q_heads: 8, kv_heads: 2, head_dim: 128 };
            let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build().expect("legal");
            let launched = launch(&device, &problem, POINTERS, STREAM).expect("launched");
            let (seen, params): (_, PrefillTmaParams) = fake.last_launch().expect("a launch");
            assert_eq!((launched.cluster, seen.sizes[7]), (2, 2));
            assert!(launched.to_string().contains(" in clusters of 2"), "{launched}");
            (launched.grid, [params.tiles, params.q_tiles])
        };
        // Tiles of 128 rows: 8 of a head of 1,000 tokens, 5 of 520 and so 3 pairs.
        assert_eq!(on(3, 1000), ([132, 1, 1], [4 * 8 * 3, 4]), "66 clusters for 96 pairs");
        assert_eq!(on(1, 520), ([48, 1, 1], [3 * 8, 3]), "no more than pairs");
        let device = device_of(fake, &PAIRED, 131);
        let shape = Shape { batch: 3, q_len: 1000, kv_len: 2000, q_heads: 8, kv_heads: 2, head_dim: 128 };
        let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build().expect("legal");
        assert_eq!(launch(&device, &problem, POINTERS, STREAM).expect("launched").grid, [130, 1, 1], "whole clusters");
    });
}

const SLICE: TensorBox = TensorBox { columns: 16, heads: 1, rows: 64, chunks: 1 };

const SPLIT_BOXES: Boxes = Boxes { q: TensorBox { rows: 64, chunks: 1, ..BOX }, k: BOX, v: BOX, o: SLICE };

static SPLIT: [Entry; 1] = [Entry {
    name: "split",
    group: Group::Any,
    block_q: 64,
    blocks_per_sm: 2,
    schedule: Schedule::Split { boxes: SPLIT_BOXES, clusters: &[1, 2, 4] },
    ..PACKED
}];

/// A tile has the tokens of a group's heads, as many as there are rows for, and takes a cluster.
#[test]
fn a_split_launch_packs_a_groups_heads_into_clusters() {
    with_driver("a_split_launch_packs_a_groups_heads_into_clusters", "cuda_12_0", |fake| {
        fake.expect_params::<PrefillTmaParams>();
        let device = device(fake, &SPLIT);
        let on = |q_heads, kv_heads| {
            let shape = Shape { batch: 1, q_len: 50, kv_len: 4096, q_heads, kv_heads, head_dim: 128 };
            let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build().expect("legal");
            let launched = launch(&device, &problem, POINTERS, STREAM).expect("launched");
            let (seen, params): (_, PrefillTmaParams) = fake.last_launch().expect("a launch");
            assert!(launched.to_string().contains("; the query heads of a group packed, their keys split among blocks; "), "{launched}");
            let copied = |map: [u64; 16]| map[11..].to_vec();
            assert_eq!((seen.sizes[0], seen.sizes[7]), (params.tiles * launched.cluster, launched.cluster));
            (
                [params.tiles, params.heads, params.packed_heads, params.tile_tokens],
                copied(params.q.0),
                copied(params.o.0),
                launched.cluster,
                seen.sizes[8],
            )
        };
        // Where two blocks have to share a multiprocessor the driver is asked to spread them evenly.
        const BALANCED: u32 = 2;
        // 64 rows are 12 tokens of 5 heads: 5 tiles for each of 2 KV heads, which clusters of 4 spread over 40 blocks.
        assert_eq!(on(10, 2), ([10, 2, 5, 12], vec![64, 5, 12, 1, 1], vec![16, 5, 12, 1, 1], 4, 0));
        assert_eq!(on(2, 2), ([2, 2, 1, 64], vec![64, 1, 64, 1, 1], vec![16, 1, 64, 1, 1], 4, 0));
        assert_eq!(on(64, 1), ([50, 1, 64, 1], vec![64, 64, 1, 1, 1], vec![16, 64, 1, 1, 1], 4, BALANCED));
        assert_eq!(
            on(128, 2),
            ([100, 2, 64, 1], vec![64, 64, 1, 1, 1], vec![16, 64, 1, 1, 1], 2, BALANCED),
            "100 clusters of 4 do not fit"
        );
        const FOUR: Schedule = Schedule::Split { boxes: SPLIT_BOXES, clusters: &[4] };
        static ALONE: [Entry; 1] = [Entry { blocks_per_sm: 1, schedule: FOUR, ..SPLIT[0] }];
        let shape = Shape { batch: 1, q_len: 50, kv_len: 4096, q_heads: 64, kv_heads: 1, head_dim: 128 };
        let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build().expect("legal");
        let device_alone = self::device(fake, &ALONE);
        let launched = launch(&device_alone, &problem, POINTERS, STREAM).expect("launched");
        let (seen, _): (_, PrefillTmaParams) = fake.last_launch().expect("a launch");
        assert_eq!((launched.grid, seen.sizes[8]), ([200, 1, 1], 0), "none can share");
        let shape = Shape { batch: 1, q_len: 1, kv_len: 4096, q_heads: 65, kv_heads: 1, head_dim: 128 };
        let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build().expect("legal");
        let refused =
            Error::UnsupportedGroup { group: 65, head_dim: 128, dtype: DType::BF16, device: device.capability(), available: vec![] };
        assert_eq!(device.supports(&problem).map(|choice| choice.entry.name), Err(refused));
        // Tiles of 16 tokens of 4 heads, of 2 KV heads each, alone in their clusters.
        let many = Shape { batch: 65_535, q_len: 300_000, kv_len: 300_000, ..SHAPE };
        let many = Problem::prefill(DType::BF16, many).mask(Mask::Causal).build().expect("legal");
        let (value, limit) = (65_535 * 2 * 18_750, (1 << 31) - 1);
        let refused = Error::TooLarge { what: "batch * q_heads * (q_len / rows of a tile)", value, limit };
        assert_eq!(device.supports(&many).map(|choice| choice.entry.name), Err(refused));
    });
}

/// The fake driver takes what a real one takes.
#[test]
fn a_cluster_that_is_too_large_is_refused() {
    static ENTRIES: [Entry; 1] = [Entry { schedule: Schedule::Split { boxes: SPLIT_BOXES, clusters: &[9] }, ..SPLIT[0] }];
    with_driver("a_cluster_that_is_too_large_is_refused", "cuda_12_0", |fake| {
        fake.expect_params::<PrefillTmaParams>();
        let problem = Problem::prefill(DType::BF16, SHAPE).mask(Mask::Causal).build().expect("legal");
        let refused = launch(&device(fake, &ENTRIES), &problem, POINTERS, STREAM).expect_err("9 blocks");
        assert!(matches!(&refused, Error::Driver { call: "cuLaunchKernelEx", source } if source.code == 912), "{refused}");
    });
}

/// Where it is asked for, and the kernel waits by itself; whether or not the blocks form clusters.
#[test]
fn a_launch_is_programmatic_where_it_can_be() {
    with_driver("a_launch_is_programmatic_where_it_can_be", "cuda_12_0", |fake| {
        fake.expect_params::<[u8; 0]>();
        let mut device = device(fake, &[]);
        assert!(!device.programmatic_launch());
        let shape = Shape { batch: 1, q_len: 16, kv_len: 4096, ..SHAPE };
        let problem = Problem::prefill(DType::BF16, shape).mask(Mask::Causal).build().expect("legal");
        let rows_on_8_bytes = Pointers { q: POINTERS.q + 8, ..POINTERS };
        for (catalog, pointers, name) in
            [(&SPLIT[..], POINTERS, "split"), (&PERSISTENT[..], POINTERS, "persistent"), (&PERSISTENT[..], rows_on_8_bytes, "by_address")]
        {
            for allowed in [true, false] {
                device.set_programmatic_launch(allowed);
                // SAFETY: the fake driver runs no kernel.
                let device = unsafe { device.clone().with_catalog(catalog) };
                let launched = launch(&device, &problem, pointers, STREAM).expect("launched");
                assert_eq!((launched.choice.entry.name, launched.cluster > 1), (name, name == "split"));
                assert_eq!(launched.programmatic, allowed && name != "by_address", "{launched}");
                assert_eq!(launched.to_string().ends_with(", launched programmatically"), launched.programmatic, "{launched}");
                let (seen, _) = fake.last_launch::<[u8; 0]>().expect("a launch");
                assert_eq!([seen.sizes[7], seen.sizes[9]], [launched.cluster, u32::from(launched.programmatic)], "{launched}");
            }
        }
    });
}

/// A map's strides end below 2^40 bytes: beyond them, and where rows do not start on 16 bytes, another kernel serves.
#[test]
fn what_no_tensor_map_can_express_gets_another_kernel() {
    with_driver("what_no_tensor_map_can_express_gets_another_kernel", "cuda_12_4", |fake| {
        let device = device(fake, &PERSISTENT);
        let builder = Problem::prefill(DType::BF16, SHAPE).mask(Mask::Causal);
        let chosen = |builder: attnpack::ProblemBuilder| device.supports(&builder.build().expect("legal")).expect("served").entry.name;
        assert_eq!(chosen(builder), "persistent");
        assert_eq!(chosen(builder.k_strides(Strides { batch: 0, ..Strides::contiguous(200, 2, 128) })), "persistent");
        assert_eq!(chosen(builder.k_strides(Strides { batch: 1 << 39, ..Strides::contiguous(200, 2, 128) })), "by_address");
        assert_eq!(chosen(builder.q_strides(Strides { batch: 1 << 38, ..Strides::contiguous(100, 8, 128) })), "persistent");
        assert_eq!(chosen(builder.q_strides(Strides::packed_rows(1028, 128, 100))), "by_address", "rows on 8 bytes");
        // SAFETY: the fake driver runs no kernel.
        let alone = unsafe { device.with_catalog(&PERSISTENT[..1]) };
        let far = builder.k_strides(Strides { batch: 1 << 39, ..Strides::contiguous(200, 2, 128) }).build().expect("legal");
        let refused = Error::TooLarge { what: "a stride in bytes", value: 1 << 40, limit: (1 << 40) - 1 };
        assert_eq!(alone.supports(&far).map(|choice| choice.entry.name), Err(refused));
        let many = Shape { batch: 65_535, q_len: 2100, kv_len: 2100, ..SHAPE };
        let many = Problem::prefill(DType::BF16, many).mask(Mask::Causal).build().expect("legal");
        let (what, limit) = ("batch * q_heads * (q_len / rows of a tile)", (1 << 23) - 1);
        let refused = Error::TooLarge { what, value: 65_535 * 8 * 17, limit };
        assert_eq!(alone.supports(&many).map(|choice| choice.entry.name), Err(refused));
    });
}
