//! How the gateway writes to the API server, and what of that it leaves alone for a while, as it is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Request;
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{debug, warn};

/// The API server, for one namespace.
pub(super) struct Api {
    pub(super) client: Client,
    pub(super) namespace: String,
}

impl Api {
    /// Sends a request with a body, or without one if that is null.
    ///
    /// # Errors
    /// It is refused or not answered, or the answer cannot be read.
    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<T, kube::Error> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        self.client.request(request.body(body).map_err(kube::Error::HttpError)?).await
    }
}

/// What cannot be written, by its name in the log.
#[derive(Debug, Default)]
pub(super) struct Troubles(BTreeMap<&'static str, Trouble>);

#[derive(Debug)]
struct Trouble {
    /// When it was refused, if it was.
    refused: Option<Instant>,
}

impl Troubles {
    /// Whether to try to write this: what was refused is refused again, until somebody grants the right.
    pub(super) fn may(&self, what: &str, now: Instant) -> bool {
        let refused = self.0.get(what).and_then(|trouble| trouble.refused);
        refused.is_none_or(|refused| now.duration_since(refused) >= REFUSED)
    }

    /// It is written.
    pub(super) fn over(&mut self, what: &'static str) {
        self.0.remove(what);
    }

    /// It is not written: says so, once for each outage.
    pub(super) fn tell(&mut self, what: &'static str, error: &kube::Error, now: Instant) {
        let is_refused = matches!(error, kube::Error::Api(status) if is_refusal(status.code));
        if self.is_news(what, is_refused, now) {
            warn!("{what} is not written: {error}");
        } else {
            debug!("{what} is not written: {error}");
        }
    }

    fn is_news(&mut self, what: &'static str, is_refused: bool, now: Instant) -> bool {
        let trouble = Trouble { refused: is_refused.then_some(now) };
        self.0.insert(what, trouble).is_none()
    }
}

/// Whether the same request has the same answer until somebody does something.
fn is_refusal(code: u16) -> bool {
    matches!(code, 400..=403 | 405..=408 | 422)
}

pub(super) const JSON: &str = "application/json";
pub(super) const MERGE: &str = "application/merge-patch+json";
pub(super) const APPLY: &str = "application/apply-patch+yaml";
/// What is refused is left alone for this long.
const REFUSED: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_left_alone_and_said_once() {
        let mut troubles = Troubles::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(troubles.may("a", at(0)));
        assert!(troubles.is_news("a", true, at(0)));
        assert!(!troubles.may("a", at(29)), "it is refused again");
        assert!(troubles.may("b", at(0)), "something else is not");
        assert!(troubles.may("a", at(30)));
        assert!(!troubles.is_news("a", true, at(30)), "it is known");
        assert!(!troubles.may("a", at(59)));
        // No answer: that may be over in a moment.
        assert!(!troubles.is_news("a", false, at(60)));
        assert!(troubles.may("a", at(60)));
        troubles.over("a");
        assert!(troubles.is_news("a", false, at(61)), "it is another outage");
    }

    #[test]
    fn refusals_and_what_may_be_better_in_a_moment() {
        assert!([401, 403, 422].into_iter().all(is_refusal));
        assert!(![404, 409, 410, 429, 500, 503].into_iter().any(is_refusal));
    }
}
