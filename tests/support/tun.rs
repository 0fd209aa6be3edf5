//! A network device of which the test is the far end: packets that the kernel sends to it are read
//! here, and what is written here arrives there. So a test can be a host that speaks TCP in its own way, or
//! a line that takes its time.
//!
//! For use within a namespace of [`crate::netns`].

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use crate::netns::ip;

/// The far end of a device, whose packets are of IP and bare. It lives as long as this does.
#[derive(Clone, Debug)]
pub struct Tun(Arc<File>);

impl Tun {
    /// Makes one in the calling thread's namespace, which gets this address there, such as `10.7.0.1/24`: all
    /// others of the block are at the far end.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn start(address: &str) -> Self {
        let device = File::options().read(true).write(true).open("/dev/net/tun");
        let device = device.unwrap_or_else(|error| panic!("/dev/net/tun: {error}"));
        let mut request = Request { name: [0; 16], flags: FLAGS, _rest: [0; 22] };
        request.name[..NAME.len()].copy_from_slice(NAME.as_bytes());
        // SAFETY: the request is as the kernel's `ifreq`: 16 bytes of name, and a union of 24.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        assert_eq!(made, 0, "no device: {}", std::io::Error::last_os_error());
        ip(&["address", "add", address, "dev", NAME]);
        ip(&["link", "set", NAME, "mtu", &MTU.to_string(), "txqueuelen", "10000", "up"]);
        Self(Arc::new(device))
    }

    /// The next packet that is sent to the far end.
    ///
    /// # Panics
    /// The device is gone.
    pub fn read(&self) -> Vec<u8> {
        let mut packet = vec![0; MTU];
        let length = (&*self.0).read(&mut packet).unwrap();
        packet.truncate(length);
        packet
    }

    /// Has a packet arrive from the far end.
    ///
    /// # Panics
    /// The kernel does not take it.
    pub fn write(&self, packet: &[u8]) {
        let length = (&*self.0).write(packet).unwrap();
        assert_eq!(length, packet.len());
    }

    /// Joins two devices by a line on which each packet is so long under way, for ever.
    pub fn join(self, other: Self, delay: Duration) {
        for (from, to) in [(self.clone(), other.clone()), (other, self)] {
            let (send, sent) = channel::<(Instant, Vec<u8>)>();
            thread::spawn(
                move || {
                    while send.send((Instant::now() + delay, from.read())).is_ok() {}
                },
            );
            thread::spawn(move || {
                for (due, packet) in sent {
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    to.write(&packet);
                }
            });
        }
    }
}

/// As the kernel's `ifreq`.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    _rest: [u8; 22],
}

/// One to a namespace.
const NAME: &str = "hand";

/// Larger than what the programs cut off at once, several times.
pub const MTU: usize = 65_000;

/// Packets of IP, with nothing before them.
const FLAGS: u16 = (libc::IFF_TUN | libc::IFF_NO_PI) as u16;
