//! The reader of the exchange between gateways: no panic, no more made of a message than there is in it, and nothing
//! left of peers that have fallen silent.
#![no_main]

use std::time::Duration;

use gateway_user::schedule::exchange::{Peers, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (pool, mut peers) = (7, Peers::new(7, 1, Duration::from_millis(20)));
    let mut now = Duration::from_secs(1);
    let mut pods = Vec::new();
    // Datagrams one after the other, each behind its length.
    let mut rest = input;
    while let Some((length, behind)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(behind.len());
        let (datagram, behind) = behind.split_at(length);
        rest = behind;
        let Some(mut message) = decode(datagram) else { continue };
        assert!(
            message.loads.len() + message.speeds.len() + message.chains.len() <= datagram.len()
        );
        // Most inputs are about a pool that there is.
        message.pool = pool;
        peers.receive(&message, now);
        pods.extend(message.loads.iter().map(|(pod, _)| *pod));
        pods.extend(message.speeds.iter().map(|(pod, _)| *pod));
        now += Duration::from_millis(1);
        for pod in &pods {
            peers.others(*pod, now);
            peers.known(*pod, now);
        }
    }
    peers.expire(now + Duration::from_secs(1));
    assert!(peers.is_empty());
    for pod in &pods {
        assert_eq!(peers.others(*pod, now).in_flight, 0);
    }
});
