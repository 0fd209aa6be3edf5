//! Which path a response takes, and why that one.
//!
//! [`Paths`] is what works on this host and is wanted; it is found out once, at start. For each response
//! [`Plan`] says whether the kernel may carry it, and when it has ended, what did.

use std::os::fd::AsFd;

use gateway_common::enrol::MAX_PORTS;
use gateway_common::flow::TakenBack;
use tracing::{debug, info, warn};

use crate::config::Config;
use crate::kernel::{self, Flows, Link, LinkError, Receiver, trial};
use crate::metrics::{Path, PathReason};

/// The kernel paths of a running gateway.
#[derive(Debug)]
pub struct Paths {
    /// What carries, if any path works.
    pub flows: Option<Flows>,
    /// Why the path for pods on this node does not work, if it does not.
    pub local: Option<Off>,
    /// Why the path for other pods does not work, if it does not.
    pub splice: Option<Off>,
}

/// Why a path is not used.
#[derive(Clone, Debug)]
pub struct Off {
    /// For the metric.
    pub reason: PathReason,
    /// For people.
    pub text: String,
}

/// What is to be done with one response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Plan {
    /// The kernel may carry it along this path.
    Kernel(kernel::Path),
    /// The daemon relays it.
    Relay(PathReason),
}

/// What decides about one response.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    /// It is a stream of events; anything else is over too soon.
    pub event_stream: bool,
    /// The client gets its bytes as they come from the pod.
    pub unchanged: bool,
}

/// How the bytes of a response's body went, with their framing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Bytes {
    /// Through the daemon.
    pub relayed: u64,
    /// By the kernel.
    pub carried: u64,
    /// The last reason for which the kernel gave the flow back, as the programs number it.
    pub taken_back: u32,
}

impl Paths {
    /// Finds out which paths work, by using them, and says so in a log line for each. `ports` are those on
    /// which clients arrive.
    pub fn start(config: &Config, ports: &[u16]) -> Self {
        let kernel = &config.kernel;
        let wanted = |path| match path {
            kernel::Path::Local => kernel.local,
            kernel::Path::Splice => kernel.splice,
        };
        let unwanted = || Off::new(PathReason::Off, "turned off by kernel.paths");
        let turned_off = |path| (!wanted(path)).then(unwanted);
        let (local, splice) = (turned_off(kernel::Path::Local), turned_off(kernel::Path::Splice));
        let mut paths = match Flows::start(kernel.log, ports, wanted) {
            Ok((flows, works)) => {
                let unfit = |off: Option<Off>, works: Result<(), kernel::Unfit>| {
                    off.or_else(|| works.err().map(|unfit| Off::unfit(&unfit)))
                };
                let (local, splice) = (unfit(local, works.local), unfit(splice, works.splice));
                Self { flows: Some(flows), local, splice }
            }
            Err(unfit) => {
                let unfit = || Off::unfit(&unfit);
                let (local, splice) = (local.unwrap_or_else(unfit), splice.unwrap_or_else(unfit));
                Self { flows: None, local: Some(local), splice: Some(splice) }
            }
        };
        if paths.flows.is_some() {
            for path in [kernel::Path::Local, kernel::Path::Splice] {
                paths.test(path);
            }
        }
        if ports.len() > MAX_PORTS as usize {
            warn!(
                "clients arrive on {} ports; what the first {MAX_PORTS} get may be carried by the kernel",
                ports.len()
            );
        }
        paths.say();
        paths
    }

    /// A path that does not deliver is not used.
    fn test(&mut self, path: kernel::Path) {
        let off = match path {
            kernel::Path::Local => &mut self.local,
            kernel::Path::Splice => &mut self.splice,
        };
        let Some(flows) = self.flows.as_mut().filter(|_| off.is_none()) else { return };
        if let Err(error) = trial(flows, path) {
            *off = Some(Off::new(PathReason::Unfit, format!("tried, and failed: {error}")));
            flows.leave_out(path);
        }
    }

    fn say(&self) {
        let lines = [
            ("local", &self.local, "pods on this node write to the clients' sockets"),
            ("splice", &self.splice, "the kernel passes on what other pods send"),
        ];
        for (path, off, text) in lines {
            match off {
                None => info!("path {path}: {text}"),
                // As wanted, and nothing to look into.
                Some(off) if off.reason == PathReason::Off => info!("path {path}: {}", off.text),
                Some(off) => warn!("path {path}: not used: {}", off.text),
            }
        }
    }

    /// A link for a connection to a pod that is about to be made.
    ///
    /// # Errors
    /// Why its responses are relayed.
    pub fn link(&self, socket: &impl AsFd) -> Result<Link, PathReason> {
        match &self.flows {
            Some(flows) => flows.link(socket).map_err(|error| told(&error)),
            None => Err(self.elsewhere()),
        }
    }

