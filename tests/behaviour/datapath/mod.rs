//! One suite over three carriers of response bodies: relay, splice, local. The relay is the oracle:
//! what holds for it holds for the others, to the byte.
//!
//! Every case is a function of the [`Carrier`] and runs as `datapath::CARRIER::CASE`. A case for a
//! kernel carrier runs in a network namespace of its own and counts as privileged. There it is also
//! asserted that the kernel moved bytes, so that no carrier passes by the relay's merits.

mod bodies;
mod volume;

use std::net::SocketAddr;

use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::netns;
use sluice_tests::script::ScriptPod;

/// What is to carry the bodies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Carrier {
    Relay,
    Splice,
    Local,
}

macro_rules! cases {
    ($($module:ident: $($case:ident),+;)+) => {
        mod relay {
            $($(#[test] fn $case() { super::Carrier::Relay.run(super::$module::$case); })+)+
        }
        mod splice {
            $($(#[test] fn $case() { super::Carrier::Splice.run(super::$module::$case); })+)+
        }
        mod local {
            $($(#[test] fn $case() { super::Carrier::Local.run(super::$module::$case); })+)+
        }
    };
}

cases! {
    bodies: every_framing_in_chunks_and_writes_of_any_size;
    volume: two_hundred_megabytes_of_mixed_traffic;
}

impl Carrier {
    /// Runs a case, the kernel's in a namespace of its own.
    fn run(self, case: fn(Self)) {
        match self {
            Self::Relay => case(self),
            Self::Splice | Self::Local => netns::run(&[], move || case(self)),
        }
    }

    /// The paths to configure.
    fn paths(self) -> Vec<&'static str> {
        match self {
            Self::Relay => vec!["relay"],
            Self::Splice => vec!["splice", "relay"],
            Self::Local => vec!["local", "relay"],
        }
    }

    /// Its name in metrics.
    fn name(self) -> &'static str {
        self.paths()[0]
    }

    /// A plan for one pool of pods at these addresses, serving the model `base` by this carrier.
    fn plan(self, pods: impl IntoIterator<Item = SocketAddr>) -> Plan {
        let pools = vec![("base".into(), pods.into_iter().collect())];
        Plan { pools, paths: self.paths(), ..Plan::pool("base", &[]) }
    }

    /// A gateway before these pods.
    fn gateway(self, pods: &[ScriptPod]) -> Gateway {
        Gateway::start(&self.plan(pods.iter().map(|pod| pod.address)))
    }

    /// Bytes of response bodies and their framing that went by this carrier.
    fn moved(self, gateway: &Gateway) -> f64 {
        let sample = format!("sluice_flow_bytes_total{{path=\"{}\"}}", self.name());
        gateway.metric(&sample).unwrap_or(0.0)
    }

    /// Asserts that the kernel moved so many bytes at least; of the relay nothing is asked.
    fn assert_moved(self, gateway: &Gateway, least: u64) {
        if self == Self::Relay {
            return;
        }
        let moved = self.moved(gateway);
        assert!(moved >= least as f64, "{self:?} moved {moved} bytes and not {least}");
        let sample =
            format!("sluice_flow_responses_total{{path=\"{}\",reason=\"best\"}}", self.name());
        assert!(gateway.metric(&sample) > Some(0.0), "no response counts as carried by {self:?}");
    }
}

/// Asserts that nothing is left of what was under way, of requests, connections and kernel tables.
fn assert_nothing_left(gateway: &Gateway) {
    let status = gateway.wait("nothing to be left", |status| {
        status["connections"] == 0 && status["buffered_bytes"] == 0
    });
    assert_eq!(status["connections"], 0);
    gateway.wait_idle();
    assert_tables_empty(gateway);
}

/// Asserts that no flow is left in the kernel's tables, as far as `/status` tells of them.
fn assert_tables_empty(gateway: &Gateway) {
    gateway.wait("the kernel's tables to be empty", |status| {
        let flows = &status["flows"];
        flows.is_null() || flows["armed"] == 0
    });
}
