//! Which model is served instead of the one that a request names, as `spec.modelRewrites` and objects InferenceModelRewrite
//! have it. Pure: the lot is the caller's.
//!
//! A rule for the very name comes before one for all, then the first rewrite, then its first rule. A rewrite with a pool
//! concerns requests for models of that pool, and for names that are no pool's. What a target leads to is for
//! [`Routes`] to say, but where the rewrite has a pool it is that one: its pods know names that the gateway does not.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::{ModelRewrite, RewriteRule};
use crate::pool::Pool;
use crate::route::{Routes, Target};

/// All rewrites in force.
#[derive(Debug, Default)]
pub struct Rewrites {
    exact: HashMap<Arc<str>, Vec<Arc<Split>>>,
    any: Vec<Arc<Split>>,
}

/// What one rule has served.
#[derive(Debug)]
pub struct Split {
    /// The rewrite's name.
    pub rewrite: Arc<str>,
    pool: Option<Arc<str>>,
    is_exact: bool,
    /// Each with the sum of the weights up to its own; none of them without a share.
    targets: Vec<(u64, Arc<str>)>,
}

impl Rewrites {
    /// As the configuration has them.
    pub fn new(rewrites: &[ModelRewrite]) -> Self {
        let mut all = Self::default();
        for ModelRewrite { name, pool, rules } in rewrites {
            let (name, pool) = (Arc::from(name.as_str()), pool.as_deref().map(Arc::from));
            for rule in rules {
                let split = Arc::new(Split::new(&name, pool.as_ref(), rule));
                if rule.models.is_empty() {
                    all.any.push(Arc::clone(&split));
                }
                for model in &rule.models {
                    let splits = all.exact.entry(model.as_str().into()).or_default();
                    splits.push(Arc::clone(&split));
                }
            }
        }
        all
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.any.is_empty()
    }

    /// The rule for a request that names `model`, which leads to the pool of this name, if it names one, and if that leads
    /// anywhere.
    pub fn find<'a>(&'a self, model: Option<&str>, pool: Option<&str>) -> Option<&'a Split> {
        let exact = model.and_then(|model| self.exact.get(model));
        let first = |splits: &'a Vec<Arc<Split>>| splits.iter().find(|split| split.concerns(pool));
        exact.and_then(first).or_else(|| first(&self.any)).map(|split| &**split)
    }

    /// Names that no pool has and that rules serve all the same, each with what it leads to first, by name.
    pub fn names<'a>(
        &'a self,
        routes: &'a Routes,
        pools: &'a [Arc<Pool>],
    ) -> Vec<(&'a str, Target)> {
        let own = self.exact.iter().filter(|(name, _)| routes.find(name).is_none());
        let led = own.filter_map(|(name, splits)| {
            let targets =
                splits.iter().flat_map(|split| split.targets().map(move |to| (split, to)));
            let mut led = targets.filter_map(|(split, to)| split.lead(to, routes, pools));
            Some((&**name, led.next()?))
        });
        let mut all: Vec<_> = led.collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all
    }

    /// The names of targets that are served by the pool of this name, whatever they are.
    pub fn targets_of<'a>(&'a self, pool: &'a str) -> impl Iterator<Item = &'a str> {
        let splits = self.exact.values().flatten().chain(&self.any);
        let own = splits.filter(move |split| split.pool.as_deref() == Some(pool));
        own.flat_map(|split| split.targets().map(|target| &**target))
    }
}

impl Split {
    fn new(rewrite: &Arc<str>, pool: Option<&Arc<str>>, rule: &RewriteRule) -> Self {
        let is_weighted = rule.targets.iter().any(|(_, weight)| weight.is_some());
        let mut sum = 0;
        let mut targets = Vec::new();
        for (target, weight) in &rule.targets {
            let weight = if is_weighted { weight.unwrap_or(0) } else { 1 };
            if weight > 0 {
                sum += u64::from(weight);
                targets.push((sum, target.as_str().into()));
            }
        }
        let is_exact = !rule.models.is_empty();
        Self { rewrite: Arc::clone(rewrite), pool: pool.cloned(), is_exact, targets }
    }

    /// How many lots there are; at least one.
    pub fn lots(&self) -> u64 {
        self.targets.last().map_or(1, |(sum, _)| *sum)
    }

    /// What is served by a lot, a number below [`Split::lots`].
    pub fn choose(&self, lot: u64) -> &Arc<str> {
        let chosen = self.targets.iter().find(|(sum, _)| lot < *sum).or(self.targets.last());
        // A rule has targets, and some of them have a share.
        chosen.map_or(&self.rewrite, |(_, target)| target)
    }

