//! What can be wrong with a JSON or form body, in words for whoever wrote the client.

use thiserror::Error;

use super::{MAX_DEPTH, MAX_MODEL};

/// Why a body is refused. Its text is for the client: what is wrong and what to change.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum Fault {
    /// The Content-Type of a form does not let it be read.
    #[error("the Content-Type of the form cannot be used: {what}")]
    ContentType {
        /// What is wrong with it.
        what: &'static str,
    },
    /// `model` is `""`.
    #[error("`model` is empty: name the model to use")]
    ModelEmpty,
    /// `model` is a number, a boolean, an array or an object; in a form, a file.
    #[error("`model` must be a string")]
    ModelNotString,
    /// `model` has invalid UTF-8, in JSON perhaps a lone surrogate.
    #[error("`model` is not valid Unicode: send UTF-8, and `\\u` surrogates in pairs")]
    ModelNotUnicode,
    /// `model` is `null`.
    #[error("`model` is null: name the model to use")]
    ModelNull,
    /// `model` is longer than [`MAX_MODEL`].
    #[error("`model` is longer than {MAX_MODEL} bytes: check the model's name")]
    ModelTooLong,
    /// `model` comes a second time, in JSON at the top level.
    #[error("`model` is given more than once: send it once")]
    ModelTwice,
    /// Not multipart/form-data, or in a way that parsers disagree about.
    #[error("the body is not a valid form at byte {offset}: {what}")]
    NotForm {
        /// Bytes of the body ahead of the wrong one.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// Not JSON.
    #[error("the body is not valid JSON at byte {offset}: {what}")]
    NotJson {
        /// Bytes of the body ahead of the wrong one.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// JSON, but not an object.
    #[error("the body must be a JSON object")]
    NotObject,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("the body nests more than {MAX_DEPTH} arrays and objects at byte {offset}: flatten it")]
    TooDeep {
        /// Bytes of the body ahead of the bracket that is one too many.
        offset: u64,
    },
}

impl Fault {
    /// The field to blame, for `error.param` of an OpenAI error.
    pub const fn param(&self) -> Option<&'static str> {
        match self {
            Self::ModelEmpty
            | Self::ModelNotString
            | Self::ModelNotUnicode
            | Self::ModelNull
            | Self::ModelTooLong
            | Self::ModelTwice => Some("model"),
            Self::ContentType { .. }
            | Self::NotForm { .. }
            | Self::NotJson { .. }
            | Self::NotObject
            | Self::TooDeep { .. } => None,
        }
    }
}
