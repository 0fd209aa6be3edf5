//! The handles of TLS, of gateways that speak it.

use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;

use super::labels::{ByLabel, Handshake, Reload};
use super::pool::count;

/// What is counted of TLS.
#[derive(Debug, Default)]
pub struct TlsMetrics {
    pub(super) handshakes: ByLabel<Handshake, Counter>,
    pub(super) reloads: ByLabel<Reload, Counter>,
    pub(super) expiries: RwLock<Vec<Expiry>>,
}

/// When a certificate ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Expiry {
    /// The file, as the configuration names it.
    pub file: String,
    /// Seconds since 1970.
    pub at: i64,
}

impl TlsMetrics {
    /// Counts a client's handshake.
    pub fn handshake(&self, how: Handshake) {
        count(self.handshakes.get(how));
    }

    /// Counts a change of the files.
    pub fn reloaded(&self, how: Reload) {
        count(self.reloads.get(how));
    }

    /// Takes when the certificates in use end.
    pub fn certificates(&self, expiries: &[Expiry]) {
        *self.expiries.write() = expiries.to_vec();
    }
}
