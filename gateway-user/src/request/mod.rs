//! What a request asks for: read from its head and its body, which is forwarded as it came.
//!
//! - [`head`]: what the gateway must know of the head, and the head that the pod gets.
//! - [`body`]: the body, into bounded memory.
//! - [`coding`]: what a compressed body holds.
//! - [`multipart`]: model and stream flag of a form (audio transcriptions, image edits).
//! - [`rewrite`]: the few changes that are made to a request.
//! - [`scan`]: model, stream flag, priority and the places of the prompt in a JSON body, in one pass without a DOM.

pub mod body;
pub mod coding;
pub mod head;
pub mod multipart;
pub mod rewrite;
pub mod scan;