    /// All that may be served, in the order of the rule.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<str>> {
        self.targets.iter().map(|(_, target)| target)
    }

    /// How the metrics name what was asked for: a name of the configuration, and not whatever a client writes.
    pub fn label<'a>(&self, model: Option<&'a str>) -> &'a str {
        model.filter(|_| self.is_exact).unwrap_or(ANY_MODEL)
    }

    /// Where a target leads, if anywhere.
    pub fn lead(&self, target: &str, routes: &Routes, pools: &[Arc<Pool>]) -> Option<Target> {
        let found = routes.find(target);
        let Some(name) = &self.pool else { return found.cloned() };
        let pool = pools.iter().find(|pool| pool.name == *name)?;
        let own = found.filter(|found| Arc::ptr_eq(&found.pool, pool));
        // What only the pods know is most likely an adapter.
        Some(own.cloned().unwrap_or_else(|| Target::within(pool, target)))
    }

    fn concerns(&self, pool: Option<&str>) -> bool {
        match (&self.pool, pool) {
            (Some(own), Some(pool)) => **own == *pool,
            _ => true,
        }
    }
}

/// The label of requests that a rule for all models served.
const ANY_MODEL: &str = "*";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(models: &[&str], targets: &[(&str, Option<u32>)]) -> RewriteRule {
        RewriteRule {
            models: models.iter().map(ToString::to_string).collect(),
            targets: targets.iter().map(|(name, weight)| (name.to_string(), *weight)).collect(),
        }
    }

    fn rewrite(name: &str, pool: Option<&str>, rules: Vec<RewriteRule>) -> ModelRewrite {
        ModelRewrite { name: name.into(), pool: pool.map(Into::into), rules }
    }

    #[test]
    fn which_rule_counts() {
        let to = |target: &'static str| [(target, None)];
        let rewrites = Rewrites::new(&[
            rewrite("all", None, vec![rule(&[], &to("1")), rule(&["a"], &to("2"))]),
            rewrite("p", Some("p"), vec![rule(&["a", "b"], &to("3")), rule(&["b"], &to("4"))]),
            rewrite("q", Some("q"), vec![rule(&["b", "c"], &to("5")), rule(&[], &to("6"))]),
        ]);
        let only = Rewrites::new(&[
            rewrite("q", Some("q"), vec![rule(&["b"], &to("5")), rule(&[], &to("6"))]),
            rewrite("late", Some("q"), vec![rule(&["b", "c"], &to("7"))]),
        ]);
        for (rewrites, model, pool, expected) in [
            // The name before all, whatever stands first.
            (&rewrites, Some("a"), Some("p"), Some("2")),
            (&rewrites, Some("x"), Some("p"), Some("1")),
            (&rewrites, Some("x"), None, Some("1")),
            (&rewrites, None, None, Some("1")),
            // Then the first of those that the pool has.
            (&rewrites, Some("b"), Some("p"), Some("3")),
            (&rewrites, Some("b"), Some("q"), Some("5")),
            (&rewrites, Some("b"), Some("other"), Some("1")),
            (&rewrites, Some("b"), None, Some("3")),
            (&rewrites, Some("c"), None, Some("5")),
            (&only, Some("b"), Some("p"), None),
            (&only, Some("b"), Some("q"), Some("5")),
            (&only, Some("c"), Some("q"), Some("7")),
            (&only, Some("x"), Some("q"), Some("6")),
            (&only, Some("x"), None, Some("6")),
            (&only, None, Some("q"), Some("6")),
            (&only, None, Some("p"), None),
        ] {
            let found = rewrites.find(model, pool).map(|split| &**split.choose(0));
            assert_eq!(found, expected, "{model:?} {pool:?}");
        }
    }

    #[test]
    fn shares() {
        for (targets, expected) in [
            (&[("a", None)][..], &["a"][..]),
            (&[("a", None), ("b", None), ("c", None)], &["a", "b", "c"]),
            (&[("a", Some(2)), ("b", Some(1))], &["a", "a", "b"]),
            // Beside others with a weight, none is no share.
            (&[("a", None), ("b", Some(2)), ("c", None)], &["b", "b"]),
        ] {
            let split = Split::new(&"r".into(), None, &rule(&[], targets));
            let chosen: Vec<_> = (0..split.lots()).map(|lot| &**split.choose(lot)).collect();
            assert_eq!(chosen, expected);
        }
    }

    #[test]
    fn labels_are_names_of_the_configuration() {
        let split = |models| Split::new(&"r".into(), None, &rule(models, &[("b", None)]));
        assert_eq!(split(&["a"]).label(Some("a")), "a");
        assert_eq!((split(&[]).label(Some("a")), split(&[]).label(None)), ("*", "*"));
    }

    proptest! {
        /// Each target has as many lots as its weight says.
        #[test]
        fn a_share_is_its_weight(weights in proptest::collection::vec(1_u32..50, 1..8)) {
            let names: Vec<String> = (0..weights.len()).map(|n| n.to_string()).collect();
            let targets: Vec<_> =
                names.iter().zip(&weights).map(|(name, weight)| (&**name, Some(*weight))).collect();
            let split = Split::new(&"r".into(), None, &rule(&[], &targets));
            prop_assert_eq!(split.lots(), weights.iter().map(|weight| u64::from(*weight)).sum::<u64>());
            for (name, weight) in &targets {
                let lots = (0..split.lots()).filter(|lot| **split.choose(*lot) == **name).count();
                prop_assert_eq!(lots as u32, weight.unwrap());
            }
        }
    }
}
