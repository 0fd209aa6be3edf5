//! `sluice status`: asks a running gateway, or a cluster.

use std::process::ExitCode;

use clap::Args;

use super::{ask, cluster, say};
use crate::discover;
use crate::status::Status;

/// What `sluice status` can be told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The gateway's admin address.
    #[arg(long, default_value = "127.0.0.1:9901", env = "SLUICE_ADMIN", value_parser = ask::host_and_port)]
    admin: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print the scores as the kernel's map has them, as JSON.
    #[arg(long)]
    scores: bool,
    /// Ask the API server of Kubernetes, as a pod of it or by KUBECONFIG, and no gateway.
    #[arg(long, conflicts_with = "scores")]
    kubernetes: bool,
    /// With --kubernetes: the namespace [default: this pod's own, or that of KUBECONFIG]
    #[arg(long, short, value_name = "NAMESPACE", requires = "kubernetes")]
    namespace: Option<String>,
    /// With --kubernetes: the InferenceGatewayConfig [default: the only one, or the oldest]
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    name: Option<String>,
}

/// Asks and prints.
pub fn run(options: &Options) -> ExitCode {
    if options.kubernetes {
        let (namespace, name) = (options.namespace.clone(), options.name.clone());
        let asked = discover::Options { namespace, name, ..discover::Options::default() };
        return cluster::run(&asked, options.json);
    }
    let path = if options.scores { "/status/scores" } else { "/status" };
    let page = match ask::ask(&options.admin, path, None) {
        Ok(page) => page,
        Err(error) => {
            eprintln!(
                "sluice: no answer from a gateway's admin address {}: {error}. Is it running there? \
                 --admin names another.",
                options.admin
            );
            return ExitCode::FAILURE;
        }
    };
    if options.json || options.scores {
        return say(&page);
    }
    match serde_json::from_str::<Status>(&page) {
        Ok(status) => say(&status.table()),
        Err(error) => {
            eprintln!(
                "sluice: what answers at {} is no gateway of this version: {error}",
                options.admin
            );
            ExitCode::FAILURE
        }
    }
}
