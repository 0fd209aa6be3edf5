//! How many tokens a response says it was, read from its body as it passes. Pure.
//!
//! OpenAI's `usage`, Anthropic's (in `message_start` and `message_delta`), that of the Responses interface (within
//! `response`), SGLang's `meta_info` and TGI's `details`; from a JSON document, or from the events of a stream with
//! any line ends, split anywhere. It follows the nesting of objects, so that what a model or a client wrote is never
//! taken for the engine's count. Of a count that comes several times the largest is right: engines count up.
//!
//! It holds no bytes but the last name, and never fails: what it cannot read, it does not count.

use crate::responses::MAX_ID;

/// What an engine says about the tokens of a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt, cached ones among them.
    pub prompt_tokens: Option<u64>,
    /// Tokens generated.
    pub completion_tokens: Option<u64>,
    /// Tokens of the prompt that the engine had in its prefix cache.
    pub cached_tokens: Option<u64>,
}

/// The counts of a response, as far as they have come.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    prompt: Option<u64>,
    completion: Option<u64>,
    cached: Option<u64>,
    /// Anthropic's `input_tokens` are those that were neither read from a cache nor written to one.
    cache_read: Option<u64>,
    cache_written: Option<u64>,
}

/// Reads a body.
#[derive(Clone, Debug)]
pub struct Reader {
    counts: Counts,
    /// Of a stream of events: where in its line the next byte stands.
    line: Option<Line>,
    /// The last byte was a CR, and a LF behind it ends no further line.
    after_cr: bool,
    /// Open arrays and objects.
    depth: usize,
    /// Of each object that is open, the name whose value is being read.
    names: [Name; DEEPEST],
    state: State,
    /// The last string, if it is short enough to matter.
    text: [u8; LONGEST],
    len: usize,
    /// The string that is being read is the answer's id, or its status.
    wanted: Option<Wanted>,
    id: Option<Box<str>>,
    completed: bool,
}

/// A string that matters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wanted {
    Id,
    Status,
}

/// Where in a line of a stream of events.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Line {
    /// So many bytes of `data:` have come, and nothing else.
    Start(usize),
    /// Not of an event's data, or nobody knows.
    Other,
    /// Behind `data:`.
    Data,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Between tokens.
    Between,
    /// Within a string.
    Text,
    /// Behind a backslash in a string.
    Escape,
    /// Within a number that counts, as far as it has come.
    Number(u64),
    /// Behind a string, which may be a name.
    Named,
    /// Behind a name that matters and its colon.
    Value,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Name {
    Other,
    CacheRead,
    CacheWritten,
    Cached,
    Completion,
    Details,
    Generated,
    Id,
    InputLength,
    Message,
    MetaInfo,
    Prompt,
    PromptDetails,
    Status,
    Usage,
}

impl Counts {
    /// With the larger of each count.
    pub fn max(self, other: Self) -> Self {
        Self {
            prompt: self.prompt.max(other.prompt),
            completion: self.completion.max(other.completion),
            cached: self.cached.max(other.cached),
            cache_read: self.cache_read.max(other.cache_read),
            cache_written: self.cache_written.max(other.cache_written),
        }
    }

    /// What they say.
    pub fn usage(&self) -> Usage {
        let beside = |tokens: Option<u64>| tokens.unwrap_or(0);
        Usage {
            prompt_tokens: self.prompt.map(|prompt| {
                prompt
                    .saturating_add(beside(self.cache_read))
                    .saturating_add(beside(self.cache_written))
            }),
            completion_tokens: self.completion,
            cached_tokens: self.cached.max(self.cache_read),
        }
    }

    fn note(&mut self, name: Name, count: u64) {
        let place = match name {
            Name::Prompt | Name::InputLength => &mut self.prompt,
            Name::Completion | Name::Generated => &mut self.completion,
            Name::Cached => &mut self.cached,
            Name::CacheRead => &mut self.cache_read,
            Name::CacheWritten => &mut self.cache_written,
            _ => return,
        };
        *place = (*place).max(Some(count));
    }
}

impl Reader {
    /// Of a JSON document, or of a stream of events.
    pub fn new(event_stream: bool) -> Self {
        Self {
            counts: Counts::default(),
            line: event_stream.then_some(Line::Start(0)),
            after_cr: false,
            depth: 0,
            names: [Name::Other; DEEPEST],
            state: State::Between,
            text: [0; LONGEST],
            len: 0,
            wanted: None,
            id: None,
            completed: false,
        }
    }

    /// The id that the answer has, or the response within its events.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Whether it says of itself that it is complete, as a response of the Responses interface does.
    pub fn is_completed(&self) -> bool {
        self.completed
    }

    /// What has come so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Some of a stream went another way: what comes next begins anywhere.
    pub fn skip(&mut self) {
        self.begin_event();
        self.line = self.line.map(|_| Line::Other);
        self.after_cr = false;
    }

