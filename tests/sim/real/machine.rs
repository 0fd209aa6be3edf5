//! How busy the machine was, and whether figures of it can be believed.

use std::fs;
use std::time::Duration;

use serde::Serialize;

/// The machine while requests came.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Machine {
    /// The scenario.
    pub(crate) scenario: &'static str,
    /// The share of its time that it was busy, with whatever.
    pub(crate) busy: f64,
    /// The share that this had: clients, pods and gateways.
    pub(crate) own: f64,
    /// How long after its time the latest request was sent, milliseconds.
    pub(crate) late_ms: f64,
}

impl Machine {
    /// From then until now.
    pub(crate) fn between(
        scenario: &'static str,
        then: Processors,
        now: Processors,
        late: Duration,
    ) -> Self {
        let all = ((now.all - then.all) as f64).max(1.0);
        let [busy, own] =
            [now.busy - then.busy, now.own - then.own].map(|ticks| ticks as f64 / all);
        Self { scenario, busy, own, late_ms: 1e3 * late.as_secs_f64() }
    }

    /// In words.
    pub(crate) fn text(&self) -> String {
        let Self { scenario, busy, own, late_ms } = self;
        let (busy, own) = (100.0 * busy, 100.0 * own);
        let doubt =
            if busy > MOST_BUSY { "; TOO BUSY: the highest TTFTs are the machine's" } else { "" };
        format!(
            "{scenario}: the machine was {busy:.0} % busy, {own:.0} % with this; the latest request was sent \
             {late_ms:.1} ms late{doubt}"
        )
    }
}

/// Processor time of the whole machine until now, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processors {
    busy: u64,
    own: u64,
    all: u64,
}

impl Processors {
    /// Now, with what these processes and this one have used.
    pub(crate) fn now(others: impl Iterator<Item = u32>) -> Self {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let own = others.map(|pid| used(&read(&format!("/proc/{pid}/stat")))).sum::<u64>();
        let own = own + used(&read("/proc/self/stat"));
        Self { own, ..Self::of(&read("/proc/stat")) }
    }

    fn of(page: &str) -> Self {
        let line =
            page.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        // user nice system idle iowait irq softirq steal; what follows is in them already.
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).filter_map(|ticks| ticks.parse().ok()).collect();
        let all = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Self { busy: all - idle, own: 0, all }
    }
}

/// User and system time from the `stat` of a process: the 14th and 15th field, behind a name that may hold
/// anything.
fn used(stat: &str) -> u64 {
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Percent of its time. Above it programs wait for a processor now and then.
const MOST_BUSY: f64 = 60.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_idle_and_waiting_is_busy() {
        let then = Processors::of("cpu  10 0 5 80 5 0 0 0 7 0\ncpu0 1 1 1 1");
        let now = Processors { own: 10, ..Processors::of("cpu  30 0 15 140 15 0 0 0 7 0\n") };
        let machine = Machine::between("x", then, now, Duration::from_millis(2));
        assert_eq!((machine.busy, machine.own, machine.late_ms), (0.3, 0.1, 2.0));
        assert!(!machine.text().contains("BUSY"), "{}", machine.text());
        assert!(Machine { busy: 0.7, ..machine }.text().contains("BUSY"));
        let nothing = Processors::of("");
        assert_eq!(Machine::between("x", nothing, nothing, Duration::ZERO).busy, 0.0);
    }

    #[test]
    fn a_process_has_user_and_system_time() {
        assert_eq!(used("7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 30 12 5 6 20 0 1 0 99"), 42);
        assert_eq!(used(""), 0);
    }
}
