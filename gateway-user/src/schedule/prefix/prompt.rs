//! What a request's prompt is made of, as blocks that can be compared.
//!
//! The body is flattened the way that chat templates do: the system prompt, the tools, then the messages, each with its
//! role ahead of its content. (Some templates put the tools first. With the system prompt first we then see less in
//! common than there is when only the tools agree; the other way round we would see more than there is, and send
//! requests after a cache that does not have them.) What stands for the same prompt gives the same bytes: blanks, the
//! order of fields, the form of escapes, a content as text or as a list of one text make no difference. Media count as
//! as many tokens as they will be about, of a content that is known by its hash; many that are named in a few letters
//! each count less, as a small body could make the index forget all else.
//!
//! A block is `block_tokens` times [`BYTES_PER_TOKEN`] of these bytes. Its hash is chained to the one before, the first to the
//! model, the adapter and the salt.
//!
//! Pure, and linear in the body; it keeps the hashes and one block. A body that is no JSON gives some blocks or
//! other.

use super::chain::{Chain, Secret};
use super::cursor::Cursor;
use crate::request::scan::{MAX_DEPTH, Part, Parts};

/// A prompt as the prefix index sees it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Prompt {
    /// The hashes of its whole blocks, chained; at most [`super::MAX_BLOCKS`].
    pub blocks: Vec<u64>,
    /// A hash of its first [`HEAD_TOKENS`] or whole blocks of them, and of its scope; none when it has no whole block.
    /// Not secret: all gateways have the same, so that they can agree about a pod for a prompt that nobody has.
    pub head: Option<u64>,
    /// About how many tokens it has, media included.
    pub tokens: u64,
    /// Tokens in each block.
    pub block_tokens: u32,
}

/// What keeps equal prompts apart, and the size of a block.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The model that answers, by one name however the client called it.
    pub model: &'a str,
    /// The adapter, if any: it makes other keys and values of the same prompt.
    pub adapter: Option<&'a str>,
    /// Tokens in a block, see [`super::block_tokens`].
    pub block_tokens: u32,
}

impl Default for &Prompt {
    fn default() -> Self {
        static NONE: Prompt = Prompt { blocks: Vec::new(), head: None, tokens: 0, block_tokens: 0 };
        &NONE
    }
}

impl Prompt {
    /// Reads the prompt of a whole body, whose parts the request's scanner has found.
    pub fn read(body: &[u8], parts: &Parts, scope: &Scope<'_>, secret: &Secret) -> Self {
        let value = |part: Part| {
            let place = parts.get(part)?;
            let place = usize::try_from(place.start).ok()?..usize::try_from(place.end).ok()?;
            body.get(place).filter(|value| *value != b"null")
        };
        let salts = SALTS.map(|part| value(part).unwrap_or_default());
        let block_bytes = scope.block_tokens as usize * BYTES_PER_TOKEN;
        let head_bytes = HEAD_TOKENS * BYTES_PER_TOKEN;
        let chain = Chain::new(secret, block_bytes, head_bytes, &spell(scope, &salts));
        let mut writer = Writer { chain, secret, depth: 0, media_bytes: MEDIA_BYTES };

        for system in [Part::System, Part::Instructions].into_iter().filter_map(value) {
            writer.chain.write(&START);
            writer.chain.write(b"system\xff");
            writer.content(&mut Cursor::new(system), Level::Part, None);
        }
        let dialog = value(Part::Messages).or_else(|| value(Part::Input));
        let mut dialog = Cursor::new(dialog.unwrap_or_default());
        let is_list = dialog.peek() == Some(b'[');
        if is_list {
            dialog.enter();
            writer.system_messages(&mut dialog);
        }
        for tools in TOOLS.into_iter().filter_map(value) {
            Cursor::new(tools).value(|piece| writer.chain.write(piece));
        }
        if is_list {
            writer.items(&mut dialog, Level::Message, None);
        } else {
            writer.content(&mut dialog, Level::Message, None);
        }
        for text in TEXTS.into_iter().filter_map(value).filter(|text| text.first() != Some(&b'{')) {
            writer.content(&mut Cursor::new(text), Level::Part, None);
        }
        if let Some(images) = value(Part::ImageData) {
            writer.media(&mut Cursor::new(images), Media::Image);
        }

        let mut bytes = writer.chain.written();
        if writer.chain.is_full() {
            // What was not looked at any more.
            let parts = TOOLS.into_iter().chain(TEXTS).chain([Part::Messages, Part::Input]);
            bytes = bytes.max(parts.filter_map(value).map(|value| value.len() as u64).sum());
        }
        let tokens = bytes.div_ceil(BYTES_PER_TOKEN as u64);
        let block_tokens = scope.block_tokens;
        Self { head: writer.chain.head(), blocks: writer.chain.finish(), tokens, block_tokens }
    }
}

