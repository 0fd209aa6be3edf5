//! What two daemons say to each other: framing and messages, without any IO.
//!
//! A frame is a header of 8 bytes, version and length, and so many bytes of JSON. The header stays
//! as it is in every version, so that daemons of different ones can tell each other so. Descriptors
//! travel beside the frame that describes them.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// What is said. The new daemon asks, and says when it has taken over; the rest is the old one's.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Message {
    /// Give me your sockets.
    Ask,
    /// Here are some. As many descriptors as descriptions come with it, in the same order.
    Offer { sockets: Vec<Description>, more: bool },
    /// You do not get them.
    Refused { reason: String },
    /// I accept connections.
    TakenOver,
    /// I accept none any more, and what I was known by is free.
    Released,
}

/// A listening socket that is handed over.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Description {
    /// What it is for.
    pub role: Role,
    /// The listener's name; empty for the operators' side.
    #[serde(default)]
    pub listener: String,
    /// Where it is bound.
    pub address: SocketAddr,
}

/// What a socket is for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The operators' side.
    Admin,
    /// A listener's own address.
    Own,
    /// A listener's virtual address, bound for want of steering.
    Virtual,
    /// A listener's IPv6 destinations, which only steering leads to.
    Dual,
}

/// A frame that is none.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub enum WireError {
    /// The other daemon is of another version.
    #[error("the other gateway speaks version {0} of the takeover protocol, this one {VERSION}")]
    Version(u32),
    /// It is longer than any.
    #[error("a message of {0} bytes is too long")]
    TooLong(u32),
    /// It is not what a daemon says.
    #[error("not understood: {0}")]
    Json(String),
    /// The descriptors do not fit what is said of them.
    #[error("{descriptors} descriptors came where {described} were described")]
    Descriptors {
        /// How many came.
        descriptors: usize,
        /// How many were described.
        described: usize,
    },
}

/// The frame of `message`.
pub(super) fn encode(message: &Message) -> Vec<u8> {
    // Maps with string keys and plain values cannot fail to be written.
    let body = serde_json::to_vec(message).unwrap_or_default();
    let mut frame = Vec::with_capacity(HEADER + body.len());
    frame.extend_from_slice(&VERSION.to_be_bytes());
    frame.extend_from_slice(&(body.len() as u32).to_be_bytes());
    frame.extend_from_slice(&body);
    frame
}

/// The length of the body behind a header.
pub(super) fn body_length(header: [u8; HEADER]) -> Result<usize, WireError> {
    let [a, b, c, d, length @ ..] = header;
    let version = u32::from_be_bytes([a, b, c, d]);
    if version != VERSION {
        return Err(WireError::Version(version));
    }
    let length = u32::from_be_bytes(length);
    if length > MAX_BODY {
        return Err(WireError::TooLong(length));
    }
    Ok(length as usize)
}

/// The message in a frame's body that came with so many descriptors.
pub(super) fn decode(body: &[u8], descriptors: usize) -> Result<Message, WireError> {
    let message =
        serde_json::from_slice(body).map_err(|error| WireError::Json(error.to_string()))?;
    let described = match &message {
        Message::Offer { sockets, .. } => sockets.len(),
        _ => 0,
    };
    if described != descriptors {
        return Err(WireError::Descriptors { descriptors, described });
    }
    Ok(message)
}

/// Bytes of a frame's header.
pub(super) const HEADER: usize = 8;

/// Descriptors that go with one frame; the kernel takes 253.
pub(super) const BATCH: usize = 128;

/// Changes when an older daemon would misunderstand. What it may ignore is a new field.
const VERSION: u32 = 1;

/// A full batch with the longest names and addresses has a tenth of it.
const MAX_BODY: u32 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn described(listener: &str, address: &str) -> Description {
        Description {
            role: Role::Own,
            listener: listener.into(),
            address: address.parse().unwrap(),
        }
    }

    #[test]
    fn messages_come_back_as_they_went() {
        let sockets = vec![described("http", "127.0.0.1:80"), described("", "[fd09::1]:9901")];
        let table = [
            (Message::Ask, 0),
            (Message::Offer { sockets, more: true }, 2),
            (Message::Refused { reason: "stopping".into() }, 0),
            (Message::TakenOver, 0),
            (Message::Released, 0),
        ];
        for (message, descriptors) in table {
            let frame = encode(&message);
            let (header, body) = frame.split_first_chunk().unwrap();
            assert_eq!(body_length(*header), Ok(body.len()));
            assert_eq!(decode(body, descriptors), Ok(message.clone()));
            let other = descriptors + 1;
            let want = WireError::Descriptors { descriptors: other, described: descriptors };
            assert_eq!(decode(body, other), Err(want), "{message:?}");
        }
    }

    #[test]
    fn headers_are_checked_before_anything_is_read() {
        let header = |version: u32, length: u32| {
            let mut header = [0; HEADER];
            header[..4].copy_from_slice(&version.to_be_bytes());
            header[4..].copy_from_slice(&length.to_be_bytes());
            header
        };
        let table = [
            (header(1, 0), Ok(0)),
            (header(1, MAX_BODY), Ok(MAX_BODY as usize)),
            (header(1, MAX_BODY + 1), Err(WireError::TooLong(MAX_BODY + 1))),
            (header(1, u32::MAX), Err(WireError::TooLong(u32::MAX))),
            (header(2, 1), Err(WireError::Version(2))),
            (*b"GET / HT", Err(WireError::Version(0x4745_5420))),
        ];
        for (header, want) in table {
            assert_eq!(body_length(header), want, "{header:?}");
        }
    }

    #[test]
    fn a_later_daemon_may_say_more() {
        let body = br#"{"kind":"offer","more":false,"sockets":[
            {"role":"admin","address":"127.0.0.1:1","backlog":7}],"since":12}"#;
        let want = Description { role: Role::Admin, ..described("", "127.0.0.1:1") };
        assert_eq!(decode(body, 1), Ok(Message::Offer { sockets: vec![want], more: false }));
        assert!(matches!(decode(br#"{"kind":"dance"}"#, 0), Err(WireError::Json(_))));
    }

    #[test]
    fn a_full_batch_fits() {
        let longest = format!("[{}]:65535", ["ffff"; 8].join(":"));
        let sockets = vec![described(&"\u{1}".repeat(1000), &longest); BATCH];
        let frame = encode(&Message::Offer { sockets, more: true });
        assert!(body_length(*frame.first_chunk().unwrap()).is_ok(), "{}", frame.len());
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(header: [u8; HEADER], body: Vec<u8>, descriptors in 0_usize..3) {
            let _ = body_length(header);
            let _ = decode(&body, descriptors);
        }
    }
}