    /// Takes the next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.state == State::Text
                && let Some(end) = self.text(bytes)
            {
                bytes = bytes.get(end..).unwrap_or_default();
                continue;
            }
            bytes = rest;
            match (byte, self.line) {
                (b'\n', Some(_)) if std::mem::take(&mut self.after_cr) => {}
                (b'\n' | b'\r', Some(line)) => {
                    self.after_cr = byte == b'\r';
                    self.line = Some(Line::Start(0));
                    self.end_number(byte);
                    match line {
                        Line::Start(0) => self.begin_event(),
                        // A string has no line end, so that this was none.
                        _ if matches!(self.state, State::Text | State::Escape) => {
                            self.begin_event();
                        }
                        _ => {}
                    }
                }
                (_, Some(Line::Start(seen))) => {
                    self.after_cr = false;
                    self.line = Some(match DATA.get(seen) {
                        Some(&next) if next == byte && seen + 1 == DATA.len() => Line::Data,
                        Some(&next) if next == byte => Line::Start(seen + 1),
                        _ => Line::Other,
                    });
                }
                (_, Some(Line::Other)) => {}
                (_, Some(Line::Data) | None) => self.byte(byte),
            }
        }
    }

    /// Reads on in a string. Gives how much of `bytes` it was, if there is more than one byte to look at in another
    /// way.
    fn text(&mut self, bytes: &[u8]) -> Option<usize> {
        // In a stream a line end is looked at as well: it shows that something was lost.
        let end = match self.line {
            Some(_) => memchr::memchr3(b'"', b'\\', b'\n', bytes),
            None => memchr::memchr2(b'"', b'\\', bytes),
        };
        let end = end.unwrap_or(bytes.len());
        let piece = bytes.get(..end).unwrap_or_default();
        match self.text.get_mut(self.len..).and_then(|room| room.get_mut(..end)) {
            Some(room) => {
                room.copy_from_slice(piece);
                self.len += end;
            }
            None => self.len = LONGEST + 1,
        }
        (end > 0).then_some(end)
    }

    fn byte(&mut self, byte: u8) {
        match self.state {
            State::Text => match byte {
                b'"' => {
                    let text = self.text.get(..self.len);
                    match self.wanted.take() {
                        Some(Wanted::Id) => {
                            let text = text.and_then(|text| std::str::from_utf8(text).ok());
                            self.id = text.map(Into::into);
                        }
                        Some(Wanted::Status) => {
                            self.completed = matches!(text, Some(b"completed" | b"incomplete"))
                        }
                        None => {}
                    }
                    self.state = State::Named;
                }
                b'\\' => {
                    // A name with an escape is none of those that engines write.
                    self.len = LONGEST + 1;
                    self.state = State::Escape;
                }
                _ => {}
            },
            State::Escape => self.state = State::Text,
            State::Number(count) if byte.is_ascii_digit() => {
                let digit = u64::from(byte - b'0');
                self.state = match count.checked_mul(10).and_then(|count| count.checked_add(digit))
                {
                    Some(count) => State::Number(count),
                    None => State::Between,
                };
            }
            State::Number(_) => {
                self.end_number(byte);
                self.structure(byte);
            }
            State::Named if byte == b':' => {
                let name = self.text.get(..self.len).map_or(Name::Other, name);
                if let Some(place) = self.depth.checked_sub(1).and_then(|at| self.names.get_mut(at))
                {
                    *place = name;
                }
                self.state = if name == Name::Other { State::Between } else { State::Value };
            }
            State::Value if byte.is_ascii_digit() => {
                self.state = State::Number(u64::from(byte - b'0'));
            }
            State::Value if byte == b'"' => {
                self.wanted = match self.names.get(..self.depth) {
                    Some([Name::Id] | [Name::Message, Name::Id]) if self.id.is_none() => {
                        Some(Wanted::Id)
                    }
                    Some([Name::Status] | [Name::Message, Name::Status]) => Some(Wanted::Status),
                    _ => None,
                };
                self.structure(byte);
            }
            State::Named | State::Value if byte.is_ascii_whitespace() => {}
            State::Between | State::Named | State::Value => self.structure(byte),
        }
    }

    /// A byte that is no part of a string or of a number that counts.
    fn structure(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.len = 0;
                self.state = State::Text;
            }
            b'{' | b'[' => {
                self.state = State::Between;
                if let Some(place) = self.names.get_mut(self.depth) {
                    *place = Name::Other;
                }
                self.depth = self.depth.saturating_add(1);
            }
            b'}' | b']' => {
                self.state = State::Between;
                self.depth = self.depth.saturating_sub(1);
            }
            b',' => {
                self.state = State::Between;
                if let Some(place) = self.depth.checked_sub(1).and_then(|at| self.names.get_mut(at))
                {
                    *place = Name::Other;
                }
            }
            // A number with a sign, or a word: no count.
            _ => self.state = State::Between,
        }
    }

    /// A fraction or an exponent makes it no count.
    fn end_number(&mut self, end: u8) {
        let State::Number(count) = self.state else { return };
        self.state = State::Between;
        if !matches!(end, b',' | b'}' | b' ' | b'\t' | b'\n' | b'\r') {
            return;
        }
        let Some(names) = self.names.get(..self.depth) else { return };
        use Name::{
            CacheRead, CacheWritten, Cached, Completion, Details, Generated, InputLength, Message,
            MetaInfo, Prompt, PromptDetails, Usage,
        };
        let name = match names {
            [Usage, name @ (Prompt | Completion | CacheRead | CacheWritten)]
            | [Message, Usage, name @ (Prompt | Completion | CacheRead | CacheWritten)]
            | [Usage, PromptDetails, name @ Cached]
            | [Message, Usage, PromptDetails, name @ Cached]
            | [MetaInfo, name @ (Prompt | Completion | Cached)]
            | [Details, name @ (Generated | InputLength)] => *name,
            _ => return,
        };
        self.counts.note(name, count);
    }

    fn begin_event(&mut self) {
        self.wanted = None;
        self.depth = 0;
        self.state = State::Between;
    }
}

