//! What needs a Kubernetes API server: `cargo xtask k8s test` starts one and runs this.
//!
//! Each test has a namespace of its own. No node and no controller runs, so that a test says itself what a kubelet would:
//! that a pod is ready, and at which address of the loopback interface it listens.

mod api;
mod chart;
mod churn;
mod definition;
mod identity;
mod kept;
mod many;
mod outage;
mod pickers;
mod pods;
mod proxy;
mod rewrites;
mod rights;
mod start;
mod status;
mod store;
mod told;
mod upgrade;
