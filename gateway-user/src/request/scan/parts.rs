//! Where in a body the parts of the prompt stand.

use std::ops::Range;

/// A field at the top level of a body that the model gets to see, or that keeps its prompt apart from others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// `cache_salt`: vLLM and SGLang share no cache between requests of different salts.
    CacheSalt,
    /// `chat_template`, which writes the prompt.
    ChatTemplate,
    /// `documents`, for templates that take them.
    Documents,
    /// `extra_key`, SGLang's second salt.
    ExtraKey,
    /// `functions`, the older form of tools.
    Functions,
    /// `image_data` of SGLang's own interface.
    ImageData,
    /// `input`: messages or text of the Responses interface, text of embeddings.
    Input,
    /// `input_ids`, SGLang's tokens.
    InputIds,
    /// `inputs`, TGI's text.
    Inputs,
    /// `instructions`, the Responses interface's system prompt.
    Instructions,
    /// `messages`.
    Messages,
    /// `prompt`: text, texts, or tokens.
    Prompt,
    /// `system`, Anthropic's system prompt.
    System,
    /// `text`, SGLang's text; an object in the Responses interface, where it is something else.
    Text,
    /// `tools`.
    Tools,
}

/// Where each part's value stands in the body, in bytes; of a part that comes twice the last.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Parts {
    /// A value is never empty: an empty range is no value.
    places: [Range<u64>; Part::Tools as usize + 1],
}

impl Parts {
    /// The bytes of a part's value, if the body has it.
    pub fn get(&self, part: Part) -> Option<Range<u64>> {
        self.places.get(part as usize).filter(|place| !place.is_empty()).cloned()
    }

    /// Notes where a part's value stands.
    pub fn set(&mut self, part: Part, value: Range<u64>) {
        if let Some(place) = self.places.get_mut(part as usize) {
            *place = value;
        }
    }
}

/// The part of this name.
pub(super) fn part(name: &[u8]) -> Option<Part> {
    Some(match name {
        b"cache_salt" => Part::CacheSalt,
        b"chat_template" => Part::ChatTemplate,
        b"documents" => Part::Documents,
        b"extra_key" => Part::ExtraKey,
        b"functions" => Part::Functions,
        b"image_data" => Part::ImageData,
        b"input" => Part::Input,
        b"input_ids" => Part::InputIds,
        b"inputs" => Part::Inputs,
        b"instructions" => Part::Instructions,
        b"messages" => Part::Messages,
        b"prompt" => Part::Prompt,
        b"system" => Part::System,
        b"text" => Part::Text,
        b"tools" => Part::Tools,
        _ => return None,
    })
}
