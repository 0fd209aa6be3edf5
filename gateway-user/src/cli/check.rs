//! `sluice check`: says what a configuration means, or everything that is wrong with it.
//!
//! The effective configuration goes to the output and all else to the error output, so that
//! `sluice check --json ... | jq` works. Nothing is bound, loaded or contacted.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::config;

/// What `sluice check` is asked.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The document to check.
    #[arg(long, value_name = "FILE", required_unless_present = "defaults")]
    pub config: Option<PathBuf>,
    /// Print a commented document with every default, and check nothing.
    #[arg(long, conflicts_with_all = ["config", "json"])]
    pub defaults: bool,
    /// Print the effective configuration as JSON rather than YAML.
    #[arg(long)]
    pub json: bool,
}

/// Runs `sluice check`; failure if the document has errors.
///
/// # Errors
/// The output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let right = match report(options, &mut std::io::stdout().lock(), &mut std::io::stderr().lock())
    {
        // The reader has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => true,
        written => written.context("cannot write the output")?,
    };
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes what `run` prints; false if the document has errors.
fn report(options: &Options, out: &mut dyn Write, err: &mut dyn Write) -> std::io::Result<bool> {
    let Options { config: path, defaults: _, json } = options;
    let Some(path) = path else {
        out.write_all(config::default_document().as_bytes())?;
        return Ok(true);
    };
    match config::load(path) {
        Ok(loaded) => {
            let document = path.display().to_string();
            let kinds = loaded.meanings.iter().map(|note| ("means", note));
            for (kind, note) in kinds.chain(loaded.notes.iter().map(|note| ("note", note))) {
                let config::Note { file, line, field, text } = note;
                let file = file.as_deref().unwrap_or(&document);
                writeln!(err, "{file}:{line}: {kind}: {field}: {text}")?;
            }
            let text = if *json { loaded.config.to_json() } else { loaded.config.to_yaml() };
            writeln!(out, "{}", text.trim_end())?;
            Ok(true)
        }
        Err(errors) => {
            writeln!(err, "{errors}")?;
            Ok(false)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    /// Runs the command on a golden file; whether it was right, and both outputs.
    fn check(file: &str, flags: &[&str]) -> (bool, String, String) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/config/");
        let file = format!("{folder}{file}");
        let words = ["check", "--config", &file].into_iter().chain(flags.iter().copied());
        let options = Command::try_parse_from(words).unwrap().options;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let right = report(&options, &mut out, &mut err).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap().replace(folder, "");
        (right, text(out), text(err))
    }

    #[test]
    fn a_valid_document() {
        let (right, out, err) = check("valid/steering-off.yaml", &[]);
        assert!(right);
        assert!(out.starts_with("apiVersion: gateway.sluice.dev/v1alpha1\n"), "{out}");
        assert!(
            err.starts_with("valid/steering-off.yaml:9: note: spec.bbr.enabled: has no"),
            "{err}"
        );
        let (right, out, _) = check("valid/minimal.yaml", &["--json"]);
        assert!(right);
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(json["spec"]["limits"]["headerTimeout"], "10s");
    }

    #[test]
    fn a_picker_configuration_is_put_into_words() {
        let (right, out, err) = check("valid/picker.yaml", &[]);
        assert!(right);
        assert!(out.contains("\n    profile: a-picker-2\n"), "{out}");
        for line in [
            "valid/../picker/default.yaml:23: means: schedulingProfiles[0].plugins[0]: queue-scorer counts 2: ",
            "valid/../picker/flow-control.yaml:5: note: featureGates[0]: flowControl has no effect: ",
            "valid/picker.yaml:13: note: spec.schedulers[1].configMapRef: ",
        ] {
            assert!(err.lines().any(|said| said.starts_with(line)), "{line}\n{err}");
        }
    }

    #[test]
    fn an_invalid_document() {
        let (right, out, err) = check("invalid/cascade.yaml", &[]);
        assert!(!right);
        assert_eq!(out, "");
        assert!(err.starts_with("invalid/cascade.yaml:11:33: spec.schedulers[0].pods[1].port: "));
    }

    #[test]
    fn defaults() {
        let options = Command::try_parse_from(["check", "--defaults"]).unwrap().options;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        assert!(report(&options, &mut out, &mut err).unwrap());
        assert_eq!(out, config::default_document().as_bytes());
        assert_eq!(err, b"");
    }

    #[test]
    fn flags_that_exclude_each_other() {
        for words in [&["check"][..], &["check", "--json"], &["check", "--defaults", "--json"]] {
            assert!(Command::try_parse_from(words).is_err(), "{words:?}");
        }
    }
}
