//! Says why dispatch found nothing: the first requirement that no kernel meets, and what there is instead.

use std::cmp::Reverse;

use crate::catalog::{Arch, Entry, Group};
use crate::dispatch::{Alignment, Capability, Policy, best};
use crate::error::{Error, RowStart};
use crate::problem::Problem;
use crate::shape::Operand;
use crate::tensor_map;

/// The error for a problem that no kernel of `catalog` serves on `device`.
///
/// What "this build has" is what the device can run, compiled just in time or not: where that serves, the policy is to blame.
pub(crate) fn explain(problem: &Problem, alignment: Alignment, device: Capability, catalog: &'static [Entry]) -> Error {
    if let Some((choice, _)) = best(problem, alignment, device, Policy::CubinFirst, catalog) {
        return Error::JitRefused { device, kernel: choice.entry.name };
    }
    let (dtype, head_dim, mask, group) = (problem.dtype(), problem.shape().head_dim, problem.mask(), problem.group());
    let usable = |entries: &[&'static Entry]| keep(entries.iter().copied(), |entry| entry.on(device, Policy::CubinFirst).is_some());
    let all = keep(catalog, |_| true);
    if !all.is_empty() && keep(catalog, |entry| entry.code_for(device).is_some()).is_empty() {
        return Error::UnsupportedDevice { device, available: targets(&all) };
    }

    let same_dtype = keep(catalog, |entry| entry.dtype == dtype);
    if same_dtype.is_empty() {
        let available = unique(usable(&all).iter().map(|entry| entry.dtype), |dtype| dtype.bytes());
        return Error::UnsupportedDType { dtype, device, available };
    }
    let same_head = keep(same_dtype.iter().copied(), |entry| entry.head_dim == head_dim && !is_for_others(entry, device));
    if same_head.is_empty() {
        let available = unique(usable(&same_dtype).iter().map(|entry| entry.head_dim), |head_dim| head_dim);
        return Error::UnsupportedHeadDim { head_dim, dtype, device, available };
    }
    let same_head = match keep(same_head.iter().copied(), |entry| entry.v_head_dim == problem.v_head_dim()) {
        fitting if fitting.is_empty() => {
            let available = unique(usable(&same_head).iter().map(|entry| entry.v_head_dim), |v_head_dim| v_head_dim);
            return Error::UnsupportedVHeadDim { v_head_dim: problem.v_head_dim(), head_dim, dtype, device, available };
        }
        fitting => fitting,
    };
    let same_mask = keep(same_head, |entry| entry.serves_mask(mask));
    if same_mask.is_empty() {
        return Error::UnsupportedMask { mask, head_dim, dtype, device };
    }
    let same_group = keep(same_mask.iter().copied(), |entry| entry.serves_group(group));
    if same_group.is_empty() {
        let available = unique(usable(&same_mask).iter().filter_map(|entry| ratio(entry)), |ratio| ratio);
        return Error::UnsupportedGroup { group, head_dim, dtype, device, available };
    }
    let q_len = u64::from(problem.shape().q_len);
    let same_group = match keep(same_group.iter().copied(), |entry| q_len <= entry.longest()) {
        fitting if fitting.is_empty() => {
            let limit = same_group.iter().map(|entry| entry.longest()).max().unwrap_or(0);
            return Error::TooLarge { what: "q_len", value: q_len, limit };
        }
        fitting => fitting,
    };
    let required = same_group.iter().map(|entry| entry.copy_bytes).min().unwrap_or(16);
    let aligned = keep(same_group, |entry| entry.copy_bytes <= alignment.bytes());
    if aligned.is_empty() { misaligned(problem, alignment, required) } else { unusable(problem, &aligned, device) }
}

/// The error for kernels that serve the problem and that the device cannot run, or not at once.
fn unusable(problem: &Problem, entries: &[&'static Entry], device: Capability) -> Error {
    let with_code = keep(entries.iter().copied(), |entry| entry.code_for(device).is_some());
    let Some(required) = with_code.iter().map(|entry| entry.shared_bytes).min() else {
        return Error::UnsupportedDevice { device, available: targets(entries) };
    };
    if required > device.shared_optin_bytes {
        return Error::SharedMemory { device, required };
    }
    if let Some(value) = tensor_map::largest_stride(problem) {
        return Error::TooLarge { what: "a stride in bytes", value, limit: tensor_map::STRIDE_LIMIT - 1 };
    }
    // What is left: more tiles than the blocks of a grid can claim, or than it has room for clusters. Told of the kernel that
    // takes the most, and among equals of the one with the largest tiles.
    let limits = with_code.iter().filter_map(|entry| Some((entry.most_tiles()?, entry.tiles(problem))));
    let (limit, value) = limits.max_by_key(|(most, tiles)| (*most, Reverse(*tiles))).unwrap_or_default();
    Error::TooLarge { what: "batch * q_heads * (q_len / rows of a tile)", value, limit }
}

/// Names the address or the stride that spoils the alignment.
fn misaligned(problem: &Problem, alignment: Alignment, required: u32) -> Error {
    let mut parts = Operand::STRIDED.into_iter().zip(alignment.addresses).flat_map(|(operand, address)| {
        let [batch, seq, head] = problem.region(operand).strides();
        [
            (operand, RowStart::Address, address),
            (operand, RowStart::BatchStride, batch),
            (operand, RowStart::SeqStride, seq),
            (operand, RowStart::HeadStride, head),
        ]
    });
    let culprit = parts.find(|(.., bytes)| bytes % u64::from(required) != 0);
    let (operand, part, bytes) = culprit.unwrap_or((Operand::Q, RowStart::Address, 0));
    Error::Misaligned { operand, part, bytes, required }
}

/// Whether an entry is written for the instructions of other devices: no cargo feature has code of it for this one.
fn is_for_others(entry: &'static Entry, device: Capability) -> bool {
    let targets = targets(&[entry]);
    entry.code_for(device).is_none() && !targets.is_empty() && targets.iter().all(|arch| arch.specific)
}

fn targets(entries: &[&Entry]) -> Vec<Arch> {
    let archs =
        entries.iter().flat_map(|entry| entry.cubins.iter().map(|cubin| cubin.arch).chain(entry.ptx.as_ref().map(|ptx| ptx.target)));
    unique(archs, |arch| arch)
}

fn ratio(entry: &Entry) -> Option<u32> {
    match entry.group {
        Group::Packed(ratio) => Some(ratio),
        Group::Any => None,
    }
}

fn keep(entries: impl IntoIterator<Item = &'static Entry>, wanted: impl Fn(&'static Entry) -> bool) -> Vec<&'static Entry> {
    entries.into_iter().filter(|&entry| wanted(entry)).collect()
}

/// The different values, ascending by key.
fn unique<T: Copy + PartialEq, K: Ord>(values: impl Iterator<Item = T>, key: impl Fn(T) -> K) -> Vec<T> {
    let mut all: Vec<T> = Vec::new();
    for value in values {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all.sort_by_key(|&value| key(value));
    all
}
