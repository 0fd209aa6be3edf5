//! Models that are served as others, and objectives: the effective settings, and the document that means the same.

use super::document;

/// Requests for some models are served by others.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ModelRewrite {
    /// Its name in metrics.
    pub name: String,
    /// The pool whose requests it concerns, and where its targets are; every one, and where their names lead, if none.
    pub pool: Option<String>,
    /// Its rules.
    pub rules: Vec<RewriteRule>,
}

/// What is served instead of what.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RewriteRule {
    /// Models of which any is meant; every one, and none, if there is none.
    pub models: Vec<String>,
    /// What is served, with its weight.
    pub targets: Vec<(String, Option<u32>)>,
}

/// How important requests are that name it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Objective {
    /// The name that they give.
    pub name: String,
    /// The pool whose requests may name it; those of every pool if none.
    pub pool: Option<String>,
    /// Higher is earlier; below 0 they do not wait. Default 0.
    pub priority: i32,
}

impl ModelRewrite {
    pub(super) fn of(rewrite: document::ModelRewrite) -> Self {
        let document::ModelRewrite { name, pool_ref, rules } = rewrite;
        let rules = rules.into_iter().map(|document::RewriteRule { matches, targets }| {
            let models = matches.into_iter().map(|of| of.model.value).collect();
            let targets = targets.into_iter().map(|to| (to.model_rewrite, to.weight)).collect();
            RewriteRule { models, targets }
        });
        Self { name, pool: pool_ref.map(|pool| pool.name), rules: rules.collect() }
    }

    pub(super) fn to_document(&self) -> document::ModelRewrite {
        let rule = |RewriteRule { models, targets }: &RewriteRule| document::RewriteRule {
            matches: models.iter().map(|name| matching(name)).collect(),
            targets: (targets.iter())
                .map(|(name, weight)| document::RewriteTarget {
                    model_rewrite: name.clone(),
                    weight: *weight,
                })
                .collect(),
        };
        document::ModelRewrite {
            name: self.name.clone(),
            pool_ref: self.pool.as_deref().map(pool_ref),
            rules: self.rules.iter().map(rule).collect(),
        }
    }
}

impl Objective {
    pub(super) fn of(objective: document::Objective) -> Self {
        let document::Objective { name, pool_ref, priority } = objective;
        Self { name, pool: pool_ref.map(|pool| pool.name), priority }
    }

    pub(super) fn to_document(&self) -> document::Objective {
        let Self { name, pool, priority } = self;
        let pool_ref = pool.as_deref().map(pool_ref);
        document::Objective { name: name.clone(), pool_ref, priority: *priority }
    }
}

fn matching(name: &str) -> document::RewriteMatch {
    let kind = document::MatchType::default();
    document::RewriteMatch { model: document::ModelMatch { kind, value: name.to_owned() } }
}

fn pool_ref(name: &str) -> document::PoolRef {
    document::PoolRef { group: None, kind: None, name: name.to_owned() }
}
