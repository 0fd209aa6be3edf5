//! A simulated model server.
fn main() {}
