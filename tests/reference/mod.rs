//! What attention is and how close to it a kernel must come: shared by the tests and the examples.
//!
//! [`attention`] holds the two computations that everything is judged by, [`compare`] the judgement, [`data`] and
//! [`fixtures`] the inputs, [`image`] the memory layouts, [`cases`] what is run, and [`gpu`] runs it on every kernel.

#![allow(dead_code, unused_imports, reason = "each program uses a part")]

pub mod attention;
pub mod cases;
pub mod compare;
pub mod data;
pub mod distant;
pub mod element;
pub mod fixtures;
pub mod gpu;
pub mod image;
pub mod kernels;
pub mod layout;

pub use attention::{Inputs, Output, Tensor, plain, reference};
pub use cases::Case;
pub use compare::{Verdict, judge, judge_with};
pub use data::{Data, Kind};
pub use image::Image;
pub use kernels::Kernel;
pub use layout::Layout;
