//! The headers that tell a client of its limits, in OpenAI's names and forms. Pure.

use std::fmt::Write as _;
use std::time::Duration;

use super::bucket::State;

/// Lines for a response's head, each with its end.
pub(super) fn lines(requests: Option<State>, tokens: Option<State>) -> String {
    let mut out = String::new();
    for (what, state) in [("requests", requests), ("tokens", tokens)] {
        let Some(State { limit, remaining, reset }) = state else { continue };
        let reset = time(reset);
        // A String takes everything.
        let _ = write!(
            out,
            "x-ratelimit-limit-{what}: {limit}\r\nx-ratelimit-remaining-{what}: {remaining}\r\n\
             x-ratelimit-reset-{what}: {reset}\r\n"
        );
    }
    out
}

/// `20ms`, `1s`, `1.5s`, `6m0s`, `1h0m0s`: rounded up, so that nobody comes too early.
fn time(duration: Duration) -> String {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (seconds, rest) = (millis / 1000, millis % 1000);
    if seconds < 60 {
        return match rest {
            0 => format!("{seconds}s"),
            rest => format!("{}s", format!("{seconds}.{rest:03}").trim_end_matches('0')),
        };
    }
    let seconds = millis.div_ceil(1000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}m{seconds}s"),
        hours => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (micros, text) in [
            (0, "0ms"),
            (1, "1ms"),
            (20_000, "20ms"),
            (999_001, "1s"),
            (1_000_000, "1s"),
            (1_500_000, "1.5s"),
            (8_640_000, "8.64s"),
            (59_999_001, "1m0s"),
            (360_000_000, "6m0s"),
            (360_100_000, "6m1s"),
            (3_600_000_000, "1h0m0s"),
            (3_725_000_000, "1h2m5s"),
        ] {
            assert_eq!(time(Duration::from_micros(micros)), text, "{micros}");
        }
    }

    #[test]
    fn nothing_without_limits() {
        assert_eq!(lines(None, None), "");
    }
}
