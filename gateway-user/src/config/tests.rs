//! The configuration as a whole: golden files, the reference page, examples, and texts that nobody
//! meant.
//!
//! `UPDATE_GOLDEN=1 cargo test -p gateway-user config::` writes the expected files anew; look at
//! the difference before you commit it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

const MINIMAL: &str = "\
apiVersion: gateway.sluice.dev/v1alpha1
kind: InferenceGatewayConfig
metadata: {name: edge}
spec:
  schedulers:
  - name: m
    modelName: m
    pods: ['127.0.0.1:9001', {address: 127.0.0.1, port: 9002, gpu: h100, name: second}]
";

#[test]
fn smallest_document() {
    let Loaded { config, notes, .. } = parse(MINIMAL, "minimal.yaml").unwrap();
    assert_eq!(notes, []);
    assert_eq!(config.listeners.len(), 1);
    assert_eq!(config.listeners[0].name, "http");
    assert_eq!(config.listeners[0].address.to_string(), "0.0.0.0");
    assert_eq!(config.listeners[0].port, 8080);
    assert_eq!(config.admin.to_string(), "127.0.0.1:9901");
    assert_eq!(config.limits.max_body_bytes, 64 << 20);
    assert_eq!(config.limits.first_byte_timeout, Duration::from_secs(1800));
    let pods = &config.schedulers[0].pods;
    assert_eq!(pods[0].name, "127.0.0.1:9001");
    assert_eq!(pods[1].name, "second");
    assert_eq!(pods[1].gpu.as_deref(), Some("h100"));
    assert_eq!(config.schedulers[0].policy, Policy::Cost(crate::schedule::Preset::LATENCY));
}