/// Whether objects are messages, or parts of one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Level {
    Message,
    Part,
}

/// A kind of media.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Media {
    Audio,
    Image,
    Video,
}

impl Media {
    /// What media a field of this name is about, in one that is about `outer`.
    fn of(name: &[u8], outer: Option<Self>) -> Option<Self> {
        let has = |word: &[u8]| name.windows(word.len()).any(|part| part == word);
        match () {
            () if has(b"audio") => Some(Self::Audio),
            () if has(b"video") => Some(Self::Video),
            () if has(b"image") || has(b"file") || name == b"source" => Some(Self::Image),
            () => outer,
        }
    }

    /// About how many tokens come of a string of `bytes` that holds it as base64 or names it.
    ///
    /// Models differ a lot: an image is 256 tokens to Gemma, and to Qwen one for each square of 28 pixels. Sound is
    /// about 25 tokens a second.
    fn tokens(self, bytes: usize) -> usize {
        match self {
            Self::Audio => (bytes / 1024).clamp(256, 8192),
            Self::Image => 1024,
            Self::Video => (bytes / 256).clamp(4096, 16_384),
        }
    }
}

struct Writer<'a> {
    chain: Chain<'a>,
    secret: &'a Secret,
    /// How far in the value at hand is.
    depth: u32,
    /// Bytes that media may come to beyond what their own length allows, all together.
    media_bytes: usize,
}

impl<'a> Writer<'a> {
    /// The system messages in front of a list of messages.
    fn system_messages(&mut self, list: &mut Cursor<'a>) {
        while list.more() && matches!(role(*list), Some(b"system" | b"developer")) {
            self.message(list);
        }
    }

    /// What is left of a list.
    fn items(&mut self, list: &mut Cursor<'a>, level: Level, media: Option<Media>) {
        while list.more() && !self.chain.is_full() {
            if matches!(list.peek(), Some(b'0'..=b'9')) {
                list.tokens(|tokens| self.chain.write(tokens));
            } else {
                self.content(list, level, media);
            }
        }
    }

    /// Text, tokens, a message, a part of one, or a list of such.
    fn content(&mut self, value: &mut Cursor<'a>, level: Level, media: Option<Media>) {
        self.depth += 1;
        match value.peek() {
            Some(b'"') => {
                value.text(|piece| self.chain.write(piece));
                self.chain.write(&[MARK]);
            }
            _ if self.depth > MAX_DEPTH => value.skip(),
            Some(b'[') => {
                value.enter();
                self.items(value, level, media);
            }
            Some(b'{') if level == Level::Message => self.message(value),
            Some(b'{') => self.part(value, media),
            Some(b'n') => value.skip(),
            _ => value.value(|piece| self.chain.write(piece)),
        }
        self.depth -= 1;
    }

