//! The kernel's part: loads the programs, fills their maps, reads what they report.
//!
//! The only module that names aya. Everything in it may be missing on a host; then the gateway
//! serves by ordinary listeners and the userspace relay, so nothing here is an error of the daemon:
//! what does not work says why ([`Unfit`], [`Feature`]).
//!
//! Calls here are system calls, some of which wait for the kernel; they belong on a thread of their
//! own, never on a worker. Those of [`Flows`] do not wait. Programs and maps live as long as the value
//! that holds them: nothing is pinned.

mod direct;
mod events;
mod flows;
mod listening;
mod load;
mod log;
mod memory;
mod probe;
mod scores;
mod shared;
mod socket;
mod steer;
mod system;
mod trial;
mod verify;

pub use direct::{Direct, DirectCounters, PodConnections, ServerSocket, Worth};
pub use flows::{Flows, Link, LinkError, Parked, Path, Receiver, Usage, Works};
pub use load::Unfit;
pub use log::KernelLogReader;
pub use memory::give_back_large_blocks;
pub use probe::{Feature, probe};
pub use scores::{Publication, PublishedScore, ScoreEntry};
pub(crate) use socket::outstanding;
pub use steer::{ListenerCounters, SteerError, Steering};
pub use trial::{Failed, trial};
pub use verify::{VerifiedProgram, verify_programs};
