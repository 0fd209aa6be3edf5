//! How a pool's pods are spoken to.

use rustls::pki_types::ServerName;

use super::Builder;
use crate::config::document::{self, AppProtocol, Mode};
use crate::config::error::{Path, quoted};
use crate::config::{Certificate, HealthCheck, PodTls, RetryBudget};

pub(super) fn retry_budget(budget: document::RetryBudget) -> RetryBudget {
    let document::RetryBudget { ratio, min_per_second } = budget;
    RetryBudget { ratio, min_per_second }
}

impl Builder<'_> {
    /// How the pods of a scheduler at `path` speak TLS, if they do.
    pub(super) fn pod_tls(
        &mut self,
        scheduler: &document::Scheduler,
        path: &Path,
    ) -> Option<PodTls> {
        let protocol = path.field("appProtocol");
        let tls = path.field("tls");
        match (scheduler.app_protocol, &scheduler.tls) {
            (AppProtocol::Https, _) => {}
            (_, Some(_)) => {
                // Never ignored: requests that were to be secret would go out in clear text.
                self.fail(&tls, std::slice::from_ref(path), "is for appProtocol: https only");
                return None;
            }
            (AppProtocol::H2c, None) => {
                let text = "has no effect in this version: requests go out as HTTP/1.1";
                self.note(&protocol, text);
                return None;
            }
            (AppProtocol::Http, None) => return None,
        }
        if scheduler.mode == Mode::Connection {
            let text = "https is not for mode: connection, where the gateway speaks to no pod";
            self.fail(&protocol, &[], text);
        }
        let document::PodTls { ca_file, server_name, insecure_skip_verify, .. } =
            scheduler.tls.clone().unwrap_or_default();
        if let Some(name) = &server_name
            && ServerName::try_from(name.as_str()).is_err()
        {
            let text = format!("{} is no name that a certificate can be for", quoted(name));
            self.fail(&tls.field("serverName"), &[], text);
        }
        if insecure_skip_verify && ca_file.is_some() {
            let text = "vouches for nothing with insecureSkipVerify: true";
            self.fail(&tls.field("caFile"), &[], text);
        }
        Some(PodTls {
            ca_file,
            server_name,
            insecure_skip_verify,
            certificate: self.client_certificate(scheduler.tls.as_ref(), &tls),
        })
    }

    /// How the pods of a scheduler at `path` are asked whether they are well, if they are.
    pub(super) fn health_check(
        &mut self,
        scheduler: &document::Scheduler,
        path: &Path,
    ) -> Option<HealthCheck> {
        let path = path.field("healthCheck");
        let document::HealthCheck { path: page, interval, timeout, unhealthy_after, healthy_after } =
            scheduler.health_check.clone()?;
        if timeout > interval {
            let text = format!("{timeout} is above interval, {interval}");
            self.fail(&path.field("timeout"), std::slice::from_ref(&path), text);
        }
        Some(HealthCheck {
            path: page,
            interval: interval.0,
            timeout: timeout.0,
            unhealthy_after,
            healthy_after,
        })
    }

    fn client_certificate(
        &mut self,
        tls: Option<&document::PodTls>,
        path: &Path,
    ) -> Option<Certificate> {
        let tls = tls?;
        match (tls.certificate_file.clone(), tls.key_file.clone()) {
            (Some(certificate_file), Some(key_file)) => {
                Some(Certificate { certificate_file, key_file })
            }
            (None, None) => None,
            (Some(_), None) => {
                let text = "needs keyFile beside it";
                self.fail(&path.field("certificateFile"), std::slice::from_ref(path), text);
                None
            }
            (None, Some(_)) => {
                let text = "needs certificateFile beside it";
                self.fail(&path.field("keyFile"), std::slice::from_ref(path), text);
                None
            }
        }
    }
}
