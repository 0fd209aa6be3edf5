//! Models that are served as others, and objectives: which pools they are about.

use super::{Builder, Taken};
use crate::config::document::{self, Mode};
use crate::config::error::{Path, quoted};
use crate::config::{ModelRewrite, Objective};

impl Builder<'_> {
    pub(super) fn model_rewrites(
        &mut self,
        rewrites: Vec<document::ModelRewrite>,
        schedulers: &[document::Scheduler],
        path: &Path,
    ) -> Vec<ModelRewrite> {
        let mut names = Taken::default();
        let mut effective = Vec::new();
        for (index, rewrite) in rewrites.into_iter().enumerate() {
            let path = path.index(index);
            self.take(&mut names, rewrite.name.clone(), &path.field("name"), &[]);
            self.check_pool(rewrite.pool_ref.as_ref(), schedulers, &path);
            for (index, rule) in rewrite.rules.iter().enumerate() {
                let path = path.field("rules").index(index).field("targets");
                let weighted = rule.targets.iter().filter(|target| target.weight.is_some()).count();
                if weighted > 0 && weighted < rule.targets.len() {
                    self.note(&path, "without a weight are never chosen, as others have one");
                }
            }
            effective.push(ModelRewrite::of(rewrite));
        }
        effective
    }

    pub(super) fn objectives(
        &mut self,
        objectives: Vec<document::Objective>,
        schedulers: &[document::Scheduler],
        path: &Path,
    ) -> Vec<Objective> {
        let mut names = Taken::default();
        let mut effective = Vec::new();
        for (index, objective) in objectives.into_iter().enumerate() {
            let path = path.index(index);
            self.take(&mut names, objective.name.clone(), &path.field("name"), &[]);
            self.check_pool(objective.pool_ref.as_ref(), schedulers, &path);
            effective.push(Objective::of(objective));
        }
        effective
    }

    fn check_pool(
        &mut self,
        pool: Option<&document::PoolRef>,
        schedulers: &[document::Scheduler],
        path: &Path,
    ) {
        let Some(pool) = pool else { return };
        let path = path.field("poolRef").field("name");
        match schedulers.iter().find(|scheduler| scheduler.name == pool.name) {
            None => {
                let text = format!("{} is not one of spec.schedulers", quoted(&pool.name));
                self.fail(&path, &[], text);
            }
            Some(scheduler) if scheduler.mode == Mode::Connection => {
                let text = "has mode: connection, where the gateway reads no request";
                self.fail(&path, &[], text);
            }
            Some(_) => {}
        }
    }
}
