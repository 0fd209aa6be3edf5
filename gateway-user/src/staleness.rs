//! How old what the gateway knows of a cluster may be.
//!
//! The API server is heard about once a minute even if nothing changes. When it is not, the gateway says so and serves on
//! with the pods that it knows: an API server that is down is down for every gateway, and to take all of them out would
//! make its outage everybody's. Whoever wants it otherwise sets a limit.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long ago the API server was heard, where the pods are a cluster's.
#[derive(Debug, Default)]
pub struct Staleness {
    /// In seconds.
    age: OnceLock<AtomicU64>,
    most: OnceLock<Duration>,
}

/// What that amounts to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stale {
    /// It has been heard as often as it should, or there is none.
    No,
    /// What is known may be old; it is served on.
    Old(Duration),
    /// It is older than is allowed.
    TooOld(Duration, Duration),
}

impl Staleness {
    /// The API server was heard so long ago.
    pub fn set(&self, age: Duration) {
        self.age.get_or_init(AtomicU64::default).store(age.as_secs(), Ordering::Relaxed);
    }

    /// Allows no more than this. Once, at the start.
    pub fn set_most(&self, most: Duration) {
        let _ = self.most.set(most);
    }

    /// What it amounts to now.
    pub fn now(&self) -> Stale {
        let age = self.age.get().map_or(0, |age| age.load(Ordering::Relaxed));
        let age = Duration::from_secs(age);
        match self.most.get() {
            Some(most) if age > *most => Stale::TooOld(age, *most),
            _ if age > QUIET => Stale::Old(age),
            _ => Stale::No,
        }
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unheard = "the API server has not been heard for";
        match self {
            Self::No => f.write_str("the API server has been heard"),
            Self::Old(age) => {
                write!(f, "{unheard} {} s: the pods are those of then", age.as_secs())
            }
            Self::TooOld(age, most) => {
                write!(
                    f,
                    "{unheard} {} s, and --max-cluster-age is {} s",
                    age.as_secs(),
                    most.as_secs()
                )
            }
        }
    }
}

/// A watch lasts 75 s at most, and is heard at its end; after this time it is lost. No limit may be below it.
pub const QUIET: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_is_served_and_said_unless_there_is_a_limit() {
        let seconds = Duration::from_secs;
        let (free, limited) = (Staleness::default(), Staleness::default());
        limited.set_most(seconds(300));
        assert_eq!((free.now(), limited.now()), (Stale::No, Stale::No), "there is no cluster");
        for (age, of_free, of_limited) in [
            (120, Stale::No, Stale::No),
            (121, Stale::Old(seconds(121)), Stale::Old(seconds(121))),
            (300, Stale::Old(seconds(300)), Stale::Old(seconds(300))),
            (301, Stale::Old(seconds(301)), Stale::TooOld(seconds(301), seconds(300))),
            (0, Stale::No, Stale::No),
        ] {
            free.set(seconds(age));
            limited.set(seconds(age));
            assert_eq!((free.now(), limited.now()), (of_free, of_limited), "{age} s");
        }
        assert_eq!(
            Stale::Old(seconds(121)).to_string(),
            "the API server has not been heard for 121 s: the pods are those of then"
        );
    }
}
