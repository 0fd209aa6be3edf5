//! Finds the field `model` in a multipart/form-data body (RFC 7578): audio transcriptions, image edits.
//!
//! The field may stand behind a file of any size, so the parts are scanned as they arrive and nothing is kept
//! but the head of one part and a bounded value. As in [`scan`](super::scan), the gateway must read what
//! the model server reads, and form parsers differ much: so only the form that every client sends is
//! taken, and what two parsers might read in two ways is refused.
//!
//! - The body starts with its boundary, and no line holds more than that: no preamble, no padding.
//! - Parts are separated by CR LF, and each has an empty line between its head and its value.
//! - `name` has no backslash and is not encoded (`name*=`), and the form's charset is UTF-8.
//!
//! It never looks into files and never changes a byte.

mod params;

use super::scan::{Fault, Fields, MAX_MODEL, model_name, truth};
use params::Param;

/// What separates the parts, from the request's Content-Type.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Boundary {
    /// CR LF, two dashes, the boundary.
    delimiter: Box<[u8]>,
}

impl Boundary {
    /// The boundary of a form; none if the value is not of the type multipart/form-data.
    ///
    /// # Errors
    /// [`Fault::ContentType`] for a form without a usable boundary, or not in UTF-8.
    pub fn from_content_type(value: &[u8]) -> Result<Option<Self>, Fault> {
        let kind = value.split(|byte| *byte == b';').next().unwrap_or_default();
        if !kind.trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
            return Ok(None);
        }
        let fault = |what| Fault::ContentType { what };
        let (_, params) = params::split(value).ok_or(fault("its parameters are malformed"))?;
        // Servers decode names and values by it, also names that would then be `model`.
        if let Some(charset) = only(&params, "charset").map_err(fault)?
            && !charset.eq_ignore_ascii_case(b"utf-8")
        {
            return Err(fault("send the form in UTF-8, without another charset"));
        }
        let boundary = only(&params, "boundary").map_err(fault)?.unwrap_or_default();
        if !(1..=MAX_BOUNDARY).contains(&boundary.len()) {
            return Err(fault("it needs a boundary of 1 to 70 characters"));
        }
        if !boundary.iter().all(|byte| is_boundary_character(*byte)) || boundary.ends_with(b" ") {
            return Err(fault("the boundary has characters that are not allowed"));
        }
        Ok(Some(Self { delimiter: [b"\r\n--", boundary].concat().into() }))
    }
}

/// The state between two pieces of a body.
#[derive(Clone, Debug)]
pub struct Scanner {
    boundary: Boundary,
    /// Bytes of the body ahead of the current piece.
    base: u64,
    state: State,
    part: Part,
    /// How many bytes of the delimiter have been seen, the first `supposed` of which did not come but
    /// are taken for granted: the line end ahead of the body, and of a part's value.
    matched: usize,
    supposed: usize,
    /// The head of the part being read.
    head: Vec<u8>,
    /// The value of the part being read, if it matters, and where it began.
    value: Vec<u8>,
    value_from: u64,
    found: Fields,
    fault: Option<Fault>,
}

