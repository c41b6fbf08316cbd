//! Kernels for tests, and the parameters that a launch passes.

#![allow(dead_code, reason = "each test program uses a part")]

use std::mem::offset_of;

use attnpack::{Arch, DType, Entry, Group, MaskSupport, Ptx, Schedule};

include!(concat!(env!("OUT_DIR"), "/params.rs"));

/// The text of `echo.ptx`, with the offsets of this build's parameters.
fn echo_text() -> String {
    let mut text = include_str!("echo.ptx").replace("p.bytes", &size_of::<PrefillParams>().to_string());
    macro_rules! put {
        ($($name:ident)*) => {
            $(text = text.replace(
                concat!("[p.", stringify!($name), "]"),
                &format!("[p+{}]", offset_of!(PrefillParams, $name)),
            );)*
        };
    }
    put!(q o lse q_batch_stride q_seq_stride q_head_stride o_batch_stride o_seq_stride o_head_stride);
    put!(q_len kv_len q_heads causal scale_log2);
    text
}

/// Text that lives as long as a catalogue.
pub fn ptx(text: impl Into<String>) -> Option<Ptx> {
    let text = Box::leak(text.into().into_boxed_str());
    Some(Ptx { text, version: (7, 0), target: Arch { major: 8, minor: 0, specific: false }, checked_by: None })
}

/// The kernel of `echo.ptx`: `o = q * scale_log2`, in f32 with head_dim 64.
pub fn echo() -> Entry {
    Entry {
        name: "echo",
        family: "test",
        dtype: DType::F32,
        head_dim: 64,
        v_head_dim: 64,
        group: Group::Any,
        mask: MaskSupport::Any,
        copy_bytes: 4,
        block_q: 32,
        block_kv: 32,
        threads: 32,
        // More than a block gets without asking.
        shared_bytes: 64 << 10,
        blocks_per_sm: 1,
        schedule: Schedule::Grid,
        models: "",
        cubins: &[],
        ptx: ptx(echo_text()),
    }
}

/// A catalogue of its own. Kernels stay loaded as long as their context, and some tests need one that is not loaded.
pub fn catalog(entries: impl IntoIterator<Item = Entry>) -> &'static [Entry] {
    Box::leak(entries.into_iter().collect())
}
