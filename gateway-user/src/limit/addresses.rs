//! How many connections each client address has open. Pure but for a lock.
//!
//! An IPv6 client counts by its /64, which is what one client is given: it could take a new address for each
//! connection. Only addresses with an open connection are kept, so there are never more than connections.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// The open connections of each address.
#[derive(Clone, Debug, Default)]
pub struct Addresses(Arc<Mutex<HashMap<IpAddr, u32>>>);

/// A connection's place among those of its address; given back when dropped.
#[derive(Debug)]
pub struct Place {
    addresses: Addresses,
    block: IpAddr,
}

impl Addresses {
    /// A place for one more connection of `address`, unless it has `most` already.
    pub fn admit(&self, address: IpAddr, most: u32) -> Option<Place> {
        let block = block(address);
        let mut open = self.0.lock();
        let count = open.entry(block).or_default();
        if *count >= most {
            // Nothing has been added: `most` is at least 1.
            return None;
        }
        *count += 1;
        drop(open);
        Some(Place { addresses: self.clone(), block })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.addresses.0.lock().entry(self.block) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

/// What counts as one client.
fn block(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !(u64::MAX as u128)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_cap_and_one_more() {
        let addresses = Addresses::default();
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let places: Vec<_> = (0..3).map(|_| addresses.admit(one, 3).unwrap()).collect();
        assert!(addresses.admit(one, 3).is_none());
        assert!(addresses.admit("192.0.2.2".parse().unwrap(), 3).is_some());
        drop(places);
        assert!(addresses.0.lock().is_empty(), "nothing is kept of what is closed");
    }

    #[test]
    fn what_counts_as_one() {
        for (a, b, same) in [
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("2001:db8:0:1::1", "2001:db8:0:1:ffff:ffff:ffff:ffff", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
        ] {
            assert_eq!(block(a.parse().unwrap()) == block(b.parse().unwrap()), same, "{a} {b}");
        }
    }
}
