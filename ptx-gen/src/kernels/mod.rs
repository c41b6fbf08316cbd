//! One file per kernel family; each reads like the algorithm.

pub mod prefill_mma;
pub mod prefill_wgmma;
