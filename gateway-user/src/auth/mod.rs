//! Who may send requests: API keys from a file, JSON web tokens by the issuer's key set, or everyone.
//!
//! [`keys`] and [`jwt`] decide, and know neither files nor the network. [`reload`] reads the files and looks for changes,
//! [`fetch`] gets key sets. A credential is checked before anything else of a request is read, and never goes to a pod;
//! what pods want themselves is their [`PodKey`]. What cannot be decided is refused: no key set yet is 503, not a way in.

pub mod credentials;
mod fetch;
pub mod jwt;
pub mod keys;
mod pod_key;
pub mod reload;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::debug;

use self::credentials::Credentials;
use self::jwt::{Denied, KeySet};
use self::keys::{Keys, Listed, Wrong};
pub use self::pod_key::PodKey;
pub use self::reload::Unusable;
use crate::config::{self, RateLimits};
use crate::error::Refusal;
use crate::gateway::Gateway;
use crate::limit::{self, Admitted, Limiter};
use crate::metrics::{AuthSource, KeyMetrics, Metrics};
use crate::pool::Pool;
use crate::request::scan::Adapter;
use crate::route::Target;

/// Who may send requests.
#[derive(Debug, Default)]
pub struct Auth {
    /// Where no check is configured, everyone may.
    checks: bool,
    keys: Option<ApiKeys>,
    tokens: Option<Tokens>,
}

/// API keys, and where they come from.
#[derive(Debug)]
struct ApiKeys {
    config: config::ApiKeys,
    in_force: ArcSwap<Keys<Arc<Key>>>,
    /// Those of the configuration before.
    known: Option<Arc<Keys<Arc<Key>>>>,
    /// A name that no key may have: the issuer's, which has its own series.
    reserved: Option<Arc<str>>,
}

/// Tokens of one issuer.
#[derive(Debug)]
struct Tokens {
    provider: config::Provider,
    keys: ArcSwapOption<KeySet>,
    /// What bearers of its tokens are counted as.
    key: Arc<Key>,
    /// A token names a key that is not known.
    unknown_key: Notify,
}

/// What a key stands for: an entry of the key file, or the issuer of tokens.
#[derive(Debug)]
pub struct Key {
    /// What logs and metrics call it; never the key itself.
    pub name: Arc<str>,
    /// The models that it may use; all if there is no list.
    models: Option<HashSet<Box<str>>>,
    limits: RateLimits,
    /// How much of its limits is used.
    pub limiter: Arc<Limiter>,
    /// What is counted for it.
    pub metrics: Arc<KeyMetrics>,
}

/// Who sent a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// By what they were let in.
    pub key: Arc<Key>,
    /// A token's subject.
    pub subject: Option<Box<str>>,
}

/// Whether `caller` may have `pool` answer now to a request for `model`, which leads to `named`: by the models of its key,
/// of which each of `adapters` that is named beside it is one, and by the limits of both. `prompt` are the tokens that its prompt is guessed to have, `most_generated` those that its answer may have.
///
/// # Errors
/// 403 or 429.
pub fn permit(
    caller: Option<&Caller>,
    (model, named): (&str, &Target),
    pool: &Pool,
    adapters: &[Option<Adapter>],
    prompt: u64,
    most_generated: Option<u64>,
    now: Instant,
) -> Result<Admitted, Refusal> {
    if caller.is_some_and(|caller| !caller.key.allows(model, named)) {
        return Err(Refusal::forbidden(model));
    }
    for adapter in adapters.iter().flatten() {
        match adapter {
            Adapter::Name(name) if caller.is_some_and(|caller| !caller.key.allows_name(name)) => {
                return Err(Refusal::forbidden(name));
            }
            Adapter::Unread if caller.is_some_and(|caller| caller.key.models.is_some()) => {
                return Err(Refusal::forbidden("(adapters that are not named by one text)"));
            }
            Adapter::Name(_) | Adapter::Unread => {}
        }
    }
    limit::of_request(caller, pool, prompt, most_generated, now)
}

/// What lets a request in whose exchange goes on for long.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// Whose configuration decides.
    pub gateway: &'a Gateway,
    /// What the request showed.
    pub credentials: &'a Credentials,
    /// Whom that made it.
    pub caller: &'a Caller,
    /// What it asked for.
    pub model: &'a str,
    /// Where that leads.
    pub target: &'a Target,
}

