//! What the processes and the machine used, between two instants.

use std::fs;

use anyhow::Context;
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use sluice_tests::bench::event::now_ns;
use sluice_tests::bench::report::{Report, Usage};

use crate::{Common, pace::Pace};

/// Measures the window without sending anything.
pub(crate) async fn idle(common: &Common) -> anyhow::Result<Report> {
    let window = Window::starting_in(0.0, common);
    window.measure(common).await
}

/// The time that counts, in nanoseconds of [`now_ns`].
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Window {
    /// Opens after so many seconds and the warm-up.
    pub(crate) fn starting_in(seconds: f64, common: &Common) -> Self {
        let start = now_ns() + ns(seconds + common.warmup);
        Self { start, end: start + ns(common.seconds) }
    }

    /// Whether an instant counts.
    pub(crate) fn has(&self, instant_ns: u64) -> bool {
        (self.start..self.end).contains(&instant_ns)
    }

    /// Waits for the window's start and its end; what was used between is in the report.
    pub(crate) async fn measure(&self, common: &Common) -> anyhow::Result<Report> {
        let pace = Pace::new()?;
        let pids = [common.gateway, common.pod, Some(std::process::id() as i32)];
        pace.until(self.start).await?;
        let before = Snapshot::take(pids)?;
        pace.until(self.end).await?;
        Ok(Snapshot::take(pids)?.since(&before))
    }
}

/// Nanoseconds of so many seconds.
pub(crate) fn ns(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// Everything at one instant: gateway, pod, load generator; the machine.
struct Snapshot {
    at: u64,
    processes: [Usage; 3],
    machine: Machine,
}

impl Snapshot {
    fn take(pids: [Option<i32>; 3]) -> anyhow::Result<Self> {
        let mut processes = [Usage::default(); 3];
        for (usage, pid) in processes.iter_mut().zip(pids) {
            if let Some(pid) = pid {
                *usage = process(pid).with_context(|| format!("process {pid} has ended"))?;
            }
        }
        Ok(Self { at: now_ns(), processes, machine: Machine::read()? })
    }

    fn since(&self, before: &Self) -> Report {
        let seconds = (self.at - before.at) as f64 / 1e9;
        let mut used = self.processes;
        for (now, then) in used.iter_mut().zip(before.processes) {
            now.cpu_us -= then.cpu_us;
            now.switches = now.switches.saturating_sub(then.switches);
        }
        let Machine { busy, steal, total, processors } = self.machine.minus(before.machine);
        let percent = |ticks: u64| ticks as f64 * 100.0 / total.max(1) as f64;
        let ours: f64 = used.iter().map(|usage| usage.cpu_us).sum();
        let other_percent = percent(busy) - ours / (seconds * processors as f64 * 1e4);
        let [gateway, pod, load] = used;
        Report {
            seconds,
            gateway,
            pod,
            load,
            steal_percent: percent(steal),
            other_percent: other_percent.max(0.0),
            ..Report::default()
        }
    }
}

fn process(pid: i32) -> anyhow::Result<Usage> {
    let clock: ClockId = clock_getcpuclockid(Pid::from_raw(pid))?;
    let time = clock_gettime(clock)?;
    let mut usage = Usage {
        cpu_us: time.tv_sec() as f64 * 1e6 + time.tv_nsec() as f64 / 1e3,
        rss_kb: field(&fs::read_to_string(format!("/proc/{pid}/status"))?, "VmRSS:"),
        switches: 0,
    };
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let status = fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
        usage.switches += field(&status, "voluntary_ctxt_switches:");
    }
    Ok(usage)
}

/// The number in a line of a status file; 0 without such a line.
fn field(status: &str, name: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Ticks of all processors together.
#[derive(Clone, Copy)]
struct Machine {
    busy: u64,
    steal: u64,
    total: u64,
    processors: usize,
}

impl Machine {
    fn read() -> anyhow::Result<Self> {
        Self::parse(&fs::read_to_string("/proc/stat")?).context("/proc/stat")
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal, guest times.
    fn parse(stat: &str) -> Option<Self> {
        let mut ticks = stat.lines().next()?.split_whitespace().skip(1).map(str::parse::<u64>);
        let mut next = || ticks.next()?.ok();
        let [user, nice, system] = [next()?, next()?, next()?];
        let [idle, iowait] = [next()?, next()?];
        let [irq, softirq, steal] = [next()?, next()?, next()?];
        let busy = user + nice + system + irq + softirq;
        let processors = stat.lines().skip(1).filter(|line| line.starts_with("cpu")).count();
        Some(Self { busy, steal, total: busy + idle + iowait + steal, processors })
    }

    fn minus(self, before: Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(before.busy),
            steal: self.steal.saturating_sub(before.steal),
            total: self.total.saturating_sub(before.total),
            processors: self.processors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_ticks_are_read_from_the_first_line() {
        let stat = "cpu  100 2 30 400 5 6 7 8 0 0\ncpu0 1 1\ncpu1 1 1\nintr 5\n";
        let machine = Machine::parse(stat).unwrap();
        assert_eq!((machine.busy, machine.steal, machine.total), (145, 8, 558));
        assert_eq!(machine.processors, 2);
    }

    #[test]
    fn a_status_field_is_found_by_its_whole_name() {
        let status =
            "nonvoluntary_ctxt_switches:\t9\nVmRSS:\t  1234 kB\nvoluntary_ctxt_switches:\t5\n";
        assert_eq!(field(status, "VmRSS:"), 1234);
        assert_eq!(field(status, "voluntary_ctxt_switches:"), 5);
        assert_eq!(field(status, "Nothing:"), 0);
    }
}
