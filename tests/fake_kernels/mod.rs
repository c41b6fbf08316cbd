//! Kernels that the fake driver takes for real ones, and how a test launches them.

#![allow(dead_code, reason = "each test program uses a part")]

use attnpack::{Arch, Cubin, DType, Device, Entry, Error, Group, MaskSupport, Pointers, Problem, Ptx, Schedule, Shape};

pub const SM_90: &[Cubin] = &[Cubin {
    arch: Arch { major: 9, minor: 0, specific: false },
    image: b"\x7fELF\0",
    registers: 128,
    spill_bytes: 0,
    checked_by: "ptxas",
}];

pub const fn ptx(text: &'static str) -> Option<Ptx> {
    Some(Ptx { text, version: (7, 0), target: Arch { major: 8, minor: 0, specific: false }, checked_by: None })
}

pub const PACKED: Entry = Entry {
    name: "packed",
    family: "test",
    dtype: DType::BF16,
    head_dim: 128,
    v_head_dim: 128,
    group: Group::Packed(4),
    mask: MaskSupport::Causal,
    copy_bytes: 16,
    block_q: 128,
    block_kv: 64,
    threads: 256,
    shared_bytes: 65_536,
    blocks_per_sm: 2,
    schedule: Schedule::Grid,
    models: "",
    cubins: SM_90,
    ptx: None,
};

pub const SHAPE: Shape = Shape { batch: 3, q_len: 100, kv_len: 200, q_heads: 8, kv_heads: 2, head_dim: 128 };
pub const POINTERS: Pointers = Pointers { q: 0x1000_0000, k: 0x2000_0000, v: 0x3000_0000, o: 0x4000_0000, lse: None };
/// A stream of the context at 0x5000.
pub const STREAM: usize = 0x50;

pub fn launch(device: &Device, problem: &Problem, pointers: Pointers, stream: usize) -> Result<attnpack::Launched, Error> {
    // SAFETY: the fake driver accesses neither the tensors nor the stream.
    unsafe { device.launch(problem, pointers, std::ptr::without_provenance_mut(stream)) }
}
