//! Kubernetes as the source of the configuration: one `InferenceGatewayConfig` object, or the `InferencePool`s of a
//! namespace, and the pods that they select.
//!
//! 1. [`objects`]: as much of each object as is needed, and no more is kept.
//! 2. [`selector`] tells which pods labels mean.
//! 3. [`resolve`]: all objects together to one [`Config`](crate::config::Config) with its pods, and what a person should
//!    know of each pool. Pure: no IO, no clock.
//!    [`pickers`] are ConfigMaps that an object names, [`extension`] and [`adapters`] what the inference extension's
//!    objects add.
//! 4. [`conditions`]: that again, as the object's status.
//! 5. [`parents`], [`events`]: the same for the pools, and for people who watch.
//! 6. [`signals`]: what the gateway does not know of its pods.
//! 7. [`cluster`]: follows the API server and resolves what is there after each change.
//! 8. [`report`]: writes the status and the rest, as one of many gateways: the one that [`hold`]s the [`lease`].
//!    [`writes`]: how it does.
//!
//! Only the last two have IO. Nothing here writes to a pod.

pub mod adapters;
pub mod cluster;
pub mod conditions;
mod events;
pub mod extension;
mod follow;
mod hold;
mod lease;
pub mod objects;
mod parents;
pub mod pickers;
pub mod report;
pub mod resolve;
pub mod selector;
pub mod signals;
mod writes;

pub use self::cluster::{Cluster, Options};
pub use self::conditions::Unapplied;
pub use self::follow::Trouble;
pub use self::report::Reporter;
pub use self::resolve::{Resolved, Snapshot, resolve};

/// The gateway's name as a controller, in what it writes for others to read.
const CONTROLLER: &str = "sluice.dev/gateway";
