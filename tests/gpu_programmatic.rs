//! Programmatic launches on a real GPU.
//!
//! Without a GPU one line says that all is skipped; `ATTNPACK_REQUIRE_GPU=1` makes that a failure.

use std::sync::Arc;

use attnpack::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use attnpack::cudarc::driver::{CudaSlice, CudaStream};
use attnpack::{DType, Device, Entry, Mask, Operand, Problem, Shape};

mod real_gpu;

use real_gpu::{for_capture, values};

/// Launches of which each reads as q what the one before wrote as o, and writes o where that one read q. Keys and values are
/// others each time, lest the chain come to rest and an old q do as well.
struct Chain {
    problems: [Problem; 2],
    rows: [CudaSlice<half::bf16>; 2],
    kv: CudaSlice<half::bf16>,
    lse: CudaSlice<f32>,
}

impl Chain {
    const LINKS: usize = 48;

    fn new(stream: &Arc<CudaStream>, shape: Shape) -> Self {
        let problem = |mask| Problem::prefill(DType::BF16, shape).mask(mask).scale(1.0).with_lse().build().expect("legal");
        let problems = [Mask::Full, Mask::Causal].map(problem);
        let random = |count, seed| {
            let elements: Vec<_> = values(count, seed).into_iter().map(half::bf16::from_f32).collect();
            stream.clone_htod(&elements).expect("copied")
        };
        let [rows, kv, lse] = [Operand::Q, Operand::K, Operand::Lse].map(|operand| problems[0].span_elems(operand));
        let lse = stream.alloc_zeros(Self::LINKS * lse as usize).expect("memory");
        Chain { problems, rows: [random(rows, 1), random(rows, 2)], kv: random(kv + 16 * Self::LINKS as u64, 3), lse }
    }

    fn launch(&mut self, device: &Device, stream: &CudaStream) {
        let lse_len = self.lse.len() / Self::LINKS;
        for link in 0..Self::LINKS {
            // The same kernel twice, then another one.
            let problem = &self.problems[usize::from(link % 3 > 0)];
            let [even, odd] = &mut self.rows;
            let (q, o) = if link % 2 == 0 { (even, odd) } else { (odd, even) };
            let (k, v) = (self.kv.slice(8 * link..), self.kv.slice(8 * (Self::LINKS + link)..));
            let mut lse = self.lse.slice_mut(link * lse_len..(link + 1) * lse_len);
            let launched = device.prefill(stream, problem, q, &k, &v, o, Some(&mut lse)).expect("launched");
            let waits = launched.choice.entry.schedule.boxes().is_some();
            assert_eq!(launched.programmatic, device.programmatic_launch() && waits, "{launched}");
        }
    }

    /// The last two outputs, and the log-sum-exp of every link.
    fn results(&self, stream: &Arc<CudaStream>) -> ([Vec<half::bf16>; 2], Vec<f32>) {
        (self.rows.each_ref().map(|rows| stream.clone_dtoh(rows).expect("copied")), stream.clone_dtoh(&self.lse).expect("copied"))
    }
}

/// Whether they overlap or not, in a stream and in a graph; with tiles that are claimed, and with few blocks.
#[test]
fn programmatic_launches_give_the_same_bits() {
    let Some((device, stream, _turn)) = for_capture(attnpack::catalog()) else { return };
    let programmatic = device.clone().with_programmatic_launch(true);
    let is_square = |entry: &&Entry| entry.dtype == DType::BF16 && entry.head_dim == entry.v_head_dim;
    let head_dims: std::collections::BTreeSet<u32> = device.catalog().iter().filter(is_square).map(|entry| entry.head_dim).collect();
    let few = Shape { batch: 1, q_len: 16, kv_len: 300, q_heads: 8, kv_heads: 2, head_dim: 0 };
    let many = Shape { batch: 2, q_len: 1500, kv_len: 1700, q_heads: 18, kv_heads: 6, head_dim: 0 };
    for shape in head_dims.into_iter().flat_map(|head_dim| [few, many].map(|shape| Shape { head_dim, ..shape })) {
        let mut chains = [(); 3].map(|()| Chain::new(&stream, shape));
        let [in_turn, overlapping, in_graph] = &mut chains;
        const ROUNDS: usize = 3;
        (0..ROUNDS).for_each(|_| in_turn.launch(&device, &stream));
        (0..ROUNDS).for_each(|_| overlapping.launch(&programmatic, &stream));
        stream.synchronize().expect("done");
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("begun");
        in_graph.launch(&programmatic, &stream);
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        let graph = graph.expect("a valid capture").expect("a graph");
        (0..ROUNDS).for_each(|_| graph.launch().expect("replayed"));

        let [expected, overlapping, in_graph] = chains.each_ref().map(|chain| chain.results(&stream));
        assert!(expected.0[0] != expected.0[1], "the chain came to rest");
        assert!(overlapping == expected, "{shape:?}: other bits in the stream");
        assert!(in_graph == expected, "{shape:?}: other bits in the graph");
    }
}
