//! Puts the name that the client asked for in place of the model's that has answered for it. Pure.
//!
//! Of a JSON document, or of each event of a stream, the value of `model` is replaced, and of `model_name` (Triton's), where
//! it is a text: of the document itself, of `response` in it (the Responses interface) or of `message` (Anthropic's).
//! Nothing else is, whatever texts and nested objects say. All other bytes go on as they come, split anywhere: nothing is
//! held back but the old name, and memory does not grow.

use crate::flow::head::ResponseHead;

/// The state between two pieces of a body.
#[derive(Clone, Debug)]
pub struct Rename {
    /// The new name, as JSON.
    name: Vec<u8>,
    /// Of a stream of events: where in its line the next byte stands.
    line: Option<Line>,
    /// The last byte was a CR, and a LF behind it ends no further line.
    after_cr: bool,
    /// Open arrays and objects.
    depth: usize,
    /// Of the outermost ones, the name whose value is being read.
    names: [Name; DEEPEST],
    state: State,
    /// The text that is being read, as far as it may be a name that matters, and its length.
    text: [u8; LONGEST],
    len: usize,
}

/// Where in a line of a stream of events.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Line {
    /// So many bytes of `data:` have come, and nothing else.
    Start(usize),
    /// Not of an event's data.
    Other,
    /// Behind `data:`.
    Data,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Between tokens, or within a number or a word.
    Between,
    /// Within a text.
    Text,
    /// Behind a backslash in one.
    Escape,
    /// Behind a text, which may be a name.
    Named,
    /// Behind the colon of a name that is a model's.
    Value,
    /// Within the old name, which is left out.
    Old,
    /// Behind a backslash in that.
    OldEscape,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Name {
    Other,
    Model,
    /// `response` or `message`.
    Whole,
}

impl Rename {
    /// Of an answer with this head to `name`, if it can tell a model's name and can be read.
    pub fn of(head: &ResponseHead, name: &str) -> Option<Self> {
        let is_read = (head.event_stream || head.json) && !head.encoded;
        (is_read && !head.framing.is_done()).then(|| Self::new(name, head.event_stream))
    }

    /// Of a JSON document, or of a stream of events, to `name`.
    pub fn new(name: &str, event_stream: bool) -> Self {
        Self {
            name: serde_json::Value::from(name).to_string().into_bytes(),
            line: event_stream.then_some(Line::Start(0)),
            after_cr: false,
            depth: 0,
            names: [Name::Other; DEEPEST],
            state: State::Between,
            text: [0; LONGEST],
            len: 0,
        }
    }

    /// Takes the next piece and appends what the client is to get.
    pub fn push(&mut self, mut piece: &[u8], out: &mut Vec<u8>) {
        while let Some((&byte, rest)) = piece.split_first() {
            let run = self.run(piece);
            if run > 0 {
                let (text, behind) = piece.split_at_checked(run).unwrap_or((piece, &[]));
                if self.line == Some(Line::Other) || self.state == State::Text {
                    out.extend_from_slice(text);
                }
                piece = behind;
                continue;
            }
            piece = rest;
            let was_cr = std::mem::take(&mut self.after_cr);
            match (byte, self.line) {
                (b'\n', Some(_)) if was_cr => {}
                (b'\n' | b'\r', Some(line)) => {
                    self.after_cr = byte == b'\r';
                    self.end_line(line);
                }
                (_, Some(Line::Start(seen))) => {
                    self.line = Some(match DATA.get(seen) {
                        Some(&next) if next == byte && seen + 1 == DATA.len() => Line::Data,
                        Some(&next) if next == byte => Line::Start(seen + 1),
                        _ => Line::Other,
                    });
                }
                (_, Some(Line::Other)) => {}
                (_, Some(Line::Data) | None) => {
                    if !self.byte(byte, out) {
                        continue;
                    }
                }
            }
            out.push(byte);
        }
    }

