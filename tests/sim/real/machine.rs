//! How busy the machine was.

use std::fs;

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

    /// The share of its time since then that the machine was busy, with whatever.
    pub(crate) fn busy_since(self, then: Self) -> f64 {
        (self.busy - then.busy) as f64 / ((self.all - then.all) as f64).max(1.0)
    }

    /// The share that those processes had.
    pub(crate) fn own_since(self, then: Self) -> f64 {
        (self.own - then.own) as f64 / ((self.all - then.all) as f64).max(1.0)
    }
}

/// User and system time from the `stat` of a process: the 14th and 15th field, behind a name that may hold
/// anything.
fn used(stat: &str) -> u64 {
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_idle_and_waiting_is_busy() {
        let then = Processors::of("cpu  10 0 5 80 5 0 0 0 7 0\ncpu0 1 1 1 1");
        let now = Processors { own: 10, ..Processors::of("cpu  30 0 15 140 15 0 0 0 7 0\n") };
        assert_eq!((now.busy_since(then), now.own_since(then)), (0.3, 0.1));
        assert_eq!(Processors::of("").busy_since(Processors::of("")), 0.0);
    }

    #[test]
    fn a_process_has_user_and_system_time() {
        assert_eq!(used("7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 30 12 5 6 20 0 1 0 99"), 42);
        assert_eq!(used(""), 0);
    }
}