    /// The same link, now that the connection is made.
    ///
    /// # Errors
    /// Why its responses are relayed.
    pub fn settle(&self, mut link: Link, socket: &impl AsFd) -> Result<Link, PathReason> {
        match link.settle(socket) {
            Ok(Some(_)) => Ok(link),
            Ok(None) => Err(self.elsewhere()),
            Err(error) => Err(told(&error)),
        }
    }

    /// Makes a client's connection one that the kernel can send to.
    ///
    /// # Errors
    /// Why its responses are relayed.
    pub fn receiver(&self, socket: &impl AsFd) -> Result<Receiver, PathReason> {
        match &self.flows {
            Some(flows) => flows.receiver(socket).map_err(|error| told(&error)),
            None => Err(self.elsewhere()),
        }
    }

    /// Why the kernel does not carry what a pod on another node sends.
    fn elsewhere(&self) -> PathReason {
        let reason = |off: &Option<Off>| off.as_ref().map(|off| off.reason);
        match (reason(&self.local), reason(&self.splice)) {
            // One that is turned off tells less than one that does not work.
            (Some(PathReason::Unfit), _) if self.flows.is_none() => PathReason::Unfit,
            (_, Some(splice)) => splice,
            _ => PathReason::Unfit,
        }
    }
}

fn told(error: &LinkError) -> PathReason {
    debug!("a connection is left to the relay: {error}");
    match error {
        LinkError::Full => PathReason::Full,
        LinkError::Map(_) | LinkError::Io(_) => PathReason::Unfit,
    }
}

impl Off {
    fn new(reason: PathReason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }

    fn unfit(unfit: &kernel::Unfit) -> Self {
        Self::new(PathReason::Unfit, unfit.to_string())
    }
}

impl Plan {
    /// What to do with `response`, which comes on a connection with this link, or without one for that reason.
    pub fn new(response: Response, link: Result<&Link, PathReason>) -> Self {
        if !response.event_stream {
            return Self::Relay(PathReason::Short);
        }
        if !response.unchanged {
            return Self::Relay(PathReason::Rewritten);
        }
        match link.map(Link::path) {
            Ok(Some(path)) => Self::Kernel(path),
            Ok(None) => Self::Relay(PathReason::Unfit),
            Err(reason) => Self::Relay(reason),
        }
    }

    /// The path of the kernel that may carry it, as the metrics name it.
    pub fn path(self) -> Option<Path> {
        match self {
            Self::Relay(_) => None,
            Self::Kernel(kernel::Path::Local) => Some(Path::Local),
            Self::Kernel(kernel::Path::Splice) => Some(Path::Splice),
        }
    }

    /// What carried the response, now that it has ended, and why that.
    pub fn outcome(self, bytes: Bytes) -> (Path, PathReason) {
        let path = match (self, self.path()) {
            (Self::Relay(reason), _) => return (Path::Relay, reason),
            (_, None) => return (Path::Relay, PathReason::Off),
            (_, Some(path)) => path,
        };
        let slow = bytes.taken_back == TakenBack::Credit as u32;
        match bytes.carried {
            // It was over before the kernel could take it.
            0 if !slow => (Path::Relay, PathReason::Short),
            carried if slow && carried < bytes.relayed => (Path::Relay, PathReason::SlowClient),
            _ => (path, PathReason::Best),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_streams_that_stay_as_they_are() {
        let response = |event_stream, unchanged| Response { event_stream, unchanged };
        let table = [
            (response(false, true), PathReason::Short),
            (response(true, false), PathReason::Rewritten),
            (response(true, true), PathReason::Full),
        ];
        for (response, reason) in table {
            assert_eq!(Plan::new(response, Err(PathReason::Full)), Plan::Relay(reason));
        }
    }

    #[test]
    fn what_carried_most_is_told() {
        let plan = Plan::Kernel(kernel::Path::Splice);
        let credit = TakenBack::Credit as u32;
        let table = [
            (0, 900, 0, (Path::Relay, PathReason::Short)),
            (1, 900, 0, (Path::Splice, PathReason::Best)),
            (0, 900, credit, (Path::Relay, PathReason::SlowClient)),
            (800, 900, credit, (Path::Relay, PathReason::SlowClient)),
            (900, 800, credit, (Path::Splice, PathReason::Best)),
        ];
        for (carried, relayed, taken_back, told) in table {
            assert_eq!(plan.outcome(Bytes { relayed, carried, taken_back }), told, "{carried}");
        }
        let relay = Plan::Relay(PathReason::Tls);
        assert_eq!(relay.outcome(Bytes::default()), (Path::Relay, PathReason::Tls));
    }
}