impl Grant<'_> {
    /// Whether it would be let in now as well. A token's end is no reason against that: it says who may begin.
    pub fn holds(&self) -> bool {
        let Self { gateway, credentials, caller, model, target } = self;
        let auth = gateway.auth();
        let issuer = auth.tokens.as_ref().map(|tokens| &*tokens.key.name);
        if !auth.checks || issuer == Some(&*caller.key.name) {
            return true;
        }
        let Some(keys) = &auth.keys else { return false };
        let in_force = keys.in_force.load();
        credentials
            .secrets()
            .any(|secret| in_force.find(secret).is_some_and(|key| key.allows(model, target)))
    }
}

impl Auth {
    /// As the configuration says; nothing has been read yet, so nobody is let in. What keys have used of their limits is
    /// taken over from `before`, and so is an issuer's key set, where the issuer is the same.
    pub fn new(config: Option<&config::Auth>, metrics: &Metrics, before: Option<&Self>) -> Self {
        let Some(config) = config.filter(|config| !config.off) else { return Self::default() };
        let tokens = config.jwt.as_ref().map(|provider| Tokens {
            key: Arc::new(Key::new(
                provider.name.as_str().into(),
                None,
                RateLimits::default(),
                metrics,
            )),
            provider: provider.clone(),
            keys: ArcSwapOption::new(before.and_then(|before| before.key_set(provider))),
            unknown_key: Notify::new(),
        });
        let keys = config.api_keys.as_ref().map(|keys| ApiKeys {
            config: keys.clone(),
            in_force: ArcSwap::default(),
            known: before
                .and_then(|before| before.keys.as_ref())
                .map(|keys| keys.in_force.load_full()),
            reserved: tokens.as_ref().map(|tokens| Arc::clone(&tokens.key.name)),
        });
        Self { checks: true, keys, tokens }
    }

    /// Whether requests are checked at all. Their credentials are the gateway's then, and no pod's.
    pub fn checks(&self) -> bool {
        self.checks
    }

    /// Why nobody can be let in yet, if that is so.
    pub fn unready(&self) -> Option<String> {
        // Who has an API key is served all the same.
        let tokens = self.tokens.as_ref().filter(|_| self.keys.is_none())?;
        tokens
            .keys
            .load()
            .is_none()
            .then(|| format!("no signing keys of `{}` yet", tokens.provider.name))
    }

    /// Who sends a request with these credentials; `None` where everyone may.
    ///
    /// # Errors
    /// 401 for whom nothing lets in, 503 where that cannot be told.
    pub fn check(
        &self,
        credentials: &Credentials,
        now: SystemTime,
    ) -> Result<Option<Caller>, Refusal> {
        if !self.checks {
            return Ok(None);
        }
        let mut why = None;
        // Checking a signature is the one thing here that costs something: a request has it done once.
        let mut tokens = self.tokens.as_ref();
        for secret in credentials.secrets() {
            if let Some(key) = self
                .keys
                .as_ref()
                .and_then(|keys| keys.in_force.load().find(secret).map(Arc::clone))
            {
                return Ok(Some(Caller { key, subject: None }));
            }
            match tokens.take_if(|_| jwt::is_token(secret)) {
                Some(tokens) => match tokens.check(secret, now) {
                    Ok(caller) => return Ok(Some(caller)),
                    Err(refusal) => why = Some(refusal),
                },
                None => why = why.or_else(|| Some(self.unknown())),
            }
        }
        Err(why.unwrap_or_else(|| {
            Refusal::unauthorized(
                "No API key was given. Send one as `Authorization: Bearer KEY`.".to_owned(),
                None,
            )
        }))
    }

    /// The lines with credentials that a pod gets, each with its end: the pods' own key; else what the client sent, if that
    /// is not the gateway's: `caller` is who it let in by that, even where everyone may come by now.
    pub fn for_pod(
        &self,
        credentials: &Credentials,
        caller: Option<&Caller>,
        pool: &Pool,
    ) -> Vec<u8> {
        match &pool.settings().api_key {
            Some(key) => key.line(),
            None if self.checks || caller.is_some() => Vec::new(),
            None => credentials.lines().to_vec(),
        }
    }

