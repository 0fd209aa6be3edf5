//! Who may send requests: what no single field can tell.

use super::Builder;
use crate::auth::jwt::KeySet;
use crate::config::document::{self, AuthMode, ClaimType, Mode};
use crate::config::error::Path;
use crate::config::{ApiKeys, Auth, Claim, KeySource, Provider};

impl Builder<'_> {
    pub(super) fn auth(
        &mut self,
        auth: document::Auth,
        schedulers: &[document::Scheduler],
        spec: &Path,
    ) -> Auth {
        let document::Auth { mode, api_keys, jwt } = auth;
        let path = spec.field("auth");
        let off = mode == Some(AuthMode::Off);
        let says = api_keys.is_some() || jwt.is_some();
        // Never guessed: one of the two is not what was meant.
        if off && says {
            let text = "off lets everyone in, whatever apiKeys and jwt say; remove either";
            self.fail(&path.field("mode"), &[], text);
        }
        if !off && !says {
            let text =
                "lets nobody in: it has neither apiKeys nor jwt; `mode: off` lets everyone in";
            self.fail(&path, std::slice::from_ref(&path), text);
        }
        for (index, scheduler) in schedulers.iter().enumerate() {
            if !off && scheduler.mode == Mode::Connection {
                let path = spec.field("schedulers").index(index).field("mode");
                let text = "connection has no place beside auth: the gateway reads nothing of such \
                            connections, so that everyone would be let in";
                self.fail(&path, &[], text);
            }
        }
        let jwt =
            jwt.and_then(|jwt| self.provider(jwt.provider, &path.field("jwt").field("provider")));
        let api_keys = api_keys.map(|document::ApiKeys { file, limits }| ApiKeys { file, limits });
        Auth { off, api_keys, jwt }
    }

    fn provider(&mut self, provider: document::Provider, path: &Path) -> Option<Provider> {
        let document::Provider {
            name,
            issuer,
            remote_jwks,
            local_jwks,
            audiences,
            required_claims,
        } = provider;
        let basis = std::slice::from_ref(path);
        if audiences.is_empty() && required_claims.is_empty() {
            let text = "needs audiences or requiredClaims: else a token that its issuer made for \
                        anything would let in";
            self.fail(path, basis, text);
        }
        let local = path.field("localJWKS");
        let keys = match (remote_jwks, local_jwks) {
            (Some(document::RemoteJwks { uri, cache_duration, ca_file }), None) => {
                let path = path.field("remoteJWKS");
                if uri.starts_with("http://") {
                    let text = "is fetched in clear text: whoever is on the way can let anyone in";
                    self.note(&path.field("uri"), text);
                    if ca_file.is_some() {
                        self.fail(&path.field("caFile"), &[], "is for https:// only");
                    }
                }
                Some(KeySource::Remote { uri, ca_file, cache: cache_duration.0 })
            }
            (None, Some(document::LocalJwks { inline: Some(text), file: None })) => {
                if let Err(error) = KeySet::read(text.as_bytes()) {
                    self.fail(&local.field("inline"), &[], error.to_string());
                }
                Some(KeySource::Inline(text))
            }
            (None, Some(document::LocalJwks { inline: None, file: Some(file) })) => {
                Some(KeySource::File(file))
            }
            (None, Some(_)) => {
                self.fail(&local, std::slice::from_ref(&local), "is either inline or file");
                None
            }
            _ => {
                let text = "needs either remoteJWKS or localJWKS, by which tokens are checked";
                self.fail(path, basis, text);
                None
            }
        };
        let claim = |document::Claim { name, value_type, values }| Claim {
            name,
            is_list: value_type == Some(ClaimType::StringArray),
            values,
        };
        let required_claims = required_claims.into_iter().map(claim).collect();
        Some(Provider { name, issuer, keys: keys?, audiences, required_claims })
    }
}
