//! The kernel programs of Sluice, one file a concern, each with its counterpart of the same name in
//! gateway-common (map layouts) and in the daemon's `kernel` module:
//!
//! - [`direct`]: gives a new connection to a model server's own socket, and finds those (sk_lookup,
//!   socket operations).
//! - [`enrol`]: knows the pods' ends of our connections, and what clients acknowledge (sock_ops).
//! - [`carry`]: what [`local`] (sk_msg) and [`splice`] (sk_skb) do with a response's bytes.
//! - [`steer`]: gives a new connection to a worker's listening socket (sk_lookup).
//! - [`maps`]: every map, and who writes it.
#![no_std]
#![no_main]
// For the one instruction that `direct` adds by.
#![feature(asm_experimental_arch)]

mod carry;
mod direct;
mod enrol;
mod local;
mod maps;
mod splice;
mod steer;

#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

// No reachable code panics: the verifier would refuse the loop. The compiler asks for the symbol
// all the same.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
