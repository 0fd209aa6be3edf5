//! Asks a pod whether it is well, where the configuration wants that: a page that answers with success.
//!
//! Beside the scrapes, as a server may answer those while its engine is dead, and the other way round. On a connection of its
//! own, since an engine may take seconds to say so.

use std::net::SocketAddr;
use std::sync::Arc;

use fastrand::Rng;
use hyper::header::HeaderValue;
use hyper::http::uri::PathAndQuery;
use tokio::time::{Instant, sleep_until, timeout};

use super::failure::Cause;
use super::link::{Connect, Link, Tcp};
use super::scraper::InvalidTarget;
use crate::auth::PodKey;
use crate::config::HealthCheck;
use crate::tls::PodTls;

/// Whom to ask, and how.
#[derive(Clone, Debug)]
pub struct Patient {
    address: SocketAddr,
    path: PathAndQuery,
    check: HealthCheck,
    key: Option<Arc<PodKey>>,
    tls: Option<Arc<PodTls>>,
}

/// What one check has found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Finding {
    /// Why it failed, if it did.
    pub failed: Option<Cause>,
    /// Whether the pod is well, by this check and those before.
    pub is_well: bool,
}

/// What the checks so far amount to: a pod is well until so many have failed in a row, and then ill until so many have
/// succeeded. Pure.
#[derive(Clone, Copy, Debug)]
struct Health {
    unhealthy_after: u32,
    healthy_after: u32,
    is_well: bool,
    /// Checks in a row that say otherwise.
    against: u32,
}

impl Patient {
    /// The pod at `address`, which wants `key` as a bearer token if it has one.
    ///
    /// # Errors
    /// [`InvalidTarget`] when the path is no path of a URL.
    pub fn new(
        address: SocketAddr,
        check: &HealthCheck,
        key: Option<Arc<PodKey>>,
        tls: Option<Arc<PodTls>>,
    ) -> Result<Self, InvalidTarget> {
        let path = PathAndQuery::try_from(check.path.as_str())
            .ok()
            .filter(|path| path.as_str().starts_with('/'))
            .ok_or(InvalidTarget::Path)?;
        Ok(Self { address, path, check: check.clone(), key, tls })
    }
}

/// Checks a pod again and again, and tells what each check has found. Runs until dropped.
pub async fn watch(patient: Patient, tell: impl FnMut(Finding), rng: Rng) {
    let connect = Tcp { tls: patient.tls.clone() };
    watch_over(connect, patient, tell, rng).await;
}

async fn watch_over<C: Connect>(
    connect: C,
    patient: Patient,
    mut tell: impl FnMut(Finding),
    mut rng: Rng,
) {
    let Patient { address, path, check, key, .. } = patient;
    // An address is always a valid header value.
    let host =
        HeaderValue::try_from(address.to_string()).unwrap_or_else(|_| HeaderValue::from_static(""));
    let mut link = Link::new(connect, address, host, key);
    let mut health = Health::new(check.unhealthy_after, check.healthy_after);
    loop {
        let from = Instant::now();
        let asked = timeout(check.timeout, link.get(path.clone())).await;
        let failed = asked.unwrap_or(Err(Cause::Timeout)).err();
        tell(Finding { failed, is_well: health.take(failed.is_none()) });
        // Spread, so that many gateways or pods are not asked at the same time for ever.
        let pause = check.interval.mul_f32(1.0 - SPREAD * rng.f32());
        tokio::select! {
            () = sleep_until(from + pause) => {}
            () = link.idle() => {}
        }
    }
}

impl Health {
    fn new(unhealthy_after: u32, healthy_after: u32) -> Self {
        Self { unhealthy_after, healthy_after, is_well: true, against: 0 }
    }

    /// Takes a check. Returns whether the pod is well.
    fn take(&mut self, succeeded: bool) -> bool {
        if succeeded == self.is_well {
            self.against = 0;
            return self.is_well;
        }
        self.against = self.against.saturating_add(1);
        let enough = if self.is_well { self.unhealthy_after } else { self.healthy_after };
        if self.against >= enough {
            (self.is_well, self.against) = (succeeded, 0);
        }
        self.is_well
    }
}

/// By so much of itself a pause may be shorter.
const SPREAD: f32 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_in_a_row_decide() {
        for (unhealthy_after, healthy_after, checks, expected) in [
            (1, 1, "+-+", "+-+"),
            (3, 2, "--+--+", "++++++"),
            (3, 2, "---", "++-"),
            (3, 2, "---+-+-++", "++------+"),
            (2, 3, "--+++-+--", "+---++++-"),
        ] {
            let mut health = Health::new(unhealthy_after, healthy_after);
            let found: String = checks
                .chars()
                .map(|check| if health.take(check == '+') { '+' } else { '-' })
                .collect();
            assert_eq!(found, expected, "{checks}");
        }
    }
}
