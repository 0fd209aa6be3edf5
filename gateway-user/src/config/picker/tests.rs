//! Golden files: configurations in the shapes that the reference picker's users have, and mistakes.
//!
//! `UPDATE_GOLDEN=1 cargo test -p gateway-user config::` writes the expected files anew.

use std::fmt::Write;
use std::fs;

use super::*;
use crate::config::policy::to_profile;
use crate::config::tests::{differs, documents, repository};

#[test]
fn golden_files() {
    let mut wrong = String::new();
    for path in documents(&repository().join("tests/golden/config/picker")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let (extension, actual) = match read(&fs::read_to_string(&path).unwrap(), name) {
            Ok(picked) => ("out", printed(&picked)),
            Err(errors) => ("err", format!("{errors}\n")),
        };
        let other = path.with_extension(if extension == "out" { "err" } else { "out" });
        assert!(!other.exists(), "{name} gives {extension}:\n{actual}");
        if let Some(difference) = differs(&path.with_extension(extension), &actual) {
            writeln!(wrong, "{name}: {difference}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// A name that leads to two plugins would make one of them a matter of luck.
#[test]
fn every_name_is_one_plugin() {
    let mut names = plugins::names();
    for scorer in Scorer::ALL {
        let known = names.iter().any(|name| match plugins::find(name).unwrap().role {
            Role::Scorer(make) => make(&Json::Null) == scorer,
            _ => false,
        });
        assert!(known, "{} has no plugin, or another default", scorer.name());
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

fn printed(picked: &Picked) -> String {
    let mut out = String::new();
    for note in &picked.meanings {
        writeln!(out, "# means: {note}").unwrap();
    }
    for note in &picked.notes {
        writeln!(out, "# note: {note}").unwrap();
    }
    let Picked { queue_depth, kv_cache, in_flight, .. } = picked;
    writeln!(out, "# limits: {queue_depth:?} {kv_cache:?} {in_flight:?}").unwrap();
    let profile = to_profile("picker", &picked.policy);
    out + &serde_saphyr::to_string(&profile).unwrap()
}