    /// How many bytes at the front of `piece` need no look at each: of a line without data, and within a text.
    fn run(&mut self, piece: &[u8]) -> usize {
        let end = match (self.line, self.state) {
            (Some(Line::Other), _) => memchr::memchr2(b'\n', b'\r', piece),
            (Some(Line::Start(_)), _) => return 0,
            (None, State::Text | State::Old) => memchr::memchr2(b'"', b'\\', piece),
            // A line end is looked at as well: it shows that this was no text.
            (Some(Line::Data), State::Text) => {
                let end = memchr::memchr3(b'"', b'\\', b'\n', piece);
                let run = piece.get(..end.unwrap_or(piece.len())).unwrap_or_default();
                memchr::memchr(b'\r', run).or(end)
            }
            _ => return 0,
        };
        let run = end.unwrap_or(piece.len());
        if self.state == State::Text && self.line != Some(Line::Other) {
            let text = piece.get(..run).unwrap_or_default();
            match self.text.get_mut(self.len..).and_then(|room| room.get_mut(..run)) {
                Some(room) => {
                    room.copy_from_slice(text);
                    self.len += run;
                }
                None => self.len = LONGEST + 1,
            }
        }
        if run > 0 {
            self.after_cr = false;
        }
        run
    }

    fn end_line(&mut self, line: Line) {
        self.line = Some(Line::Start(0));
        let within =
            matches!(self.state, State::Text | State::Escape | State::Old | State::OldEscape);
        // An empty line ends an event, and a text has no line end: this was none.
        if line == Line::Start(0) || within && line == Line::Data {
            (self.depth, self.state) = (0, State::Between);
        }
    }

    /// Takes a byte of JSON. Returns whether the client gets it.
    fn byte(&mut self, byte: u8, out: &mut Vec<u8>) -> bool {
        match (self.state, byte) {
            (State::Text, b'"') => self.state = State::Named,
            (State::Text, b'\\') => {
                // No engine writes a name so.
                self.len = LONGEST + 1;
                self.state = State::Escape;
            }
            // What `run` has stopped at is one of these two, or a line end.
            (State::Text | State::Escape, _) => self.state = State::Text,
            (State::Old, b'"') => {
                self.state = State::Between;
                return false;
            }
            (State::Old, b'\\') => {
                self.state = State::OldEscape;
                return false;
            }
            (State::Old | State::OldEscape, _) => {
                self.state = State::Old;
                return false;
            }
            (State::Named | State::Value, b' ' | b'\t' | b'\n' | b'\r') => {}
            (State::Named, b':') => {
                let name = self.text.get(..self.len).map_or(Name::Other, name);
                if let Some(place) = self.depth.checked_sub(1).and_then(|at| self.names.get_mut(at))
                {
                    *place = name;
                }
                let is_models = matches!(
                    self.names.get(..self.depth),
                    Some([Name::Model] | [Name::Whole, Name::Model])
                );
                self.state = if is_models { State::Value } else { State::Between };
            }
            (State::Value, b'"') => {
                self.state = State::Old;
                out.extend_from_slice(&self.name);
                return false;
            }
            _ => self.structure(byte),
        }
        true
    }

    /// A byte that is no part of a text.
    fn structure(&mut self, byte: u8) {
        self.state = State::Between;
        match byte {
            b'"' => {
                self.len = 0;
                self.state = State::Text;
            }
            b'{' | b'[' => {
                if let Some(place) = self.names.get_mut(self.depth) {
                    *place = Name::Other;
                }
                self.depth = self.depth.saturating_add(1);
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b',' => {
                if let Some(place) = self.depth.checked_sub(1).and_then(|at| self.names.get_mut(at))
                {
                    *place = Name::Other;
                }
            }
            _ => {}
        }
    }
}

fn name(text: &[u8]) -> Name {
    match text {
        b"model" | b"model_name" => Name::Model,
        b"response" | b"message" => Name::Whole,
        _ => Name::Other,
    }
}

/// What an event's payload begins with.
const DATA: &[u8] = b"data:";

/// The longest of the names in [`name`].
const LONGEST: usize = "model_name".len();

/// How deep a model's name stands at most.
const DEEPEST: usize = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;
    use crate::flow::head;