    /// It decides from now on: its keys' limits hold, and keys that it has not are not shown any more.
    pub fn hold(&self, metrics: &Metrics, now: Instant) {
        metrics.retain_keys(|name| self.has_key(name));
        let Some(keys) = &self.keys else { return };
        let in_force = keys.in_force.load();
        in_force.iter().for_each(|key| key.limiter.set(key.limits, now));
        metrics.gateway().auth_keys(AuthSource::Keys, in_force.len());
    }

    /// Whether a key has this name, or the issuer of tokens.
    pub fn has_key(&self, name: &str) -> bool {
        let is_issuer = self.tokens.as_ref().is_some_and(|tokens| *tokens.key.name == *name);
        let keys = self.keys.as_ref().map(|keys| keys.in_force.load());
        is_issuer || keys.is_some_and(|keys| keys.iter().any(|key| *key.name == *name))
    }

    /// The key set of this issuer, if it is the issuer and the set is known.
    fn key_set(&self, provider: &config::Provider) -> Option<Arc<KeySet>> {
        let tokens = self.tokens.as_ref().filter(|tokens| tokens.provider.keys == provider.keys)?;
        tokens.keys.load_full()
    }

    fn unknown(&self) -> Refusal {
        let text = match self.keys {
            Some(_) => "The API key is not known here.",
            None => "This is not a JSON web token, as is asked for here.",
        };
        Refusal::unauthorized(text.to_owned(), Some("invalid_token"))
    }
}

impl ApiKeys {
    /// Takes the keys of a file, read already. Counts and limits of those that stay are kept.
    /// Limits hold once [`Auth::hold`] says so.
    fn take(&self, listed: Vec<Listed>, metrics: &Metrics) -> Result<(), Wrong> {
        keys::agree(&listed, self.reserved.as_deref())?;
        let old = self.in_force.load();
        let before = self.known.iter().flat_map(|keys| keys.iter());
        let known = before.chain(old.iter());
        let known: BTreeMap<_, _> = known.map(|key| (Arc::clone(&key.name), key)).collect();
        let keys = Keys::new(listed, |Listed { name, models, limits, .. }| {
            let limits = limits.or(self.config.limits);
            let name: Arc<str> = name.into();
            match known.get(&name) {
                Some(old) => {
                    // Not its old handles: the series may have gone with a key of this name that had left.
                    let (limiter, metrics) = (Arc::clone(&old.limiter), metrics.key(&name));
                    Arc::new(Key { name, models, limits, limiter, metrics })
                }
                None => Arc::new(Key::new(name, models, limits, metrics)),
            }
        });
        self.in_force.store(Arc::new(keys));
        Ok(())
    }
}

impl Tokens {
    fn check(&self, token: &str, now: SystemTime) -> Result<Caller, Refusal> {
        let keys = self.keys.load();
        let Some(keys) = &*keys else {
            return Err(Refusal::overloaded(
                "signing_keys_missing",
                "The issuer's signing keys could not be had yet, so that no token can be checked. \
                 Try again later.",
            ));
        };
        // A clock before 1970 finds every token too early or expired.
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        match jwt::check(token, keys, &self.provider, now) {
            Ok(subject) => Ok(Caller { key: Arc::clone(&self.key), subject }),
            Err(denied) => {
                if denied == Denied::UnknownKey {
                    self.unknown_key.notify_one();
                }
                debug!(provider = self.provider.name, "a token was refused: {denied}");
                let text = format!("The token is refused: {denied}.");
                Err(Refusal::unauthorized(text, Some("invalid_token")))
            }
        }
    }
}

impl Key {
    fn new(
        name: Arc<str>,
        models: Option<HashSet<Box<str>>>,
        limits: RateLimits,
        metrics: &Metrics,
    ) -> Self {
        let limiter = Arc::new(Limiter::new(limits, Instant::now()));
        let metrics = metrics.key(&name);
        Self { name, models, limits, limiter, metrics }
    }

    /// Whether it is for `name`, which leads to `target`: as the client calls it, or as the model that it is another
    /// name of. An adapter is a model of its own, and so is a name that only the pods know.
    pub fn allows(&self, name: &str, target: &Target) -> bool {
        let pool = &target.pool;
        let is_alias = || pool.settings().aliases.iter().any(|alias| **alias == *name);
        let is_base = || *name == *pool.model || is_alias();
        self.allows_name(name)
            || target.adapter.is_none() && is_base() && self.allows_name(&pool.model)
    }

    fn allows_name(&self, name: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(name))
    }
}
