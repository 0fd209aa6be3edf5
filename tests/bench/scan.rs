//! How fast a request body is read: `cargo bench -p sluice-tests --bench scan`.
//!
//! Bodies are about 1.5 MB, fed in the 16 KB pieces of a socket's reads. Throughput is what to look at; for
//! [`model_in_first_piece`] it is the time of one call.
#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use gateway_user::request::scan::Scanner;

fn main() {
    divan::main();
}

/// The shapes of bodies that the scanner meets.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Chat messages of prose, a line break or quotes every hundred bytes or so, then the model.
    Prose,
    /// The same in Chinese, by a client that escapes all that is not ASCII.
    Escaped,
    /// One image as base64.
    Image,
    /// A prompt of token numbers, as Python writes them.
    Tokens,
    /// Tool schemas: short names and values, deep nesting.
    Schemas,
}

const SHAPES: [Shape; 5] =
    [Shape::Prose, Shape::Escaped, Shape::Image, Shape::Tokens, Shape::Schemas];

impl Shape {
    fn body(self) -> String {
        let mut random = fastrand::Rng::with_seed(7);
        let mut body = String::from("{");
        match self {
            Self::Prose => {
                let lines = std::iter::repeat_with(|| {
                    let words = std::iter::repeat_with(|| "word".repeat(random.usize(1..4)));
                    let line = words.take(12).collect::<Vec<_>>().join(" ");
                    format!("{line}, \\\"{line}\\\".\\n")
                });
                let text = lines.take(40).collect::<String>();
                body.push_str(r#""messages": ["#);
                body.push_str(&messages(&text));
                body.push_str("], ");
            }
            Self::Escaped => {
                let text =
                    std::iter::repeat_with(|| format!("\\u{:04x}", random.u32(0x4e00..0x9fff)));
                body.push_str(r#""messages": ["#);
                body.push_str(&messages(&text.take(500).collect::<String>()));
                body.push_str("], ");
            }
            Self::Image => {
                body.push_str(
                    r#""messages": [{"role": "user", "content": [{"type": "image_url", "#,
                );
                body.push_str(r#""image_url": {"url": "data:image/png;base64,"#);
                body.extend(std::iter::repeat_with(|| random.alphanumeric()).take(SIZE));
                body.push_str(r#""}}]}], "#);
            }
            Self::Tokens => {
                body.push_str(r#""prompt": ["#);
                while body.len() < SIZE {
                    body.push_str(&format!("{}, ", random.u32(1..128_256)));
                }
                body.push_str("1], ");
            }
            Self::Schemas => {
                let tool = r#"{"type": "function", "function": {"name": "lookup", "strict": true,
                    "parameters": {"type": "object", "properties": {"city": {"type": "string"},
                    "days": {"type": "integer", "minimum": 1}}, "required": ["city"]}}}"#;
                let tools = vec![tool; SIZE / tool.len()];
                body.push_str(&format!(r#""tools": [{}], "#, tools.join(", ")));
            }
        }
        body.push_str(r#""stream": true, "model": "meta-llama/Llama-3.1-8B-Instruct"}"#);
        body
    }
}

fn messages(text: &str) -> String {
    let message = format!(r#"{{"role": "user", "content": "{text}"}}"#);
    vec![message.as_str(); SIZE / message.len()].join(", ")
}

/// All of a body, the model last.
#[divan::bench(args = SHAPES)]
fn whole_body(bencher: Bencher<'_, '_>, shape: Shape) {
    let body = shape.body();
    bencher.counter(BytesCount::of_str(&body)).bench(|| {
        let mut scanner = Scanner::new();
        for piece in black_box(body.as_bytes()).chunks(16 * 1024) {
            scanner.feed(piece).unwrap();
        }
        scanner.finish().unwrap()
    });
}

/// The same by serde_json, skipping what it does not want: the yardstick.
#[divan::bench(args = SHAPES)]
fn whole_body_by_serde(bencher: Bencher<'_, '_>, shape: Shape) {
    #[derive(serde::Deserialize)]
    struct Wanted {
        #[expect(dead_code, reason = "only to be read")]
        model: String,
    }

    let body = shape.body();
    bencher
        .counter(BytesCount::of_str(&body))
        .bench(|| serde_json::from_slice::<Wanted>(black_box(body.as_bytes())).unwrap());
}

/// The first 4 KB of a long chat whose model comes first.
#[divan::bench]
fn model_in_first_piece(bencher: Bencher<'_, '_>) {
    let chat = Shape::Prose.body();
    let body = format!(r#"{{"model": "llama", {}"#, chat.trim_start_matches('{'));
    let piece = body.as_bytes().get(..4096).unwrap();
    bencher.bench(|| {
        let mut scanner = Scanner::new();
        scanner.feed(black_box(piece)).unwrap();
        scanner.model_so_far().unwrap().len()
    });
}

const SIZE: usize = 1_500_000;
