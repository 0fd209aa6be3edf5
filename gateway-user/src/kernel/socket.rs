//! What no library asks a socket: how far its peer has taken what was sent.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::sys::socket::{setsockopt, sockopt};

/// Sets the size of the send buffer, beyond what the system allows everybody.
pub(super) fn set_send_buffer(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::SndBufForce, &bytes)?)
}

/// Bytes that the peer has acknowledged since the connection was made.
pub(super) fn acknowledged(socket: &impl AsFd) -> io::Result<u64> {
    // libc's struct ends before it.
    let mut info = [0_u64; BYTES_ACKED / 8 + 1];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the buffer is as long as is said, and any bytes are a value of it.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(info.get(BYTES_ACKED / 8).copied().unwrap_or(0))
}

/// Bytes in the send queue: not sent, or not acknowledged.
pub(crate) fn outstanding(socket: &impl AsFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes an int.
    let failed = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Where `tcpi_bytes_acked` stands in the kernel's `struct tcp_info` (include/uapi/linux/tcp.h), since 4.1.
const BYTES_ACKED: usize = 120;
