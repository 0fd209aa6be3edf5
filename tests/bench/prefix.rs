//! What the prefix index costs: `cargo bench -p sluice-tests --bench prefix`.
//!
//! The bounds: reading and matching a prompt of 8k tokens under 25 us, of 1M tokens under 6 ms; an index of 100 pods of 30,000
//! blocks under 100 MB, which is printed first and checked. A prompt of 8k tokens is 32 KB of text.
#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;

use divan::counter::BytesCount;
use divan::{Bencher, Divan};
use gateway_user::request::scan::{Parts, Scanner};
use gateway_user::schedule::prefix::{Index, Matches, Prompt, Scope, Secret, Slot};

fn main() {
    memory();
    Divan::from_args().main();
}

/// What prompts are like.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// One system prompt and a chat of prose, a line break or quotes every hundred bytes or so.
    Chat,
    /// The same in Chinese, by a client that escapes all that is not ASCII.
    Escaped,
    /// Token numbers, as Python writes them.
    Tokens,
    /// Mostly tool schemas, with blanks as Python writes them.
    Tools,
}

const SHAPES: [Shape; 4] = [Shape::Chat, Shape::Escaped, Shape::Tokens, Shape::Tools];

/// A request's body with a prompt of about so many tokens.
fn body(shape: Shape, tokens: usize) -> String {
    let mut random = fastrand::Rng::with_seed(7);
    let bytes = tokens * 4;
    let message = |role: &str, text: &str| format!(r#"{{"role": "{role}", "content": "{text}"}}"#);
    let prompt = match shape {
        Shape::Chat => {
            let mut messages = Vec::new();
            let mut len = 0;
            while len < bytes {
                let mut text = String::new();
                while text.len() < 1_000 {
                    let words = (0..12).map(|_| "word".repeat(random.usize(1..4)));
                    text.push_str(&words.collect::<Vec<_>>().join(" "));
                    text.push_str("\\n");
                }
                len += text.len();
                messages.push(message(
                    if messages.len() % 2 == 0 { "user" } else { "assistant" },
                    &text,
                ));
            }
            format!(r#""messages": [{}]"#, messages.join(", "))
        }
        Shape::Escaped => {
            // Three bytes of UTF-8 each.
            let text = (0..bytes / 3).map(|_| format!("\\u{:04x}", random.u32(0x4e00..0x9fff)));
            format!(r#""messages": [{}]"#, message("user", &text.collect::<String>()))
        }
        Shape::Tokens => {
            let tokens = (0..tokens).map(|_| random.u32(1..128_256).to_string());
            format!(r#""prompt": [{}]"#, tokens.collect::<Vec<_>>().join(", "))
        }
        Shape::Tools => {
            let tool = r#"{"type": "function", "function": {"name": "lookup", "description": "Looks up the weather of a city for some days from now on.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}, "required": ["city"]}}}"#;
            let tools = vec![tool; bytes / tool.len()].join(", ");
            format!(r#""tools": [{tools}], "messages": [{}]"#, message("user", "Is it warm?"))
        }
    };
    format!(r#"{{"model": "llama", {prompt}}}"#)
}

fn parts(body: &str) -> Parts {
    let mut scanner = Scanner::new();
    scanner.feed(body.as_bytes()).unwrap();
    scanner.finish().unwrap().prompt
}

const SCOPE: Scope<'_> = Scope { model: "llama", adapter: None, block_tokens: 64 };

fn read(body: &str, parts: &Parts) -> Prompt {
    Prompt::read(body.as_bytes(), parts, &SCOPE, &Secret::from_seed(1))
}

/// 100 pods with other prompts in a full index; each also holds the front of this prompt, and one all of it.
fn filled(prompt: &Prompt) -> (Index, Vec<Slot>) {
    let (index, mut random) = (Index::new(), fastrand::Rng::with_seed(5));
    let slots: Vec<Slot> = (0..100).map(|_| index.join(30_000).unwrap()).collect();
    for (place, slot) in slots.iter().enumerate() {
        for _ in 0..240 {
            let blocks: Vec<u64> = (0..100).map(|_| random.u64(..)).collect();
            index.insert(*slot, &blocks);
        }
        let held =
            if place == 50 { prompt.blocks.len() } else { prompt.blocks.len() / (2 + place % 4) };
        index.insert(*slot, prompt.blocks.get(..held).unwrap());
    }
    (index, slots)
}

/// Hashes a prompt and finds who has it.
#[divan::bench(args = SHAPES)]
fn read_and_match_8k(bencher: Bencher<'_, '_>, shape: Shape) {
    read_and_match(bencher, shape, 8_192);
}

#[divan::bench(args = SHAPES, sample_count = 20)]
fn read_and_match_1m(bencher: Bencher<'_, '_>, shape: Shape) {
    read_and_match(bencher, shape, 1_000_000);
}

fn read_and_match(bencher: Bencher<'_, '_>, shape: Shape, tokens: usize) {
    let body = body(shape, tokens);
    let parts = parts(&body);
    let secret = Secret::from_seed(1);
    let prompt = read(&body, &parts);
    assert!(prompt.blocks.len() * 64 > tokens * 9 / 10, "{} blocks", prompt.blocks.len());
    let (index, slots) = filled(&prompt);
    let mut matches = Matches::default();
    bencher.counter(BytesCount::of_str(&body)).bench_local(|| {
        let prompt = Prompt::read(black_box(body.as_bytes()), &parts, &SCOPE, &secret);
        index.matched(&prompt.blocks, &mut matches);
        matches.blocks(*slots.get(50).unwrap())
    });
}

/// The look-up alone, by the number of blocks.
#[divan::bench(args = [128, 15_625])]
fn matched(bencher: Bencher<'_, '_>, blocks: usize) {
    let mut random = fastrand::Rng::with_seed(9);
    let prompt =
        Prompt { blocks: (0..blocks).map(|_| random.u64(..)).collect(), ..Prompt::default() };
    let (index, _slots) = filled(&prompt);
    let mut matches = Matches::default();
    bencher.bench_local(|| {
        index.matched(black_box(&prompt.blocks), &mut matches);
        matches.most()
    });
}

/// Of a prompt that nobody has.
#[divan::bench(args = [128])]
fn matched_cold(bencher: Bencher<'_, '_>, blocks: usize) {
    let mut random = fastrand::Rng::with_seed(9);
    let (index, _slots) = filled(&Prompt::default());
    let mut matches = Matches::default();
    let blocks: Vec<u64> = (0..blocks).map(|_| random.u64(..)).collect();
    bencher.bench_local(|| {
        index.matched(black_box(&blocks), &mut matches);
        matches.most()
    });
}

/// Notes a prompt that is new, at a pod that is full, so that sweeps are part of it.
#[divan::bench(args = [128, 15_625])]
fn insert_new(bencher: Bencher<'_, '_>, blocks: usize) {
    let mut random = fastrand::Rng::with_seed(9);
    let (index, slots) = filled(&Prompt::default());
    let mut at = 0;
    bencher
        .with_inputs(|| {
            at += 1;
            let blocks = (0..blocks).map(|_| random.u64(..)).collect::<Vec<_>>();
            (*slots.get(at % 100).unwrap(), blocks)
        })
        .bench_local_refs(|(slot, blocks)| index.insert(*slot, blocks));
}

/// Notes a prompt that the pod has already.
#[divan::bench(args = [128])]
fn insert_again(bencher: Bencher<'_, '_>, blocks: usize) {
    let mut random = fastrand::Rng::with_seed(9);
    let (index, slots) = filled(&Prompt::default());
    let blocks: Vec<u64> = (0..blocks).map(|_| random.u64(..)).collect();
    let slot = *slots.get(3).unwrap();
    bencher.bench_local(|| index.insert(slot, black_box(&blocks)));
}

/// The same matches and inserts by one worker and by two, for every 8 matches one insert.
#[divan::bench(threads = [1, 2])]
fn workers(bencher: Bencher<'_, '_>) {
    let mut random = fastrand::Rng::with_seed(9);
    let prompt = Prompt { blocks: (0..128).map(|_| random.u64(..)).collect(), ..Prompt::default() };
    let (index, slots) = filled(&prompt);
    bencher.with_inputs(|| (Matches::default(), fastrand::u64(..))).bench_refs(
        |(matches, place)| {
            index.matched(black_box(&prompt.blocks), matches);
            if *place % 8 == 0 {
                let slot = *slots.get(*place as usize % 100).unwrap();
                index.insert(slot, prompt.blocks.get(..64).unwrap());
            }
            matches.most()
        },
    );
}

/// Fills 100 pods of 30,000 blocks and says what that takes: each block at one pod, at two, at all.
fn memory() {
    for together in [1, 2, 100] {
        let (index, mut random) = (Index::new(), fastrand::Rng::with_seed(1));
        let slots: Vec<Slot> = (0..100).map(|_| index.join(30_000).unwrap()).collect();
        for group in slots.chunks(together) {
            for _ in 0..300 {
                let blocks: Vec<u64> = (0..100).map(|_| random.u64(..)).collect();
                for slot in group {
                    index.insert(*slot, &blocks);
                }
            }
        }
        let usage = index.usage();
        println!(
            "100 pods of 30,000 blocks, each block at {together}: {:.1} MB, {:.1} bytes a block of a pod",
            usage.bytes as f64 / 1e6,
            usage.bytes as f64 / usage.entries as f64
        );
        assert!(usage.entries == 3_000_000 && usage.bytes < 100_000_000, "{usage:?}");
    }
}
