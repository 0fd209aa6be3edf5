//! The kernel module's flows, without a gateway: single messages, and single connections.

use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use gateway_user::config::KernelLog;
use gateway_user::kernel::{Flows, Path, Usage, trial};
use sluice_tests::netns;
use socket2::{Domain, Socket, Type};

#[test]
fn a_body_goes_each_way() {
    netns::run(&[], || {
        let (flows, works) = Flows::start(KernelLog::Off, &[], |_| true).unwrap();
        works.local.unwrap();
        works.splice.unwrap();
        for path in [Path::Local, Path::Splice] {
            trial(&flows, path).unwrap();
        }
    });
}

/// The gateway's end is established and the pod's is not, as far as the programs can see: as when the connection
/// goes to another node.
#[test]
fn nothing_is_left_of_a_connection_that_was_given_up() {
    netns::run(&[], || {
        let (flows, _) = Flows::start(KernelLog::Off, &[], |_| true).unwrap();
        let pods = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = pods.local_addr().unwrap().into();
        defer_accept(&pods);
        let connect = |socket: &Socket| {
            socket.connect_timeout(&address, Duration::from_secs(1)).unwrap();
        };
        for settled in [false, true] {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let mut link = flows.link(&socket).unwrap();
            connect(&socket);
            assert_eq!(flows.usage(), Usage { connections: 1, pairs: 1, clients: 0 });
            if settled {
                assert_eq!(link.settle(&socket).unwrap(), Some(Path::Splice));
                assert_eq!(flows.usage().pairs, 0, "a pod that comes later is not looked for");
            }
            drop(link);
            assert_eq!(flows.usage(), Usage::default());
        }
    });
}

/// Has the connections of a listener count as established with their first byte and not before.
fn defer_accept(listener: &TcpListener) {
    let seconds: libc::c_int = 10;
    let length = size_of_val(&seconds) as libc::socklen_t;
    // SAFETY: the option's value lives, and has the length that is said.
    let set = unsafe {
        let value = (&raw const seconds).cast();
        let of = libc::TCP_DEFER_ACCEPT;
        libc::setsockopt(listener.as_raw_fd(), libc::IPPROTO_TCP, of, value, length)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}
