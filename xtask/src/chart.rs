//! The Helm chart: looks it through with every set of values of the tests, and keeps what is made from other files: the
//! plain manifests beside it, and its copy of the resource definition.
//!
//! Whether an API server takes what it renders is for `cargo xtask k8s test`; here nothing is contacted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::k8s::programs;
use crate::shell;

/// What to do.
#[derive(Args)]
pub(crate) struct Options {
    /// Compare what is made with what is there, and write nothing.
    #[arg(long)]
    pub(crate) check: bool,
}

/// Does it.
///
/// # Errors
/// Helm cannot be built, it, promtool or a case of the health check minds something, or a file is not as it would be made.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let helm = programs::helm()?;
    let chart = shell::root().join(CHART);
    // First, as it is part of what is looked through. A link would do, but Helm tells every user of each.
    let definition = shell::root().join(DEFINITION);
    let definition =
        fs::read_to_string(&definition).with_context(|| definition.display().to_string())?;
    made(COPY, &definition, options.check)?;
    let sets = files(&shell::root().join(SETS), "yaml")?;
    ensure!(!sets.is_empty(), "there is no set of values in {SETS}");
    let mut lint = command(&helm)?;
    lint.args(["lint", "--strict", "--quiet"]).arg(&chart);
    shell::output(&mut lint)?;
    let mut plain = None;
    for set in &sets {
        shell::output(
            command(&helm)?.args(["lint", "--strict", "--quiet", "--values"]).arg(set).arg(&chart),
        )?;
        let text = render(&helm, &chart, set)?;
        let objects = text.matches("\nkind: ").count();
        let name = set.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        ensure!(objects > 0, "with {name}, nothing is rendered");
        println!("chart: {objects} objects with {name}");
        if name == DEFAULT {
            plain = Some(without_helm(&text));
        }
    }
    let plain = plain.with_context(|| format!("{SETS} has no {DEFAULT}.yaml"))?;
    queries()?;
    health()?;
    made(MANIFESTS, &plain, options.check)
}

/// Helm with nothing of this user's own.
fn command(helm: &Path) -> anyhow::Result<Command> {
    let own = std::path::absolute(shell::target())?.join("k8s/helm");
    let mut command = Command::new(helm);
    command.env("HELM_CACHE_HOME", own.join("cache")).env("HELM_CONFIG_HOME", own.join("config"));
    command.env("HELM_DATA_HOME", own.join("data")).env_remove("KUBECONFIG");
    Ok(command)
}

fn render(helm: &Path, chart: &Path, values: &Path) -> anyhow::Result<String> {
    let mut template = command(helm)?;
    template.args(["template", "sluice"]).arg(chart).args(["--namespace", NAMESPACE, "--values"]);
    shell::output(template.arg(values))
}

/// The same without what only an object has that Helm takes care of.
fn without_helm(text: &str) -> String {
    let of_helm = |line: &&str| {
        let line = line.trim_start();
        HELMS.iter().any(|start| line.starts_with(start))
    };
    let lines: Vec<&str> = text.lines().filter(|line| !of_helm(line)).collect();
    format!("{HEAD}{}\n", lines.join("\n").trim_end())
}

/// Writes a file that is made here, or sees that it is as it would be.
fn made(name: &str, text: &str, check: bool) -> anyhow::Result<()> {
    let file = shell::root().join(name);
    if fs::read_to_string(&file).is_ok_and(|have| have == text) {
        return Ok(());
    }
    ensure!(!check, "{name} is not as it would be made now: cargo xtask chart");
    fs::create_dir_all(file.parent().unwrap_or(&file))?;
    fs::write(&file, text).with_context(|| file.display().to_string())?;
    println!("chart: wrote {name}");
    Ok(())
}

/// Has promtool read every query of the dashboards, as a recording rule.
fn queries() -> anyhow::Result<()> {
    shell::ensure_program("promtool", "prometheus")?;
    let rule = |(number, query): (usize, String)| {
        let query = query.replace("$__rate_interval", "5m").replace("$pool", ".*");
        json!({ "record": format!("query:{number}"), "expr": query })
    };
    let mut rules: Vec<Value> = Vec::new();
    for dashboard in files(&shell::root().join(DASHBOARDS), "json")? {
        rules.extend(expressions(&dashboard)?.into_iter().enumerate().map(rule));
    }
    let count = rules.len();
    ensure!(count > 0, "{DASHBOARDS} has no query");
    let file = shell::target().join("k8s/dashboards.yaml");
    fs::create_dir_all(file.parent().unwrap_or(&file))?;
    // JSON is YAML.
    fs::write(&file, json!({ "groups": [{ "name": "dashboards", "rules": rules }] }).to_string())?;
    shell::output(Command::new("promtool").args(["check", "rules"]).arg(&file))?;
    println!("chart: promtool reads the {count} queries of the dashboards");
    Ok(())
}

