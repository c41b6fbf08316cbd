//! What kernels are made of: tiles in shared memory, rings, fragments, products, row values, copies and stores.

pub mod claims;
pub mod copy;
pub mod element;
pub mod half;
pub mod lanes;
pub mod operand;
pub mod packing;
pub mod product;
pub mod ring;
pub mod rows;
pub mod shared;
pub mod single;
pub mod store;
pub mod stream;
pub mod weigh;
pub mod work;