#[test]
fn golden_files() {
    let mut wrong = String::new();
    for (kind, extension) in [("valid", "out"), ("invalid", "err")] {
        let folder = repository().join("tests/golden/config").join(kind);
        let documents = documents(&folder);
        assert!(!documents.is_empty(), "{} is empty", folder.display());
        for path in documents {
            let name = path.file_name().unwrap().to_str().unwrap();
            let read = |file: &str| match fs::read_to_string(folder.join(file)) {
                Ok(text) => Ok(NamedFile { name: file.to_owned(), text }),
                Err(error) => Err(format!("cannot be read: {}", error.kind())),
            };
            let (found, actual) = match decode(fs::read(&path).unwrap(), name, &read) {
                Ok(loaded) => ("valid", printed(&loaded)),
                Err(errors) => ("invalid", format!("{errors}\n")),
            };
            if found != kind {
                writeln!(wrong, "{name} is {found}:\n{actual}").unwrap();
            } else if let Some(difference) = differs(&path.with_extension(extension), &actual) {
                writeln!(wrong, "{name}: {difference}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn reference_page_is_current() {
    let difference = differs(&repository().join("docs/configuration.md"), &reference_page());
    assert_eq!(difference, None);
}

#[test]
fn default_document_is_the_default() {
    let text = default_document();
    let Loaded { config, notes, .. } =
        parse(&text, "default").unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(notes, [], "{text}");
    let minimal = parse(MINIMAL, "minimal").unwrap().config;
    assert_eq!(config.listeners, minimal.listeners);
    assert_eq!(config.limits, minimal.limits);
    assert_eq!(config.admin, minimal.admin);
    assert_eq!(config.kernel, minimal.kernel);
    assert_eq!(config.schedulers[0].policy, minimal.schedulers[0].policy);
    assert_eq!(config.schedulers[0].metrics, minimal.schedulers[0].metrics);
    assert_eq!(config.schedulers[0].saturation, minimal.schedulers[0].saturation);
}

#[test]
fn examples_are_valid() {
    let documents = documents(&repository().join("deploy/examples"));
    assert!(!documents.is_empty());
    for path in documents {
        let loaded = load(&path).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(loaded.notes, [], "{}", path.display());
    }
}

#[test]
fn what_is_printed_reads_back() {
    let documents = documents(&repository().join("tests/golden/config/valid"));
    for path in documents {
        let config = load(&path).unwrap().config;
        for text in [config.to_yaml(), config.to_json()] {
            let again = parse(&text, "printed").unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(again.config, config, "{text}");
        }
    }
}

#[test]
fn documents_are_bounded() {
    let says = |text: &str, expected: &str| {
        let errors = parse(text, "f").unwrap_err();
        assert_eq!(errors.list.len(), 1, "{errors}");
        assert_eq!(errors.to_string(), expected);
    };
    says(&" ".repeat(tree::MAX_BYTES + 1), "f: is larger than 4 MiB");
    let deep = format!("spec: {}1{}", "[".repeat(40), "]".repeat(40));
    says(&deep, "f:1:38: is nested deeper than 32 levels");
    let deep: String = (0..40).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    says(&format!("{deep}{}b: 1\n", " ".repeat(40)), "f:33:33: is nested deeper than 32 levels");
    let laughs: String = (1..9)
        .map(|level| {
            format!(
                "a{level}: &a{level} [{}]\n",
                ["*a"; 9].map(|a| format!("{a}{}", level - 1)).join(",")
            )
        })
        .collect();
    says(&format!("a0: &a0 [x]\n{laughs}"), "f:6:22: its aliases repeat more than 100000 values");
    let chain: String =
        (1..100).map(|level| format!("a{level}: &a{level} [*a{}]\n", level - 1)).collect();
    says(&format!("a0: &a0 [x]\n{chain}"), "f:32:12: is nested deeper than 32 levels");
}

#[test]
fn a_file_that_cannot_be_read() {
    let errors = load(Path::new("/nonexistent/gateway.yaml")).unwrap_err().to_string();
    assert!(errors.starts_with("/nonexistent/gateway.yaml: cannot be read: "), "{errors}");
    let errors = load(Path::new("/")).unwrap_err().to_string();
    assert!(errors.starts_with("/: cannot be read: "), "{errors}");
    let errors = load(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(errors.ends_with("is larger than 4 MiB"), "{errors}");
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}|[-\\[\\]{}:,&*!|>'\"%@`#?~ \t\nab1.]{0,80}") {
        let _ = parse(&text, "text");
    }

    /// A document with one place damaged: more of the way in is reached than by noise.
    #[test]
    fn no_damage_panics(
        at in any::<prop::sample::Index>(),
        length in 0usize..12,
        damage in "\\PC{0,6}|\n[ ]{0,8}[-a-z:]{0,6}|0|-1|1e999|9{20}|\\.nan|null|~|\\[\\]|\\{\\}",
    ) {
        let path = repository().join("tests/golden/config/valid/everything.yaml");
        let mut text: Vec<char> = fs::read_to_string(path).unwrap().chars().collect();
        let start = at.index(text.len());
        let end = (start + length).min(text.len());
        text.splice(start..end, damage.chars());
        let text: String = text.into_iter().collect();
        if let Ok(loaded) = parse(&text, "damaged") {
            let again = parse(&loaded.config.to_yaml(), "printed").unwrap();
            prop_assert_eq!(again.config, loaded.config);
        }
    }
}

pub(super) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

pub(super) fn documents(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    paths
}

fn printed(loaded: &Loaded) -> String {
    let mut out = String::new();
    for note in &loaded.meanings {
        writeln!(out, "# means: {note}").unwrap();
    }
    for note in &loaded.notes {
        writeln!(out, "# {note}").unwrap();
    }
    out.push_str(&loaded.config.to_yaml());
    out
}

/// Compares a file with what it should be, or makes it so.
pub(super) fn differs(path: &Path, actual: &str) -> Option<String> {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, actual).unwrap();
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    (expected != actual).then(|| {
        let place = expected.lines().zip(actual.lines()).position(|(e, a)| e != a);
        let line = place.unwrap_or_else(|| expected.lines().count().min(actual.lines().count()));
        format!(
            "line {} of {} differs; UPDATE_GOLDEN=1 writes it anew\n  expected: {}\n  actual:   {}",
            line + 1,
            path.display(),
            expected.lines().nth(line).unwrap_or("(end)"),
            actual.lines().nth(line).unwrap_or("(end)")
        )
    })
}
