//! What kernels are made of: tiles in shared memory, fragments, products, row values, copies and stores.

pub mod copy;
pub mod element;
pub mod half;
pub mod lanes;
pub mod product;
pub mod rows;
pub mod shared;
pub mod single;
pub mod store;
pub mod work;
