//! Tries a path: a few bytes from one socket of this process to another, over loopback, carried by the kernel.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use gateway_common::flow::Standing;
use gateway_common::framing::Framing;
use socket2::{Domain, Socket, Type};

use super::flows::{Flows, LinkError, Path};

/// Why a trial failed.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// Sockets of this process could not be had or used.
    #[error("loopback cannot be used: {0}")]
    Loopback(#[from] io::Error),
    /// The connections could not be made known to the kernel.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The pod's end was not recognised.
    #[error("the far end of a connection over loopback was not recognised")]
    NotFound,
    /// The bytes took another way, or none.
    #[error("{0}")]
    Astray(&'static str),
}

/// Has the kernel carry a body of ten bytes along `path`.
///
/// # Errors
/// It did not, or not as it should.
pub fn trial(flows: &Flows, path: Path) -> Result<(), Failed> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (pods, front) = (TcpListener::bind(any)?, TcpListener::bind(any)?);
    let mut client = TcpStream::connect_timeout(&front.local_addr()?, PATIENCE)?;
    let (near_client, _) = front.accept()?;
    let receiver = flows.receiver(&near_client)?;

    let upstream = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let connect = || upstream.connect_timeout(&pods.local_addr()?.into(), PATIENCE);
    let mut link = match path {
        Path::Local => {
            let link = flows.link(&upstream)?;
            connect()?;
            link
        }
        // Known only when it is established, so that the pod is not found on this node.
        Path::Splice => {
            connect()?;
            flows.link(&upstream)?
        }
    };
    let (mut pod, _) = pods.accept()?;
    if link.settle(&upstream)? != Some(path) {
        return Err(Failed::NotFound);
    }
    let mut upstream = TcpStream::from(upstream);
    for socket in [&client, &upstream] {
        socket.set_read_timeout(Some(PATIENCE))?;
    }
    pod.set_nodelay(true)?;
    link.offer(0, 0, &Framing::length(10), &receiver);

    let mut got = [0; 5];
    pod.write_all(b"first")?;
    client.read_exact(&mut got).map_err(|_| Failed::Astray("what was sent did not arrive"))?;
    if got != *b"first" || link.carried().redirected != 5 || link.standing() != Standing::Carrying {
        return Err(Failed::Astray("what was sent went another way"));
    }
    pod.write_all(b"final")?;
    // The last message of a response is the daemon's where it can be woken by it.
    let end = match path {
        Path::Local => &mut upstream,
        Path::Splice => &mut client,
    };
    end.read_exact(&mut got).map_err(|_| Failed::Astray("the end did not arrive"))?;
    if got != *b"final" {
        return Err(Failed::Astray("the end was changed"));
    }
    Ok(())
}

/// For bytes over loopback.
const PATIENCE: Duration = Duration::from_secs(1);