    /// A message: its role, its content, then whatever else it has in the order that it comes in.
    fn message(&mut self, message: &mut Cursor<'a>) {
        if message.peek() != Some(b'{') {
            return message.skip();
        }
        message.enter();
        // What came ahead of the role, and so has to wait.
        let mut waiting: [Option<(&[u8], Cursor<'_>)>; WAITING] = [None; WAITING];
        let mut has_role = false;
        while message.more() && !self.chain.is_full() {
            let name = message.name();
            if name == b"role" {
                has_role = true;
                self.chain.write(&START);
                self.content(message, Level::Part, None);
                self.flush(&mut waiting);
            } else if !has_role && let Some(place) = waiting.iter_mut().find(|it| it.is_none()) {
                *place = Some((name, *message));
                message.skip();
            } else {
                self.field(name, message);
            }
        }
        self.flush(&mut waiting);
    }

    /// Writes what has waited, the content first.
    fn flush(&mut self, waiting: &mut [Option<(&'a [u8], Cursor<'a>)>]) {
        let content = waiting.iter_mut().find(|it| matches!(it, Some((b"content", _))));
        if let Some((name, mut value)) = content.and_then(Option::take) {
            self.field(name, &mut value);
        }
        for (name, mut value) in waiting.iter_mut().filter_map(Option::take) {
            self.field(name, &mut value);
        }
    }

    /// A field of a message.
    fn field(&mut self, name: &[u8], value: &mut Cursor<'a>) {
        match name {
            b"content" => self.content(value, Level::Part, None),
            _ if UNSEEN.contains(&name) => value.skip(),
            _ => {
                self.chain.write(name);
                self.content(value, Level::Part, None);
            }
        }
    }

    /// A part of a message's content.
    fn part(&mut self, part: &mut Cursor<'a>, media: Option<Media>) {
        part.enter();
        while part.more() && !self.chain.is_full() {
            let name = part.name();
            let media = Media::of(name, media);
            match media {
                _ if name == b"text" => self.content(part, Level::Part, media),
                _ if UNSEEN.contains(&name) => part.skip(),
                Some(media) if MEDIA.contains(&name) => self.media(part, media),
                _ => {
                    self.chain.write(name);
                    self.content(part, Level::Part, media);
                }
            }
        }
    }

    /// Media: a string, a list of such, or an object that has one.
    fn media(&mut self, value: &mut Cursor<'a>, media: Media) {
        match value.peek() {
            Some(b'"') => {
                let raw = value.raw_text();
                let bytes = media.tokens(raw.len()) * BYTES_PER_TOKEN;
                let own = bytes.min(raw.len() * MEDIA_GROWTH);
                let more = (bytes - own).min(self.media_bytes);
                self.media_bytes -= more;
                self.chain.fill(self.secret.hash(raw), own + more);
            }
            Some(b'[') => {
                value.enter();
                while value.more() && !self.chain.is_full() {
                    // A list in a list is no media of any interface.
                    match value.peek() {
                        Some(b'"') => self.media(value, media),
                        _ => self.content(value, Level::Part, Some(media)),
                    }
                }
            }
            _ => self.content(value, Level::Part, Some(media)),
        }
    }
}

/// The role of the message at hand.
fn role(mut message: Cursor<'_>) -> Option<&[u8]> {
    if message.peek() != Some(b'{') {
        return None;
    }
    message.enter();
    while message.more() {
        if message.name() == b"role" {
            return (message.peek() == Some(b'"')).then(|| message.raw_text());
        }
        message.skip();
    }
    None
}

/// The scope and the salts as what the first block's hash builds on, none to be taken for another.
fn spell(scope: &Scope<'_>, salts: &[&[u8]]) -> Vec<u8> {
    let names = [scope.model.as_bytes(), scope.adapter.unwrap_or_default().as_bytes()];
    let mut text = scope.block_tokens.to_le_bytes().to_vec();
    for part in names.iter().chain(salts) {
        text.extend_from_slice(&(part.len() as u64).to_le_bytes());
        text.extend_from_slice(part);
    }
    text
}

/// Tokens of a prompt's head: prompts of one application mostly differ behind them, those of others within.
pub const HEAD_TOKENS: usize = 256;

/// How many bytes of UTF-8 make a token: English prose has 4 to 4.5, Chinese 4 to 5, code 3 to 4.
pub const BYTES_PER_TOKEN: usize = 4;

/// Parts that keep prompts apart without being in them.
const SALTS: [Part; 3] = [Part::CacheSalt, Part::ExtraKey, Part::ChatTemplate];

/// Parts that stand between the system prompt and the messages.
const TOOLS: [Part; 3] = [Part::Tools, Part::Functions, Part::Documents];

/// Parts that are a prompt by themselves.
const TEXTS: [Part; 4] = [Part::Prompt, Part::Text, Part::Inputs, Part::InputIds];

/// Fields of messages and their parts that no template shows to the model.
const UNSEEN: [&[u8]; 5] = [b"cache_control", b"detail", b"id", b"status", b"type"];

/// Fields that hold media.
const MEDIA: [&[u8]; 11] = [
    b"audio",
    b"audio_url",
    b"data",
    b"file_data",
    b"image",
    b"image_url",
    b"input_audio",
    b"input_image",
    b"url",
    b"video",
    b"video_url",
];

/// How many times as long as the string that holds or names them media may be in the blocks.
const MEDIA_GROWTH: usize = 64;

/// Bytes in the blocks that media may have beyond that, all of a body together: 16 images of short addresses.
const MEDIA_BYTES: usize = 64 << 10;

/// Fields of a message ahead of its role that can wait for it.
const WAITING: usize = 4;

/// Starts a message; with its role about as many tokens as templates make of it.
const START: [u8; 12] = [MARK; 12];

/// Keeps apart what is joined: no byte of UTF-8.
const MARK: u8 = 0xff;

#[cfg(test)]
mod tests;
