//! Weir.

fn main() {}
