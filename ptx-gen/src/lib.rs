//! attnpack's kernel generator: rows of a table in, PTX text out.
//!
//! Data flows one way: `table` row → `variant` → `kernels` → `tile` operations → `ptx`
//! instruction list → text. The library is deterministic (the same input gives the same bytes),
//! reads no environment and has no dependencies.

#![forbid(unsafe_code)]

pub mod cli;
mod kernels;
pub mod manifest;
pub mod params;
pub mod ptx;
mod table;
mod tile;
mod variant;
