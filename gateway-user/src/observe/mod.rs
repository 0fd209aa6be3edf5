//! What the pods say about themselves: load, adapters, models.
//!
//! In the order in which an answer goes through them:
//!
//! - [`scraper`]: one task for each pod asks it, as often as it makes sense and never twice at a
//!   time.
//! - [`exposition`]: bytes of Prometheus text become samples.
//! - [`engines`]: the samples of each kind of model server become one [`Reading`].
//! - [`models`]: the list of models becomes one [`Models`].
//! - [`health`]: a page of the pod's may be asked besides whether it is well.
//! - [`events`]: beside all this, pods may publish each change of their prefix caches.
//!
//! Everything ends in a [`Sink`], which the pool's state implements. What a pod's silence means for
//! it is decided there, not here, and no decision ever waits for an answer.

mod failure;
mod link;
mod pace;

pub mod engines;
pub mod events;
pub mod exposition;
pub mod health;
pub mod models;
pub mod scraper;

pub use engines::{EngineKind, Reading};
pub use failure::{Cause, Failure, Question};
pub use models::Models;
pub use scraper::{InvalidTarget, Target, watch};

/// Where what was learned about one pod goes. Called at the end of each question to the pod, from
/// its task: cheap implementations only.
pub trait Sink {
    /// The gateway has requests in flight at this pod, so that it is worth asking often.
    fn busy(&self) -> bool;

    /// Requests that the gateway has had to place so far, where this pod could have been the one.
    fn placed(&self) -> u64;

    /// Of these, the ones that were given to this pod.
    fn given(&self) -> u64;

    /// Returns once [`given`](Self::given) is above `before`, so that a pod that is left in peace is asked as soon as
    /// it is used.
    fn wanted(&self, before: u64) -> impl Future<Output = ()>;

    /// The pod told its load, just now.
    fn reading(&self, reading: Reading);

    /// The pod told its models, just now.
    fn models(&self, models: Models);

    /// A question was not answered; what was learned before grows old.
    fn failed(&self, failure: Failure);
}