    fn renamed(name: &str, event_stream: bool, pieces: &[&[u8]]) -> String {
        let (mut rename, mut out) = (Rename::new(name, event_stream), Vec::new());
        pieces.iter().for_each(|piece| rename.push(piece, &mut out));
        String::from_utf8(out).unwrap()
    }

    /// The same at every split in two, and byte by byte.
    fn at_every_split(name: &str, event_stream: bool, body: &str) -> String {
        let whole = renamed(name, event_stream, &[body.as_bytes()]);
        for split in 0..body.len() {
            let (a, b) = body.as_bytes().split_at(split);
            assert_eq!(renamed(name, event_stream, &[a, b]), whole, "at {split} of {body}");
        }
        let each: Vec<&[u8]> = body.as_bytes().chunks(1).collect();
        assert_eq!(renamed(name, event_stream, &each), whole);
        whole
    }

    #[test]
    fn documents() {
        for (body, expected) in [
            (r#"{"id":"1","model":"old","x":1}"#, r#"{"id":"1","model":"new","x":1}"#),
            ("{ \"model\" :\n \"old\" }\n", "{ \"model\" :\n \"new\" }\n"),
            (r#"{"model":"a\"b\\","y":"\\"}"#, r#"{"model":"new","y":"\\"}"#),
            (r#"{"model":""}"#, r#"{"model":"new"}"#),
            (r#"{"model":null,"x":"model"}"#, r#"{"model":null,"x":"model"}"#),
            (r#"{"model":{"model":"old"}}"#, r#"{"model":{"model":"old"}}"#),
            (r#"{"model_name":"old","models":"old"}"#, r#"{"model_name":"new","models":"old"}"#),
            // What was said is not changed, and what is further in is not the document's.
            (
                r#"{"choices":[{"text":"\"model\":\"old\"","model":"old"}],"model":"old"}"#,
                r#"{"choices":[{"text":"\"model\":\"old\"","model":"old"}],"model":"new"}"#,
            ),
            (r#"{"metadata":{"model":"old"}}"#, r#"{"metadata":{"model":"old"}}"#),
            (
                r#"{"response":{"model":"old","x":{"model":"old"}}}"#,
                r#"{"response":{"model":"new","x":{"model":"old"}}}"#,
            ),
            (r#"{"message":{"model":"old"}}"#, r#"{"message":{"model":"new"}}"#),
            (r#"{"message":[{"model":"old"}]}"#, r#"{"message":[{"model":"old"}]}"#),
            (
                r#"{"message":"response","x":{"model":"old"}}"#,
                r#"{"message":"response","x":{"model":"old"}}"#,
            ),
            (r#"[{"model":"old"}]"#, r#"[{"model":"old"}]"#),
            (r#"{"a":["model","old"],"b":"model"}"#, r#"{"a":["model","old"],"b":"model"}"#),
            // One document behind the other.
            (
                "{\"model\":\"old\"}\n{\"model\":\"old\"}\n",
                "{\"model\":\"new\"}\n{\"model\":\"new\"}\n",
            ),
            // No JSON at all.
            ("model: old", "model: old"),
            (r#"}}]"model":"old"#, r#"}}]"model":"old"#),
        ] {
            assert_eq!(at_every_split("new", false, body), expected);
        }
        // The name is written as JSON wants it.
        assert_eq!(at_every_split("a\"é\n", false, r#"{"model":"b"}"#), r#"{"model":"a\"é\n"}"#);
    }

    #[test]
    fn which_answers() {
        for (lines, expected) in [
            ("content-type: application/json\r\ncontent-length: 9\r\n", Some(false)),
            ("content-type: Application/Problem+JSON ; charset=utf-8\r\n", Some(false)),
            ("content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n", Some(true)),
            ("content-type: text/plain\r\ncontent-length: 9\r\n", None),
            ("content-length: 9\r\n", None),
            ("content-type: application/json\r\ncontent-length: 0\r\n", None),
            ("content-type: application/json\r\ncontent-encoding: gzip\r\n", None),
        ] {
            let head = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
            let head = head::parse(head.as_bytes(), false).unwrap().unwrap();
            let rename = Rename::of(&head, "new").map(|rename| rename.line.is_some());
            assert_eq!(rename, expected, "{lines}");
        }
    }

    #[test]
    fn streams() {
        let body = ": model \"model\":\"old\"\n\n\
             data: {\"model\":\"old\",\"choices\":[{\"delta\":{\"content\":\"\\\"model\\\":\\\"old\\\"\"}}]}\n\n\
             event: response.created\nid: {\"model\":\"old\"}\n\
             data:{\"response\":{\"model\":\"old\"}}\n\n\
             event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\": \"old\"}}\n\n\
             data: {\"model\":\ndata: \"old\"}\n\n\
             data: {\"choices\":[{\"text\n\ndata: {\"model\":\"old\"}\n\n\
             data: {\"model\":\"ol\n\ndata: {\"model\":\"old\"}\n\n\
             data: [DONE]\n\n";
        let expected = body
            .replace("data: {\"model\":\"old\"", "data: {\"model\":\"new\"")
            .replace(
                "data:{\"response\":{\"model\":\"old\"",
                "data:{\"response\":{\"model\":\"new\"",
            )
            .replace("{\"model\": \"old\"}", "{\"model\": \"new\"}")
            .replace("data: \"old\"}", "data: \"new\"}")
            // It was none, and what was left out of it is gone.
            .replace("data: {\"model\":\"ol\n", "data: {\"model\":\"new\"\n");
        for end in ["\n", "\r\n", "\r"] {
            let form = |text: &str| text.replace('\n', end);
            assert_eq!(at_every_split("new", true, &form(body)), form(&expected), "{end:?}");
        }
        let plain = "data: {\"model\":\"old\"}\r\rdata: {\"model\":\"old\"}\r\r";
        assert_eq!(at_every_split("new", true, plain), plain.replace("old", "new"));
    }

    fn json() -> impl Strategy<Value = Value> {
        let text = "[a-z\"\\\\{}\\[\\]:, é]{0,12}|model|old|response|message";
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(|number| serde_json::json!(number)),
            text.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(
                    "model|model_name|response|message|[a-z\"\\\\]{0,12}",
                    inner,
                    0..6
                )
                .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    /// What the whole value becomes.
    fn expected(mut value: Value) -> Value {
        let rename = |map: &mut Map<String, Value>| {
            for key in ["model", "model_name"] {
                if let Some(name @ Value::String(_)) = map.get_mut(key) {
                    *name = "new \"name\"".into();
                }
            }
        };
        let Some(map) = value.as_object_mut() else { return value };
        rename(map);
        for key in ["response", "message"] {
            map.get_mut(key).and_then(Value::as_object_mut).map(rename);
        }
        value
    }

    proptest! {
        #[test]
        fn of_any_document_the_names_change_and_nothing_else(
            value in json(),
            pretty in any::<bool>(),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let write = |value: &Value| match pretty {
                true => serde_json::to_string_pretty(value).unwrap(),
                false => value.to_string(),
            };
            let (before, after) = (write(&value), write(&expected(value.clone())));
            let event = |text: &str| {
                text.split('\n').map(|line| format!("data: {line}\n")).collect::<String>() + "\n"
            };
            for (stream, before, after) in
                [(false, before.clone(), after.clone()), (true, event(&before), event(&after))]
            {
                // Twice, as the state must be the same behind it.
                let body = format!("{before}{before}").into_bytes();
                let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
                at.extend([0, body.len()]);
                at.sort_unstable();
                let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &body[pair[0]..pair[1]]).collect();
                let is_map = value.is_object() || stream;
                if is_map {
                    prop_assert_eq!(renamed("new \"name\"", stream, &pieces), format!("{after}{after}"));
                }
            }
        }

        #[test]
        fn nothing_that_comes_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), stream in any::<bool>()) {
            let (mut rename, mut out) = (Rename::new("n", stream), Vec::new());
            bytes.chunks(3).for_each(|piece| rename.push(piece, &mut out));
            prop_assert!(out.len() <= 3 * bytes.len());
        }
    }
}