impl Scanner {
    /// A scanner for one body.
    pub fn new(boundary: Boundary) -> Self {
        Self {
            boundary,
            base: 0,
            state: State::Data,
            part: Part::Preamble,
            matched: LINE_END,
            supposed: LINE_END,
            head: Vec::new(),
            value: Vec::new(),
            value_from: 0,
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

    /// The model's name, once its part has passed. Final unless a later [`Scanner::feed`] or
    /// [`Scanner::finish`] finds a fault.
    pub fn model_so_far(&self) -> Option<&str> {
        self.found.model.as_deref()
    }

    /// The body has ended: gives `model` and `stream`; forms have no other field that matters.
    ///
    /// # Errors
    /// The body's [`Fault`], also that it ended too early.
    pub fn finish(self) -> Result<Fields, Fault> {
        match (self.fault, self.state) {
            (Some(fault), _) => Err(fault),
            (None, State::Epilogue) => Ok(self.found),
            (None, _) => Err(Fault::NotForm {
                offset: self.base,
                what: "the body ends before its closing boundary",
            }),
        }
    }

    fn scan(&mut self, piece: &[u8]) -> Result<(), Fault> {
        let mut at = 0;
        while let Some(&byte) = piece.get(at) {
            match (self.state, byte) {
                (State::Data, _) => {
                    at += self.data(at, piece.get(at..).unwrap_or_default(), byte)?;
                    continue;
                }
                (State::Delimiter, b'\r') => self.state = State::DelimiterLf,
                (State::Delimiter, b'-') => self.state = State::Closing,
                (State::DelimiterLf, b'\n') => {
                    self.head.clear();
                    self.state = State::Head;
                }
                (State::Closing, b'-') => self.state = State::Epilogue,
                (State::Delimiter | State::DelimiterLf | State::Closing, _) => {
                    return self.not_form(at, "a boundary has more behind it on its line");
                }
                (State::Head, _) => self.head(at, byte)?,
                (State::Epilogue, _) => break,
            }
            at += 1;
        }
        Ok(())
    }

    /// How many bytes at the front of `rest`, which starts with `byte`, were taken.
    fn data(&mut self, at: usize, rest: &[u8], byte: u8) -> Result<usize, Fault> {
        if self.matched == 0 {
            let run = memchr::memchr(b'\r', rest).unwrap_or(rest.len());
            if run > 0 {
                self.keep(rest.get(..run).unwrap_or_default());
                return Ok(run);
            }
        }
        if self.boundary.delimiter.get(self.matched) == Some(&byte) {
            self.matched += 1;
            if self.matched == self.boundary.delimiter.len() {
                self.end_part(at)?;
            }
            return Ok(1);
        }
        if self.part == Part::Preamble {
            self.not_form(at, "it does not start with the boundary that Content-Type names")?;
        }
        self.keep_matched();
        Ok(0)
    }

    fn end_part(&mut self, at: usize) -> Result<(), Fault> {
        if self.part != Part::Preamble && self.supposed > 0 {
            return self.not_form(at, "a part has no value, not even an empty line");
        }
        match self.part {
            Part::Model => {
                self.found.model = Some(model_name(&self.value)?);
                // As long as it was kept, which a name is whole.
                let end = self.value_from.saturating_add(self.value.len() as u64);
                self.found.model_at = Some(self.value_from..end);
            }
            Part::Stream => self.found.stream = truth(&self.value) == Some(true),
            Part::ModelFile | Part::Other | Part::Preamble => {}
        }
        self.state = State::Delimiter;
        Ok(())
    }

    fn head(&mut self, at: usize, byte: u8) -> Result<(), Fault> {
        if self.head.len() == MAX_PART_HEAD {
            return self.not_form(at, "the head of a part is too long");
        }
        self.head.push(byte);
        if byte != b'\n' {
            return Ok(());
        }
        if !self.head.ends_with(b"\r\n") {
            return self.not_form(at, "a line in the head of a part does not end in CR LF");
        }
        if self.head.ends_with(b"\r\n\r\n") || self.head == b"\r\n" {
            self.part = match part(&self.head) {
                Ok(part) => part,
                Err(what) => return self.not_form(at, what),
            };
            return self.begin_value(at);
        }
        Ok(())
    }

    fn begin_value(&mut self, at: usize) -> Result<(), Fault> {
        match self.part {
            Part::Model if self.found.model.is_some() => return Err(Fault::ModelTwice),
            Part::ModelFile => return Err(Fault::ModelNotString),
            _ => {}
        }
        self.value.clear();
        self.value_from = self.base.saturating_add(at as u64 + 1);
        self.matched = LINE_END;
        self.supposed = LINE_END;
        self.state = State::Data;
        Ok(())
    }

    /// What looked like a delimiter was data.
    fn keep_matched(&mut self) {
        let delimiter = std::mem::take(&mut self.boundary.delimiter);
        self.keep(delimiter.get(self.supposed..self.matched).unwrap_or_default());
        self.boundary.delimiter = delimiter;
        self.matched = 0;
        self.supposed = 0;
    }

    /// One byte more than is allowed is kept, to tell that it came.
    fn keep(&mut self, bytes: &[u8]) {
        if matches!(self.part, Part::Model | Part::Stream) {
            let room = (MAX_MODEL + 1).saturating_sub(self.value.len());
            self.value.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    #[cold]
    fn not_form(&self, at: usize, what: &'static str) -> Result<(), Fault> {
        Err(Fault::NotForm { offset: self.base.saturating_add(at as u64), what })
    }
}

/// What may come next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// A value, or the delimiter that ends it.
    Data,
    /// A line end, or the first of two dashes that end the form.
    Delimiter,
    DelimiterLf,
    /// The second dash.
    Closing,
    Head,
    /// Behind the form: nothing there is read by anyone.
    Epilogue,
}

/// What the part being read is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    Model,
    ModelFile,
    Other,
    /// Not a part: what may stand ahead of the first one.
    Preamble,
    Stream,
}

/// What a part is, from its head; or what is wrong with it.
fn part(head: &[u8]) -> Result<Part, &'static str> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_PART_FIELDS];
    let Ok(httparse::Status::Complete((_, headers))) = httparse::parse_headers(head, &mut headers)
    else {
        return Err("the head of a part is malformed or has too many lines");
    };
    let value = |name: &str| {
        let mut all = headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        (all.next().map(|header| header.value), all.next().is_some())
    };
    let (Some(disposition), false) = value("content-disposition") else {
        return Err("a part needs one Content-Disposition");
    };
    let Some((kind, params)) = params::split(disposition) else {
        return Err("a Content-Disposition is malformed");
    };
    if !kind.eq_ignore_ascii_case(b"form-data") {
        return Err("a Content-Disposition is not form-data");
    }
    let Some(name) = only(&params, "name")? else {
        return Err("a Content-Disposition has no name");
    };
    let file = params.iter().any(|param| param.is("filename"));
    let part = match name {
        b"model" if file => Part::ModelFile,
        b"model" => Part::Model,
        b"stream" => Part::Stream,
        _ => Part::Other,
    };
    let (encoding, _) = value("content-transfer-encoding");
    if part == Part::Model && encoding.is_some() {
        return Err("`model` must not have a Content-Transfer-Encoding");
    }
    Ok(part)
}

/// The value of the parameter `name`, if it comes.
fn only<'a>(params: &'a [Param<'_>], name: &str) -> Result<Option<&'a [u8]>, &'static str> {
    let mut all = params.iter().filter(|param| param.is(name));
    let (first, second) = (all.next(), all.next());
    if second.is_some() {
        return Err("a parameter comes twice");
    }
    let Some(param) = first else {
        return Ok(None);
    };
    match param.plain() {
        Some(value) => Ok(Some(value)),
        None => Err("a parameter is encoded or has a backslash"),
    }
}

/// RFC 2046 section 5.1.1, `bchars`.
fn is_boundary_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte)
}

/// Longest boundary in bytes (RFC 2046 section 5.1.1).
const MAX_BOUNDARY: usize = 70;

/// Longest head of a part in bytes. File names are the long thing in it.
const MAX_PART_HEAD: usize = 8 * 1024;

/// Most lines in the head of a part. Clients send up to three.
const MAX_PART_FIELDS: usize = 16;

/// The line end that a delimiter starts with, in bytes.
const LINE_END: usize = 2;

#[cfg(test)]
mod tests;
