//! The build, broken on purpose: each way to fail says what to do, and nothing is swallowed.
//!
//! The build runs in this process with the settings of a test; generator and ptxas are shell scripts.

#![cfg(unix)]

mod bench;
#[path = "../build_support/mod.rs"]
mod build_support;
mod generators;
mod kernels;
mod parts;
mod real;
mod reuse;
mod tools;
