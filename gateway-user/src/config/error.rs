//! What is wrong with a configuration, and what of it has no effect.
//!
//! A file's errors are collected, not returned one by one: whoever mends a file wants the whole
//! list. Each says where it is and what would be right. Nothing here decides; that is `shape` and
//! `effective`.

use std::fmt;

/// Everything that is wrong with one document, in the order of its lines.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Errors {
    /// The document's name, as the user gave it.
    pub file: String,
    /// The errors, at least one.
    pub list: Vec<Error>,
}

impl Errors {
    /// One error that concerns the document as a whole.
    pub(crate) fn whole(file: &str, text: impl Into<String>) -> Self {
        let error =
            Error { file: None, line: 0, column: 0, field: String::new(), text: text.into() };
        Self { file: file.to_owned(), list: vec![error] }
    }
}

impl fmt::Display for Errors {
    /// One line for each error: `file.yaml:12:7: spec.schedulers[1].name: ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.list.iter().take(MAX_SHOWN).enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            f.write_str(error.file.as_deref().unwrap_or(&self.file))?;
            if error.line > 0 {
                write!(f, ":{}:{}", error.line, error.column)?;
            }
            if !error.field.is_empty() {
                write!(f, ": {}", error.field)?;
            }
            write!(f, ": {}", error.text)?;
        }
        match self.list.len().checked_sub(MAX_SHOWN) {
            Some(more) if more > 0 => write!(f, "\n{}: and {more} more", self.file),
            _ => Ok(()),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// The file, when it is one that the document names.
    pub file: Option<String>,
    /// Line, from 1; 0 if the error has no place.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The field's path, such as `spec.schedulers[1].pods[0].port`; empty for the document.
    pub field: String,
    /// What is wrong and what would be right.
    pub text: String,
}

impl fmt::Display for Error {
    /// Without lines: where an object comes from, it has none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line: _, column: _, field, text } = self;
        for part in file.iter().map(String::as_str).chain([field.as_str()]) {
            if !part.is_empty() {
                write!(f, "{part}: ")?;
            }
        }
        f.write_str(text)
    }
}

/// A setting that is accepted but has no effect, or not all the effect that its name promises.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// The file, when it is one that the document names.
    pub file: Option<String>,
    /// Line, from 1; 0 of what is no document.
    pub line: u32,
    /// The field's path, such as `spec.podDefaults`, or an object of a cluster.
    pub field: String,
    /// Why, and what holds instead.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, field, text } = self;
        if let Some(file) = file {
            write!(f, "{file} ")?;
        }
        if *line > 0 {
            write!(f, "line {line}: ")?;
        }
        write!(f, "{field}: {text}")
    }
}

/// Where a field stands in the document: `spec.schedulers[1].name`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Path(Vec<Step>);

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Step {
    Field(String),
    Index(usize),
}

impl Path {
    pub(super) fn field(&self, name: &str) -> Self {
        self.with(Step::Field(name.to_owned()))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        self.with(Step::Index(index))
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.0
    }

    /// The list or map that holds this.
    pub(super) fn parent(&self) -> Self {
        let mut steps = self.0.clone();
        steps.pop();
        Self(steps)
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Field(name) if !is_plain(name) => write!(f, "[{}]", quoted(name))?,
                Step::Field(name) if depth == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
            }
        }
        Ok(())
    }
}

/// A user's text for a message: in quotes, on one line, of bounded length.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_QUOTED
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Errors printed for one document; more would scroll the first ones away.
const MAX_SHOWN: usize = 100;

/// Characters of a user's text repeated in a message.
const MAX_QUOTED: usize = 64;
