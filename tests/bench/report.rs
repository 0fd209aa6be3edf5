//! What the load generator prints, one JSON object a run, and the benchmark tasks read.

use serde::{Deserialize, Serialize};

/// One run against one target. Everything is of the measured window only.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Report {
    /// Length of the window.
    pub seconds: f64,
    /// Responses that ended in the window.
    pub responses: u64,
    /// Tokens that arrived in the window.
    pub tokens: u64,
    /// Requests of the whole run that failed.
    pub errors: u64,
    /// What the first of them said.
    pub first_error: Option<String>,
    /// Streams that were to be open during the window.
    pub streams: u64,
    /// Of those, the ones that at its end were open, complete up to then, and not behind.
    pub alive: u64,
    /// From when a request should have been sent to the end of its response, microseconds.
    pub latency_us: Quantiles,
    /// From when a request should have been sent to its first token, microseconds.
    pub ttft_us: Quantiles,
    /// From the pod's write of a token to the client's read, microseconds.
    pub token_us: Quantiles,
    /// From the pod's write of a token to its arrival at the client's socket, microseconds; of
    /// streams only.
    pub wire_us: Quantiles,
    /// The gateway process; zero without one.
    pub gateway: Usage,
    /// The process of the mock pods.
    pub pod: Usage,
    /// The load generator.
    pub load: Usage,
    /// Processor time of the kernel's own workers, all together, microseconds.
    pub kworker_us: f64,
    /// Processor time of other programs by their own clocks, percent of all processors.
    pub programs_percent: f64,
    /// Processor time that is by no clock, percent of all processors: what began and ended in the
    /// window, the kernel's threads but its workers, interrupts.
    pub unexplained_percent: f64,
    /// Processor time that the host took from this machine, percent of all its processors.
    pub steal_percent: f64,
    /// Processor time of everything but gateway, pods and load generator, percent of all
    /// processors, the kernel's own threads included.
    pub other_percent: f64,
}

/// Of a distribution.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Quantiles {
    /// Values counted.
    pub count: u64,
    /// The median.
    pub p50: f64,
    /// One in a hundred is above.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

/// What a process used in the window.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Usage {
    /// Processor time by the process clock, all threads, user and system, microseconds.
    pub cpu_us: f64,
    /// Times that a thread went to sleep by itself.
    pub switches: u64,
    /// Resident memory at the end of the window.
    pub rss_kb: u64,
}
