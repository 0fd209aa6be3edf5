//! One streaming pass over a JSON request body that picks out what routing needs.
//!
//! Bodies carry base64 images and long chats, tens of MB of them, and `model` may stand behind all that. A DOM
//! would hold the body twice and cost more than everything else that the gateway does. So the scanner is fed
//! the pieces as they arrive, checks the whole of RFC 8259's grammar, and keeps nothing but a few numbers
//! and a bounded copy of the model's name, which is known as soon as it has passed
//! ([`Scanner::model_so_far`]).
//!
//! It must read a body as the model servers do, else a client could have one model authorised and another
//! one served: names are compared after their escapes are resolved, and a second `model` is refused
//! rather than guessed about. Of other fields that come twice the last one counts, as in Python.
//!
//! Where it differs from serde_json, as it does not look at what it does not need: text other than the
//! model's name may be invalid UTF-8 or have lone surrogates, and numbers may be out of every range.
//! Nesting is bounded by [`MAX_DEPTH`].
//!
//! It never changes a byte, and says nothing about a `model` that is missing: some routes have a default.

use std::ops::Range;

use crate::responses::MAX_ID;

mod fault;
mod number;
mod parts;
mod text;
mod value;

pub use fault::Fault;
use number::Number;
pub use parts::{Part, Parts};
use text::Text;
pub(super) use text::model_name;
pub use value::Adapter;
use value::LONGEST_TRUTH;
pub(super) use value::truth;

/// What a body, JSON or a form, asks for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Fields {
    /// `model`, not empty and at most [`MAX_MODEL`] bytes.
    pub model: Option<Box<str>>,
    /// Where its value stands: in JSON with its quotes.
    pub model_at: Option<Range<u64>>,
    /// `stream` is true, as the model servers read it: 1 and some words are true as well.
    pub stream: bool,
    /// `background` of the Responses interface is true.
    pub background: bool,
    /// Adapters that are named beside the model: by SGLang's `lora_path`, and by TGI's `parameters.adapter_id`.
    pub adapters: [Option<Adapter>; 2],
    /// `stream_options.include_usage`, when it is one of both.
    pub include_usage: Option<bool>,
    /// Where that value stands, whatever it is.
    pub include_usage_at: Option<Range<u64>>,
    /// Where the value of `stream_options` stands.
    pub stream_options: Option<Range<u64>>,
    /// `previous_response_id` of the Responses interface, if it is no longer than ids are.
    pub previous_response: Option<Box<str>>,
    /// Where in the body the parts of the prompt stand.
    pub prompt: Parts,
    /// The most tokens to generate: `max_completion_tokens`, else `max_output_tokens`, else `max_tokens`,
    /// when it is a whole number.
    pub max_tokens: Option<u64>,
    /// `priority`, when it is a whole number; lower is earlier.
    pub priority: Option<i64>,
}

/// The state between two pieces of a body.
#[derive(Clone, Debug)]
pub struct Scanner {
    /// Bytes of the body ahead of the current piece.
    base: u64,
    state: State,
    depth: u32,
    /// The open containers, innermost in the lowest bit: 1 is an object, 0 an array.
    objects: u128,
    /// The field whose value comes or is being read; of values further in, [`Slot::Other`].
    slot: Slot,
    /// The field at the top level within which names matter, if it is one.
    within: Within,
    /// The string being read is a name.
    name: bool,
    text: Text,
    number: Number,
    /// The word being read, and how many of its bytes have been seen.
    word: (Word, usize),
    /// A part of the prompt and where its value began, while it is being read.
    part: Option<(Part, u64)>,
    /// Where the values of `model`, of `stream_options` and of `include_usage` begin, while they are being read.
    model_from: u64,
    options_from: Option<u64>,
    usage_from: Option<u64>,
    /// `max_tokens`, `max_output_tokens`, `max_completion_tokens`.
    max_tokens: [Option<u64>; 3],
    found: Fields,
    fault: Option<Fault>,
}