/// The counts behind the last `usage` in `bytes`, which may begin and end anywhere: for the end of a stream of which
/// the kernel has kept no more.
pub fn last_in(bytes: &[u8]) -> Counts {
    let mut end = bytes.len();
    // The last one may be `null`, with the counts in the event before it.
    while let Some(at) = bytes.get(..end).and_then(|part| memchr::memmem::rfind(part, b"\"usage\""))
    {
        let object = bytes.get(at..end).unwrap_or_default();
        let either = |one, other| count(object, one).or_else(|| count(object, other));
        let counts = Counts {
            prompt: either(b"\"prompt_tokens\"", b"\"input_tokens\""),
            completion: either(b"\"completion_tokens\"", b"\"output_tokens\""),
            cached: count(object, b"\"cached_tokens\""),
            cache_read: count(object, b"\"cache_read_input_tokens\""),
            cache_written: count(object, b"\"cache_creation_input_tokens\""),
        };
        if counts != Counts::default() {
            return counts;
        }
        end = at;
    }
    let Some(at) = memchr::memmem::rfind(bytes, b"\"meta_info\"") else {
        // TGI's, which stand behind the whole text.
        let at = memchr::memmem::rfind(bytes, b"\"details\"");
        let object = at.and_then(|at| bytes.get(at..)).unwrap_or_default();
        return Counts {
            prompt: count(object, b"\"input_length\""),
            completion: count(object, b"\"generated_tokens\""),
            ..Counts::default()
        };
    };
    let object = bytes.get(at..).unwrap_or_default();
    Counts {
        prompt: count(object, b"\"prompt_tokens\""),
        completion: count(object, b"\"completion_tokens\""),
        cached: count(object, b"\"cached_tokens\""),
        ..Counts::default()
    }
}

/// The number behind a key; anything else there is no number, and no reason to fail.
fn count(object: &[u8], key: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(object, key)?;
    let rest =
        object.get(at + key.len()..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match rest.get(digits) {
        // A fraction, an exponent, or a number that is cut off.
        None | Some(b'.' | b'e' | b'E') => None,
        Some(_) => std::str::from_utf8(rest.get(..digits)?).ok()?.parse().ok(),
    }
}

fn name(text: &[u8]) -> Name {
    match text {
        b"cache_creation_input_tokens" => Name::CacheWritten,
        b"cache_read_input_tokens" => Name::CacheRead,
        b"cached_tokens" => Name::Cached,
        b"completion_tokens" | b"output_tokens" => Name::Completion,
        b"details" => Name::Details,
        b"generated_tokens" => Name::Generated,
        b"id" => Name::Id,
        b"input_length" => Name::InputLength,
        b"message" | b"response" => Name::Message,
        b"meta_info" => Name::MetaInfo,
        b"prompt_tokens" | b"input_tokens" => Name::Prompt,
        b"prompt_tokens_details" | b"input_tokens_details" => Name::PromptDetails,
        b"status" => Name::Status,
        b"usage" => Name::Usage,
        _ => Name::Other,
    }
}

/// What an event's payload begins with.
const DATA: &[u8] = b"data:";

/// The longest string that is looked at: an id; the names in [`name`] are shorter.
const LONGEST: usize = MAX_ID;

/// The deepest count: that of cached tokens within a whole response within an event.
const DEEPEST: usize = 4;

#[cfg(test)]
mod tests;
