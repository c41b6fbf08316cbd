//! PTX as typed values: registers, one instruction enum, the builder that kernels are written with,
//! and the text. Only `emit` knows PTX syntax.

pub mod access;
pub mod builder;
pub mod emit;
pub mod inst;
pub mod ops;
pub mod strong;
#[cfg(test)]
mod tests;
pub mod types;
pub mod warpgroup;
