//! One file per kernel family; each reads like the algorithm.

pub mod prefill_mma;

use crate::ptx::builder::Kernel;
use crate::variant::{Family, Variant};

/// Builds the kernel of a variant.
pub fn build(variant: &Variant) -> Kernel {
    match variant.family {
        Family::PrefillMma => prefill_mma::build(variant),
    }
}
