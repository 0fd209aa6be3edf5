//! What the processes and the machine used, between two instants.

use std::collections::HashMap;
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
    elsewhere: Elsewhere,
}

impl Snapshot {
    fn take(pids: [Option<i32>; 3]) -> anyhow::Result<Self> {
        let mut processes = [Usage::default(); 3];
        for (usage, pid) in processes.iter_mut().zip(pids) {
            if let Some(pid) = pid {
                *usage = process(pid).with_context(|| format!("process {pid} has ended"))?;
            }
        }
        let (at, machine) = (now_ns(), Machine::read()?);
        Ok(Self { at, processes, machine, elsewhere: Elsewhere::read(&pids)? })
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
        let share = |cpu_us: f64| cpu_us / (seconds * processors as f64 * 1e4);
        let other_percent = percent(busy) - share(ours);
        let [gateway, pod, load] = used;
        let Elsewhere { workers, programs } = &self.elsewhere;
        let kworker_us = grown(workers, &before.elsewhere.workers);
        let programs_percent = share(grown(programs, &before.elsewhere.programs));
        Report {
            seconds,
            gateway,
            pod,
            load,
            kworker_us,
            programs_percent,
            unexplained_percent: other_percent - programs_percent - share(kworker_us),
            steal_percent: percent(steal),
            other_percent: other_percent.max(0.0),
            ..Report::default()
        }
    }
}

fn process(pid: i32) -> anyhow::Result<Usage> {
    let mut usage = Usage {
        cpu_us: cpu_us(pid)?,
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

/// The process clock: all threads, also those that have ended.
fn cpu_us(pid: i32) -> anyhow::Result<f64> {
    let clock: ClockId = clock_getcpuclockid(Pid::from_raw(pid))?;
    let time = clock_gettime(clock)?;
    Ok(time.tv_sec() as f64 * 1e6 + time.tv_nsec() as f64 / 1e3)
}

/// Processor time of the processes that are not ours, by process id, microseconds.
#[derive(Default)]
struct Elsewhere {
    /// The kernel's workers: what it does for others, such as carrying their bytes.
    workers: HashMap<i32, f64>,
    /// All but the kernel's threads.
    programs: HashMap<i32, f64>,
}

impl Elsewhere {
    fn read(ours: &[Option<i32>]) -> anyhow::Result<Self> {
        let mut read = Self::default();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            // A process may end meanwhile.
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let Ok(cpu_us) = cpu_us(pid) else { continue };
            match Kind::of(&stat) {
                Kind::Worker => read.workers.insert(pid, cpu_us),
                Kind::Program if !ours.contains(&Some(pid)) => read.programs.insert(pid, cpu_us),
                _ => None,
            };
        }
        Ok(read)
    }
}

#[derive(Debug, PartialEq)]
enum Kind {
    Worker,
    OtherKernel,
    Program,
}

impl Kind {
    /// From a process's stat file: id, name in brackets, state, parent.
    fn of(stat: &str) -> Self {
        // A name may have brackets of its own.
        let parts = stat.split_once(" (").and_then(|(_, rest)| rest.rsplit_once(") "));
        let (name, rest) = parts.unwrap_or_default();
        match rest.split(' ').nth(1) {
            Some(KERNEL) if name.starts_with("kworker/") => Self::Worker,
            Some(KERNEL) => Self::OtherKernel,
            _ => Self::Program,
        }
    }
}

/// What was used since, all together; one that has begun meanwhile counts as a whole.
fn grown(now: &HashMap<i32, f64>, before: &HashMap<i32, f64>) -> f64 {
    now.iter().map(|(pid, cpu_us)| cpu_us - before.get(pid).unwrap_or(&0.0)).sum()
}

/// Process id of the parent of the kernel's threads.
const KERNEL: &str = "2";

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
    fn the_kernels_workers_are_told_from_programs() {
        for (stat, kind) in [
            ("54 (kworker/1:1H-kblockd) I 2 0 0 0 -1", Kind::Worker),
            ("17 (ksoftirqd/0) S 2 0 0 0 -1", Kind::OtherKernel),
            ("900 (kworker/1:1) S 1 900 900 0 -1", Kind::Program),
            ("901 (a) I 2 (b) S 77 901 901 0 -1", Kind::Program),
            ("", Kind::Program),
        ] {
            assert_eq!(Kind::of(stat), kind, "{stat}");
        }
    }

    #[test]
    fn use_of_processes_that_came_or_went() {
        let before = HashMap::from([(1, 5.0), (2, 7.0)]);
        let now = HashMap::from([(1, 6.5), (3, 2.0)]);
        assert_eq!(grown(&now, &before), 3.5);
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