impl Scanner {
    /// A scanner for one body.
    pub fn new() -> Self {
        Self {
            base: 0,
            state: State::Start,
            depth: 0,
            objects: 0,
            slot: Slot::Other,
            within: Within::Other,
            name: false,
            text: Text::default(),
            number: Number::default(),
            word: (Word::Null, 0),
            part: None,
            model_from: 0,
            options_from: None,
            usage_from: None,
            max_tokens: [None; 3],
            found: Fields::default(),
            fault: None,
        }
    }

    /// Takes the next piece of the body, of any size.
    ///
    /// # Errors
    /// The first [`Fault`] of the body; every later call gives it again.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let result = self.scan(piece);
        self.fault = result.err();
        self.base = self.base.saturating_add(piece.len() as u64);
        result
    }

    /// The model's name, once it has passed. Final unless a later [`Scanner::feed`] or
    /// [`Scanner::finish`] finds a fault.
    pub fn model_so_far(&self) -> Option<&str> {
        self.found.model.as_deref()
    }

    /// The body has ended: gives what it holds.
    ///
    /// # Errors
    /// The body's [`Fault`], also that it ended too early.
    pub fn finish(self) -> Result<Fields, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let what = match self.state {
            State::End => {
                let [plain, output, completion] = self.max_tokens;
                return Ok(Fields { max_tokens: completion.or(output).or(plain), ..self.found });
            }
            State::Start => "the body is empty",
            State::Text | State::Escape | State::Hex => "the body ends within a string",
            _ => "the body ends before its last `}`",
        };
        Err(Fault::NotJson { offset: self.base, what })
    }

    fn scan(&mut self, piece: &[u8]) -> Result<(), Fault> {
        let mut at = 0;
        while let Some(&byte) = piece.get(at) {
            match self.state {
                State::Text => {
                    let rest = piece.get(at..).unwrap_or_default();
                    at += self.text.run(rest);
                    match piece.get(at) {
                        None => break,
                        Some(b'"') => self.end_text(at)?,
                        Some(b'\\') => self.state = State::Escape,
                        Some(_) => {
                            return self.not_json(at, "control character within a string");
                        }
                    }
                }
                State::Escape => match self.text.escape(byte) {
                    Some(true) => self.state = State::Hex,
                    Some(false) => self.state = State::Text,
                    None => return self.not_json(at, "unknown escape in a string"),
                },
                State::Hex => match self.text.hex(byte) {
                    Some(true) => {}
                    Some(false) => self.state = State::Text,
                    None => return self.not_json(at, "`\\u` needs four hex digits"),
                },
                State::Number => {
                    let rest = piece.get(at..).unwrap_or_default();
                    at += self.number.run(rest);
                    if at < piece.len() {
                        self.end_number(at)?;
                    }
                    // What ended the number is not part of it.
                    continue;
                }
                State::Word => self.word(at, byte)?,
                _ if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') => {}
                State::Value => {
                    if byte.is_ascii_digit() && self.objects & 1 == 0 {
                        let list = number::list(piece.get(at..).unwrap_or_default());
                        if list > 0 {
                            at += list;
                            continue;
                        }
                    }
                    self.begin_value(at, byte)?;
                }
                State::After => match (byte, self.objects & 1) {
                    (b',', 0) => self.state = State::Value,
                    (b',', _) => self.state = State::Name,
                    (b']', 0) | (b'}', 1) => self.close(at),
                    (_, 0) => return self.not_json(at, "expected `,` or `]`"),
                    _ => return self.not_json(at, "expected `,` or `}`"),
                },
                State::Name | State::NameOrEnd if byte == b'"' => {
                    let matters =
                        self.depth == 1 || (self.depth == 2 && self.within != Within::Other);
                    self.begin_text(true, if matters { LONGEST_NAME } else { 0 });
                }
                State::NameOrEnd if byte == b'}' => self.close(at),
                State::Name | State::NameOrEnd => {
                    return self.not_json(at, "expected a name in double quotes");
                }
                State::Colon if byte == b':' => self.state = State::Value,
                State::Colon => return self.not_json(at, "expected `:` behind a name"),
                State::ValueOrEnd if byte == b']' => self.close(at),
                State::ValueOrEnd => self.begin_value(at, byte)?,
                State::Start => self.start(at, byte)?,
                State::End => return self.not_json(at, "data behind the JSON object"),
            }
            at += 1;
        }
        Ok(())
    }

    fn start(&mut self, at: usize, byte: u8) -> Result<(), Fault> {
        match byte {
            b'{' => self.open(at, true),
            0xef | 0xfe | 0xff => self.not_json(
                at,
                "the body starts with a byte order mark or is not UTF-8; send UTF-8 without a mark",
            ),
            b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => Err(Fault::NotObject),
            _ => self.not_json(at, "expected `{`"),
        }
    }

    fn begin_value(&mut self, at: usize, byte: u8) -> Result<(), Fault> {
        if self.slot != Slot::Other {
            self.begin_field(at, byte)?;
        }
        match byte {
            b'"' => {
                let keep = match self.slot {
                    Slot::Adapter(_) | Slot::Model => MAX_MODEL,
                    Slot::Flag(_) => LONGEST_TRUTH,
                    Slot::PreviousResponse => MAX_ID,
                    _ => 0,
                };
                self.begin_text(false, keep);
            }
            b'-' | b'0'..=b'9' => {
                let keep = matches!(self.slot, Slot::Flag(_) | Slot::MaxTokens(_) | Slot::Priority);
                self.number = Number::new(byte, keep);
                self.state = State::Number;
            }
            b'{' => return self.open(at, true),
            b'[' => return self.open(at, false),
            b't' => self.begin_word(Word::True),
            b'f' => self.begin_word(Word::False),
            b'n' => self.begin_word(Word::Null),
            _ => return self.not_json(at, "expected a value"),
        }
        Ok(())
    }

    /// Forgets what an earlier field of the same name said: the last one counts.
    fn begin_field(&mut self, at: usize, byte: u8) -> Result<(), Fault> {
        match self.slot {
            Slot::Model if !matches!(byte, b'"' | b'n') => return Err(Fault::ModelNotString),
            Slot::Adapter(place) => {
                let unread = !matches!(byte, b'"' | b'n');
                self.keep_adapter(place, unread.then_some(Adapter::Unread));
            }
            Slot::Parameters => self.keep_adapter(ADAPTER_ID, None),
            Slot::StreamOptions => {
                (self.found.include_usage, self.found.include_usage_at) = (None, None);
                self.options_from = Some(self.offset(at));
            }
            Slot::Flag(flag) => {
                self.keep_flag(flag, None);
                if flag == Flag::IncludeUsage {
                    self.usage_from = Some(self.offset(at));
                }
            }
            Slot::PreviousResponse => self.found.previous_response = None,
            Slot::Part(part) => self.part = Some((part, self.offset(at))),
            Slot::MaxTokens(name) => self.keep_max_tokens(name, None),
            Slot::Priority => self.found.priority = None,
            Slot::Model => self.model_from = self.offset(at),
            Slot::Other => {}
        }
        Ok(())
    }

    fn open(&mut self, at: usize, object: bool) -> Result<(), Fault> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::TooDeep { offset: self.offset(at) });
        }
        self.within = match self.slot {
            Slot::Parameters => Within::Parameters,
            Slot::StreamOptions => Within::StreamOptions,
            _ => self.within,
        };
        self.slot = Slot::Other;
        self.depth += 1;
        self.objects = (self.objects << 1) | u128::from(object);
        self.state = if object { State::NameOrEnd } else { State::ValueOrEnd };
        Ok(())
    }

    fn close(&mut self, at: usize) {
        self.depth = self.depth.saturating_sub(1);
        self.objects >>= 1;
        self.end_value(at + 1);
    }

    /// `end` is the first byte behind the value.
    fn end_value(&mut self, end: usize) {
        self.slot = Slot::Other;
        self.state = if self.depth == 0 { State::End } else { State::After };
        if self.depth == 2
            && let Some(start) = self.usage_from.take()
        {
            self.found.include_usage_at = Some(start..self.offset(end));
        }
        if self.depth == 1 {
            self.within = Within::Other;
            if let Some(start) = self.options_from.take() {
                self.found.stream_options = Some(start..self.offset(end));
            }
            if let Some((part, start)) = self.part.take() {
                let end = self.offset(end);
                self.found.prompt.set(part, start..end);
            }
        }
    }

    fn begin_text(&mut self, name: bool, keep: usize) {
        self.name = name;
        self.text.begin(keep);
        self.state = State::Text;
    }

    fn end_text(&mut self, at: usize) -> Result<(), Fault> {
        if self.name {
            self.slot = self.text.kept().map_or(Slot::Other, |name| slot(name, self.within));
            self.state = State::Colon;
            return match (self.slot, &self.found.model) {
                (Slot::Model, Some(_)) => Err(Fault::ModelTwice),
                _ => Ok(()),
            };
        }
        let kept = || self.text.kept().and_then(|kept| std::str::from_utf8(kept).ok());
        match self.slot {
            Slot::Model => {
                self.found.model = Some(self.text.model()?);
                self.found.model_at = Some(self.model_from..self.offset(at + 1));
            }
            Slot::PreviousResponse => self.found.previous_response = kept().map(Into::into),
            Slot::Adapter(place) => {
                let name = kept().map_or(Adapter::Unread, |name| Adapter::Name(name.into()));
                self.keep_adapter(place, Some(name));
            }
            Slot::Flag(flag) => self.keep_flag(flag, self.text.kept().and_then(truth)),
            _ => {}
        }
        self.end_value(at + 1);
        Ok(())
    }

    fn end_number(&mut self, at: usize) -> Result<(), Fault> {
        if !self.number.is_whole() {
            return self.not_json(at, "malformed number");
        }
        match self.slot {
            Slot::MaxTokens(name) => self.keep_max_tokens(name, self.number.unsigned()),
            Slot::Priority => self.found.priority = self.number.signed(),
            Slot::Flag(flag) => self.keep_flag(
                flag,
                match self.number.unsigned() {
                    Some(0) => Some(false),
                    Some(1) => Some(true),
                    _ => None,
                },
            ),
            _ => {}
        }
        self.end_value(at);
        Ok(())
    }

    fn begin_word(&mut self, word: Word) {
        self.word = (word, 1);
        self.state = State::Word;
    }

    fn word(&mut self, at: usize, byte: u8) -> Result<(), Fault> {
        let (word, seen) = self.word;
        let bytes = word.bytes();
        if bytes.get(seen) != Some(&byte) {
            return self.not_json(at, "expected true, false or null");
        }
        self.word = (word, seen + 1);
        if seen + 1 < bytes.len() {
            return Ok(());
        }
        match (self.slot, word) {
            // Only null gets here, see begin_field.
            (Slot::Model, _) => return Err(Fault::ModelNull),
            (Slot::Flag(flag), Word::True) => self.keep_flag(flag, Some(true)),
            (Slot::Flag(flag), Word::False) => self.keep_flag(flag, Some(false)),
            _ => {}
        }
        self.end_value(at + 1);
        Ok(())
    }

    fn keep_flag(&mut self, flag: Flag, value: Option<bool>) {
        match flag {
            Flag::Background => self.found.background = value == Some(true),
            Flag::IncludeUsage => self.found.include_usage = value,
            Flag::Stream => self.found.stream = value == Some(true),
        }
    }

    fn keep_adapter(&mut self, place: usize, adapter: Option<Adapter>) {
        if let Some(place) = self.found.adapters.get_mut(place) {
            *place = adapter;
        }
    }

    fn keep_max_tokens(&mut self, name: usize, tokens: Option<u64>) {
        if let Some(place) = self.max_tokens.get_mut(name) {
            *place = tokens;
        }
    }

    fn offset(&self, at: usize) -> u64 {
        self.base.saturating_add(at as u64)
    }

    #[cold]
    fn not_json(&self, at: usize, what: &'static str) -> Result<(), Fault> {
        Err(Fault::NotJson { offset: self.offset(at), what })
    }
}

