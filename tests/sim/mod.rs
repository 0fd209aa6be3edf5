//! The simulator: a fleet of engines, the gateways before it and their traffic, as fast as it goes.
//!
//! Discrete events, one thread, no clock and no IO: time is a number of microseconds, and the same
//! seed gives the same figures to the last digit. Engines are those of [`engine`](crate::engine);
//! gateways see them as the real ones do, through signals that are a scrape old and through what
//! they have in flight themselves. The policy `sluice-*` is the gateway's own
//! [`schedule`](gateway_user::schedule), the others are written here from what is known of them.
//!
//! In the order of a request: [`traffic`] makes it, [`gateway`] holds what is known of the pods,
//! [`policy`] picks one, [`world`] moves time on, [`figures`] says how it went. [`scenario`] is the
//! table of what is simulated, [`report`] what is printed.
//!
//! It never says how fast a gateway is: a decision takes no time here. See the benchmarks for that.

pub mod figures;
pub mod gateway;
pub mod policy;
pub mod report;
pub mod scenario;
pub mod traffic;
pub mod world;

pub use figures::Figures;
pub use scenario::{SCENARIOS, Scenario};
pub use world::{WARM_UP, run};

/// A second of simulated time.
pub const SECOND: u64 = 1_000_000;
