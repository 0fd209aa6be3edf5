//! Why a pod's answer could not be had, in words for people.

use std::{fmt, io};

use super::engines::NotMetrics;
use super::models::NotModels;
use crate::tls::Fault;

/// A question that a pod did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{question}: {cause}")]
pub struct Failure {
    /// What was asked.
    pub question: Question,
    /// Why there is no answer.
    pub cause: Cause,
}

/// What a pod is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Its load: `/metrics`.
    Metrics,
    /// Its models: `/v1/models`.
    Models,
}

impl fmt::Display for Question {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Metrics => "cannot read the pod's metrics",
            Self::Models => "cannot read the pod's list of models",
        })
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The connection ended within an answer, or the answer was no HTTP.
    #[error("the connection broke off, or what came was not HTTP")]
    Broken,
    /// It answered 200 with something else than metrics.
    #[error("it answered with {0}")]
    NotMetrics(#[from] NotMetrics),
    /// It answered 200 with something else than a list of models.
    #[error("it answered with {0}")]
    NotModels(#[from] NotModels),
    /// Nothing listens on the port.
    #[error("connection refused: nothing listens there")]
    Refused,
    /// It answered with a status that is no success.
    #[error("it answered with HTTP status {0}{hint}", hint = status_hint(*.0))]
    Status(u16),
    /// TLS could not be begun with it.
    #[error("TLS failed: {0}")]
    Tls(#[from] Fault),
    /// No whole answer within the time for it.
    #[error("no whole answer in time")]
    Timeout,
    /// The answer is longer than any that makes sense.
    #[error("the answer is longer than 4 MiB")]
    TooLarge,
    /// No connection could be made.
    #[error("no connection: {0}")]
    Unreachable(io::ErrorKind),
}

impl Cause {
    /// Whether something at the pod's address speaks HTTP, so that the pod is up although the
    /// answer is of no use.
    pub fn answered(self) -> bool {
        match self {
            Self::NotMetrics(_) | Self::NotModels(_) | Self::Status(_) | Self::TooLarge => true,
            Self::Broken | Self::Refused | Self::Timeout | Self::Tls(_) | Self::Unreachable(_) => {
                false
            }
        }
    }
}

/// What usually lies behind a status at these paths.
fn status_hint(status: u16) -> &'static str {
    match status {
        401 | 403 => ": does it want a key?",
        404 => ": does the server offer this, and under this path?",
        501 => ": llama.cpp needs --metrics",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::exposition::Shape;

    #[test]
    fn plain_words() {
        let words = |cause| Failure { question: Question::Metrics, cause }.to_string();
        for (cause, expected) in [
            (
                Cause::Refused,
                "cannot read the pod's metrics: connection refused: nothing listens there",
            ),
            (Cause::Status(500), "cannot read the pod's metrics: it answered with HTTP status 500"),
            (
                Cause::Status(401),
                "cannot read the pod's metrics: it answered with HTTP status 401: \
                 does it want a key?",
            ),
            (
                Cause::NotMetrics(NotMetrics(Shape::Html)),
                "cannot read the pod's metrics: it answered with an HTML page",
            ),
            (
                Cause::Unreachable(io::ErrorKind::HostUnreachable),
                "cannot read the pod's metrics: no connection: host unreachable",
            ),
        ] {
            assert_eq!(words(cause), expected);
        }
    }
}
