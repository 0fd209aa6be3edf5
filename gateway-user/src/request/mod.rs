//! What a request asks for: read from its head and its body, which is forwarded as it came.
//!
//! - [`multipart`]: model and stream flag of a form (audio transcriptions, image edits).
//! - [`scan`]: model, stream flag, prompt and priority of a JSON body, in one pass without a DOM.

pub mod multipart;
pub mod scan;
