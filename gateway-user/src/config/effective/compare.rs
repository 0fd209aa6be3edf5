//! How a pool's pods compare: profiles, weights, and a reference picker's configuration.

use super::{Builder, Taken};
use crate::config::document::{self, Mode, ScorerParameters, WeightMap};
use crate::config::error::{Error, Note, Path, quoted};
use crate::config::{NamedFile, Saturation, picker, policy};
use crate::schedule::{Picker, Policy, Preset};

impl Builder<'_> {
    pub(super) fn profiles(
        &mut self,
        profiles: &[document::Profile],
        path: &Path,
    ) -> Vec<(String, Policy)> {
        let mut names = Taken::default();
        for (name, _) in policy::BUILT_IN {
            names.0.insert(name.to_owned(), Path::default());
        }
        let mut effective = Vec::new();
        for (index, profile) in profiles.iter().enumerate() {
            let path = path.index(index);
            self.take(&mut names, profile.name.clone(), &path.field("name"), &[]);
            let weighs = [
                ("weights", profile.weights.is_some()),
                ("parameters", profile.parameters.is_some()),
                ("picker", profile.picker.is_some()),
            ];
            for (field, _) in weighs.iter().filter(|(_, given)| *given && profile.cost.is_some()) {
                self.fail(&path.field(field), &[], "is not for a profile with cost");
            }
            if profile.cost.is_none() && profile.weights.is_none() {
                let basis = std::slice::from_ref(&path);
                self.fail(&path, basis, "needs cost or weights");
            }
            effective.push((profile.name.clone(), policy::of_profile(profile)));
        }
        effective
    }

    /// How a pool's pods compare: the profile's name, if it has one, and what it means.
    pub(super) fn policy(
        &mut self,
        scheduler: &document::Scheduler,
        profiles: &[(String, Policy)],
        path: &Path,
    ) -> (Option<String>, Policy) {
        let weights = |map: &WeightMap| {
            policy::of_weights(map, &ScorerParameters::default(), Picker::MaxScore)
        };
        let fields = ["profile", "weights", "pickerConfig", "configMapRef"];
        let given: Vec<&str> = fields
            .into_iter()
            // In a file it has no effect.
            .filter(|field| *field != "configMapRef" || self.maps.is_some())
            .filter(|field| self.root.find(&path.field(field)).is_some())
            .collect();
        if let [first, others @ ..] = given.as_slice() {
            for other in others {
                self.fail(&path.field(other), &[], format!("is not for a pool with {first}"));
            }
        }
        if let Some(map) = &scheduler.weights {
            return (None, weights(map));
        }
        let direct = scheduler.mode == Mode::Connection;
        let Some(name) = scheduler.profile.as_deref() else {
            // Nothing is known of what is said on whole connections, so that no cost can be told.
            return match direct {
                true => (None, weights(&WeightMap::default())),
                false => (Some(DEFAULT_PROFILE.to_owned()), Policy::Cost(Preset::LATENCY)),
            };
        };
        let built_in = policy::BUILT_IN.iter().find(|(built_in, _)| *built_in == name);
        let named = profiles.iter().find(|(profile, _)| profile == name);
        let policy = match (built_in, named) {
            (Some((_, preset)), _) => Policy::Cost(*preset),
            (None, Some((_, policy))) => policy.clone(),
            (None, None) => {
                let names: Vec<_> = policy::BUILT_IN.iter().map(|(name, _)| *name).collect();
                let text = format!(
                    "{} is neither {} nor one of spec.profiles",
                    quoted(name),
                    names.join(" nor ")
                );
                self.fail(&path.field("profile"), &[], text);
                Policy::Cost(Preset::LATENCY)
            }
        };
        if direct && matches!(policy, Policy::Cost(_)) {
            let text = format!(
                "{} tells what a request costs, and with mode: connection no request is read",
                quoted(name)
            );
            self.fail(&path.field("profile"), &[], text);
        }
        (Some(name.to_owned()), policy)
    }

    /// The policy of a reference picker's configuration; its thresholds go into `saturation`, where the document
    /// names none.
    pub(super) fn picker_config(
        &mut self,
        field: &str,
        read: Result<NamedFile, String>,
        saturation: &mut Saturation,
        path: &Path,
    ) -> Policy {
        let nothing = Policy::Scorers { scorers: Vec::new(), picker: Picker::MaxScore };
        let NamedFile { name, text } = match read {
            Ok(read) => read,
            Err(why) => {
                self.fail(&path.field(field), &[], why);
                return nothing;
            }
        };
        let picked = match picker::read(&text, &name) {
            Ok(picked) => picked,
            Err(errors) => {
                let of_file = |error| Error { file: Some(name.clone()), ..error };
                self.errors
                    .extend(errors.list.into_iter().map(|error| (Vec::new(), of_file(error))));
                return nothing;
            }
        };
        let of_file = |note| Note { file: Some(name.clone()), ..note };
        self.notes.extend(picked.notes.into_iter().map(of_file));
        self.meanings.extend(picked.meanings.into_iter().map(of_file));
        let limits = path.field("saturation");
        let free = |field: &str| self.root.find(&limits.field(field)).is_none();
        if let Some(depth) = picked.queue_depth.filter(|_| free("queueDepth")) {
            saturation.queue_depth = depth;
        }
        if let Some(share) = picked.kv_cache.filter(|_| free("kvCache")) {
            saturation.kv_cache = share;
        }
        if let Some(most) = picked.in_flight.filter(|_| free("inFlight")) {
            saturation.in_flight = most;
        }
        picked.policy
    }
}

/// A name for the profile that a pool's picker configuration becomes.
pub(super) fn free_name(pool: &str, profiles: &[(String, Policy)]) -> String {
    let pool: String = pool.chars().take(MOST_POOL_NAME).collect();
    let names = (1..).map(|n| match n {
        1 => format!("{pool}-picker"),
        n => format!("{pool}-picker-{n}"),
    });
    let is_free = |name: &String| profiles.iter().all(|(taken, _)| taken != name);
    names.into_iter().find(is_free).unwrap_or_default()
}

/// The profile of a pool that names none.
const DEFAULT_PROFILE: &str = "latency";

/// So much of a pool's name that a profile's name, of at most 63 characters, has room for more.
const MOST_POOL_NAME: usize = 50;