/// Tries Argo CD's health check, in the Lua that Argo CD speaks.
fn health() -> anyhow::Result<()> {
    shell::ensure_program("lua5.1", "lua5.1")?;
    let mut lua = Command::new("lua5.1");
    lua.current_dir(shell::root()).args(["tests/k8s/health.lua", "deploy/argocd/health.lua"]);
    let said = shell::output(&mut lua).context("deploy/argocd/health.lua")?;
    println!("chart: Argo CD's health check: {}", said.trim_end());
    Ok(())
}

/// The queries of a dashboard's panels.
fn expressions(dashboard: &Path) -> anyhow::Result<Vec<String>> {
    let text = fs::read_to_string(dashboard).with_context(|| dashboard.display().to_string())?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let panels = dashboard.get("panels").and_then(Value::as_array).context("it has no panels")?;
    let targets = panels.iter().filter_map(|panel| panel.get("targets")?.as_array()).flatten();
    let text = |target: &Value| Some(target.get("expr")?.as_str()?.to_owned());
    targets.map(|target| text(target).context("a target has no expr")).collect()
}

/// The files of a folder whose names end so, in order.
fn files(folder: &Path, extension: &str) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.sort();
    Ok(files)
}

const CHART: &str = "deploy/chart";
/// The resource definition, as `sluice crd` prints it, and where Helm looks for it.
const DEFINITION: &str = "deploy/crds/inferencegatewayconfigs.yaml";
const COPY: &str = "deploy/chart/crds/inferencegatewayconfigs.yaml";
const DASHBOARDS: &str = "deploy/chart/dashboards";
const MANIFESTS: &str = "deploy/manifests/sluice.yaml";
/// Sets of values, which the tests with an API server use as well.
const SETS: &str = "tests/k8s/chart";
/// The set that the plain manifests are made with.
const DEFAULT: &str = "default";
/// Theirs.
const NAMESPACE: &str = "serving";
/// Lines of rendered objects that are Helm's.
const HELMS: [&str; 3] = ["# Source: ", "app.kubernetes.io/managed-by: ", "helm.sh/chart: "];
const HEAD: &str = "\
# The chart with its default values, in the namespace `serving`, for those who have no Helm; docs/kubernetes.md says how it
# is applied. Rendered by `cargo xtask chart`: change the chart, not this.
";

#[cfg(test)]
mod tests {
    use super::*;

    /// Every metric that a dashboard asks for is one that the gateway has, by docs/metrics.md, which a test there holds
    /// to the gateway.
    #[test]
    fn dashboards_ask_for_metrics_that_there_are() {
        let page = fs::read_to_string(shell::root().join("docs/metrics.md")).unwrap();
        let row = |line: &str| {
            let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
            Some((name.to_owned(), rest.starts_with("histogram")))
        };
        let documented: Vec<(String, bool)> = page.lines().filter_map(row).collect();
        let is_there = |asked: &str| {
            documented.iter().any(|(name, is_histogram)| match asked.strip_prefix(name.as_str()) {
                Some("_bucket" | "_sum" | "_count") => *is_histogram,
                Some(rest) => rest.is_empty() && !is_histogram,
                None => false,
            })
        };
        let dashboards = files(&shell::root().join(DASHBOARDS), "json").unwrap();
        assert!(!dashboards.is_empty());
        for dashboard in dashboards {
            let queries = expressions(&dashboard).unwrap();
            for query in &queries {
                let words = query.split(|c: char| !c.is_alphanumeric() && c != '_');
                let asked: Vec<&str> = words.filter(|word| word.starts_with("sluice_")).collect();
                assert!(!asked.is_empty(), "{query}");
                for name in asked {
                    assert!(is_there(name), "{name} of {query} is not in docs/metrics.md");
                }
            }
        }
    }

    #[test]
    fn plain_manifests_name_no_helm() {
        let rendered = "---\n# Source: sluice/a.yaml\nmetadata:\n  labels:\n    app: a\n    \
                        app.kubernetes.io/managed-by: Helm\n    helm.sh/chart: sluice-1\nspec: {}\n\n";
        let plain = without_helm(rendered);
        assert_eq!(plain, format!("{HEAD}---\nmetadata:\n  labels:\n    app: a\nspec: {{}}\n"));
    }
}