impl Default for Scanner {
    fn default() -> Self {
        Self::new()
    }
}

/// What may come next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Start,
    NameOrEnd,
    Name,
    Colon,
    Value,
    ValueOrEnd,
    After,
    Text,
    Escape,
    Hex,
    Number,
    Word,
    End,
}

/// A field that matters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Slot {
    /// With its place in [`Fields::adapters`].
    Adapter(usize),
    Flag(Flag),
    /// With its place in [`Scanner::max_tokens`].
    MaxTokens(usize),
    Model,
    Other,
    Parameters,
    Part(Part),
    PreviousResponse,
    Priority,
    StreamOptions,
}

/// A field that is true or false.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flag {
    Background,
    IncludeUsage,
    Stream,
}

/// An object at the top level of which the names matter too.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Within {
    Other,
    Parameters,
    StreamOptions,
}

fn slot(name: &[u8], within: Within) -> Slot {
    match (within, name) {
        (Within::Parameters, b"adapter_id") => Slot::Adapter(ADAPTER_ID),
        // SGLang takes them for fields of the request, as Triton's vLLM does with its own name.
        (Within::Parameters, b"lora_path" | b"lora_name") => Slot::Adapter(LORA_PATH),
        (Within::StreamOptions, b"include_usage") => Slot::Flag(Flag::IncludeUsage),
        (Within::Parameters | Within::StreamOptions, _) => Slot::Other,
        (Within::Other, b"background") => Slot::Flag(Flag::Background),
        // llama.cpp has a list of them, by their numbers.
        (Within::Other, b"lora" | b"lora_path") => Slot::Adapter(LORA_PATH),
        (Within::Other, b"max_tokens") => Slot::MaxTokens(0),
        (Within::Other, b"max_output_tokens") => Slot::MaxTokens(1),
        (Within::Other, b"max_completion_tokens") => Slot::MaxTokens(2),
        (Within::Other, b"model") => Slot::Model,
        (Within::Other, b"parameters") => Slot::Parameters,
        (Within::Other, b"previous_response_id") => Slot::PreviousResponse,
        (Within::Other, b"priority") => Slot::Priority,
        (Within::Other, b"stream") => Slot::Flag(Flag::Stream),
        (Within::Other, b"stream_options") => Slot::StreamOptions,
        (Within::Other, name) => parts::part(name).map_or(Slot::Other, Slot::Part),
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Word {
    False,
    Null,
    True,
}

impl Word {
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::False => b"false",
            Self::Null => b"null",
            Self::True => b"true",
        }
    }
}

/// Deepest nesting of arrays and objects. Real requests nest tool schemas about 20 deep; the model servers'
/// own parsers give up at 200 or more.
pub const MAX_DEPTH: u32 = u128::BITS;

/// Longest model name in bytes, escapes resolved. Names are at times paths.
pub const MAX_MODEL: usize = 1024;

/// Places in [`Fields::adapters`].
const LORA_PATH: usize = 0;
const ADAPTER_ID: usize = 1;

/// The longest of the names in [`slot`] and [`parts`].
const LONGEST_NAME: usize = "max_completion_tokens".len();

#[cfg(test)]
mod tests;
