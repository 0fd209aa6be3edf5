//! Requests: when they come, how long they are, and what they share with those before.
//!
//! Everything is drawn from the seed and from nothing that a policy does, so that all policies get
//! the very same requests. Only the later turns of a chat come when the answer before is there.

mod arrivals;
mod length;

use fastrand::Rng;

use crate::engine::kv::BLOCK_TOKENS;

pub use arrivals::Arrivals;
pub use length::Length;

use super::SECOND;
use arrivals::Clock;
use length::exponential;

/// What requests are like.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Each on its own.
    Plain {
        /// Tokens of a prompt.
        prompt: Length,
        /// Tokens of an answer.
        answer: Length,
    },
    /// Groups whose prompts begin alike.
    Groups {
        /// How many.
        groups: u32,
        /// Tokens that a group shares.
        shared: u32,
        /// Tokens that are a request's own.
        own: Length,
        /// Tokens of an answer.
        answer: Length,
    },
    /// Conversations: each turn's prompt is all that was said before, and a question.
    Chat {
        /// Different system prompts.
        systems: u32,
        /// Tokens of one.
        system: u32,
        /// Turns of a conversation.
        turns: Length,
        /// Tokens of a question.
        question: Length,
        /// Tokens of an answer.
        answer: Length,
        /// Mean seconds from an answer to the next question.
        pause: f64,
    },
    /// Each on its own, for one of many adapters; the n-th most wanted has `1 / n^skew`.
    Adapters {
        /// How many.
        adapters: u32,
        /// How uneven.
        skew: f64,
        /// Tokens of a prompt.
        prompt: Length,
        /// Tokens of an answer.
        answer: Length,
    },
    /// Some take up an earlier prompt and its answer where they fit into the drawn length.
    Reuse {
        /// Tokens of a prompt.
        prompt: Length,
        /// Tokens of an answer.
        answer: Length,
        /// Share of requests that try.
        again: f64,
        /// How many earlier prompts there are to choose from.
        recent: u32,
    },
}

/// One request.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// No other request under way has it.
    pub id: u64,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens that will be generated; no gateway knows.
    pub answer: u32,
    /// For each full block of 16 tokens of prompt and answer, a hash of it and all before.
    pub blocks: Vec<u64>,
    /// What a gateway makes of the prompt: a hash for each [`KEY_TOKENS`], of it and all before.
    pub keys: Vec<u64>,
    /// Which adapter.
    pub adapter: Option<u32>,
    /// Which gateway it comes to, of as many as there are.
    pub gateway: u32,
    pub(in crate::sim) chat: Option<Box<Chat>>,
    /// The lots of a client who will ask again.
    pub(in crate::sim) client: Option<Box<Rng>>,
}

/// Tokens that a gateway hashes together.
pub const KEY_TOKENS: u32 = 4 * BLOCK_TOKENS;

/// What is still to come of a conversation.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Chat {
    seed: u64,
    system: u64,
    turns: u32,
    rng: Rng,
}

/// All requests of a run.
#[derive(Debug)]
pub struct Traffic {
    shape: Shape,
    gateways: u32,
    arrivals: Arrivals,
    clock: Clock,
    bursts: Vec<(f64, f64)>,
    end: f64,
    rng: Rng,
    /// Weights of adapters, summed up.
    adapters: Vec<f64>,
    /// Earlier prompts: the seed of each stretch of text and where it ends.
    earlier: Vec<Vec<(u64, u32)>>,
}

impl Traffic {
    /// `rate` requests (or conversations) a second, or so many clients, for `seconds`, to so many gateways.
    pub fn new(
        (shape, arrivals): (Shape, Arrivals),
        rate: f64,
        seconds: f64,
        gateways: u32,
        seed: u64,
    ) -> Self {
        let adapters = match shape {
            Shape::Adapters { adapters, skew, .. } => (1..=adapters)
                .scan(0.0, |sum, rank| {
                    *sum += f64::from(rank).powf(-skew);
                    Some(*sum)
                })
                .collect(),
            _ => Vec::new(),
        };
        let mut rng = Rng::with_seed(seed);
        Self {
            shape,
            gateways,
            arrivals,
            clock: Clock::new(arrivals, rate),
            bursts: arrivals::bursts(arrivals, seconds, &mut rng),
            end: seconds,
            rng,
            adapters,
            earlier: Vec::new(),
        }
    }

    /// What follows on an answer that was complete at `now`.
    pub fn after(&self, ask: &mut Ask, now: u64) -> Option<(u64, Ask)> {
        if let (Some(mut rng), Shape::Plain { prompt, answer }) = (ask.client.take(), self.shape) {
            let seconds = now as f64 / SECOND as f64;
            let at = arrivals::again(self.arrivals, &self.bursts, seconds, &mut rng);
            let mut ask = Ask::alone(prompt, answer, &mut rng);
            ask.gateway = rng.u32(..self.gateways.max(1));
            ask.client = Some(rng);
            return Some(((at * SECOND as f64) as u64, ask));
        }
        let mut chat = ask.chat.take()?;
        chat.turns = chat.turns.checked_sub(1)?;
        let Shape::Chat { question, pause, .. } = self.shape else { return None };
        let at = now + (exponential(pause, &mut chat.rng) * SECOND as f64) as u64;
        let prompt = ask.prompt + ask.answer + question.draw(&mut chat.rng);
        let gateway = chat.rng.u32(..self.gateways.max(1));
        Some((at, Ask { gateway, ..self.turn(chat, prompt) }))
    }

    fn make(&mut self) -> Ask {
        let own = self.rng.u64(..);
        let rng = &mut self.rng;
        match self.shape {
            Shape::Plain { prompt, answer } => {
                let asks_again = matches!(self.arrivals, Arrivals::Clients { .. });
                let client = asks_again.then(|| Box::new(Rng::with_seed(own)));
                Ask { client, ..Ask::alone(prompt, answer, rng) }
            }
            Shape::Groups { groups, shared, own: length, answer } => {
                let group = u64::from(rng.u32(..groups));
                let prompt = shared + length.draw(rng);
                let answer = answer.draw(rng);
                Ask::of(&[(group, shared), (own, prompt + answer)], prompt, answer, None)
            }
            Shape::Chat { systems, system, turns, question, .. } => {
                let mut rng = Rng::with_seed(own);
                let chat = Chat {
                    seed: own,
                    system: u64::from(rng.u32(..systems)),
                    turns: turns.draw(&mut rng) - 1,
                    rng: rng.fork(),
                };
                let prompt = system + question.draw(&mut rng);
                self.turn(Box::new(chat), prompt)
            }
            Shape::Adapters { prompt, answer, .. } => {
                let (prompt, answer) = (prompt.draw(rng), answer.draw(rng));
                let lot = rng.f64() * self.adapters.last().copied().unwrap_or(0.0);
                let adapter = self.adapters.partition_point(|sum| *sum < lot) as u32;
                Ask::of(&[(own, prompt + answer)], prompt, answer, Some(adapter))
            }
            Shape::Reuse { prompt, answer, again, recent } => {
                let (prompt, answer) = (prompt.draw(rng), answer.draw(rng));
                let mut text = Vec::new();
                if rng.f64() < again && !self.earlier.is_empty() {
                    // The longest of a few that fits: who comes back has said more each time.
                    let fits = |text: &&Vec<(u64, u32)>| text.last().is_some_and(|l| l.1 < prompt);
                    let some: Vec<usize> =
                        (0..4).map(|_| rng.usize(..self.earlier.len())).collect();
                    let longest = some.iter().filter_map(|at| self.earlier.get(*at)).filter(fits);
                    text = longest
                        .max_by_key(|text| text.last().map(|l| l.1))
                        .cloned()
                        .unwrap_or_default();
                }
                text.push((own, prompt + answer));
                let ask = Ask::of(&text, prompt, answer, None);
                if self.earlier.len() < recent as usize {
                    self.earlier.push(text);
                } else {
                    let at = self.rng.usize(..self.earlier.len());
                    self.earlier[at] = text;
                }
                ask
            }
        }
    }

    fn turn(&self, mut chat: Box<Chat>, prompt: u32) -> Ask {
        let Shape::Chat { system, answer, .. } = self.shape else { return Ask::default() };
        let answer = answer.draw(&mut chat.rng);
        let text = [(chat.system, system), (chat.seed, prompt + answer)];
        Ask { chat: Some(chat), ..Ask::of(&text, prompt, answer, None) }
    }
}

/// The requests that come by themselves, each with its time.
impl Iterator for Traffic {
    type Item = (u64, Ask);

    fn next(&mut self) -> Option<Self::Item> {
        let seconds = self.clock.next(&mut self.rng);
        if seconds >= self.end {
            return None;
        }
        let mut ask = self.make();
        ask.gateway = self.rng.u32(..self.gateways.max(1));
        Some(((seconds * SECOND as f64) as u64, ask))
    }
}

impl Ask {
    /// A request that shares nothing.
    fn alone(prompt: Length, answer: Length, rng: &mut Rng) -> Self {
        let (own, prompt, answer) = (rng.u64(..), prompt.draw(rng), answer.draw(rng));
        Self::of(&[(own, prompt + answer)], prompt, answer, None)
    }

    /// A request whose prompt and answer are these stretches of text, each up to where it says.
    fn of(text: &[(u64, u32)], prompt: u32, answer: u32, adapter: Option<u32>) -> Self {
        let (mut blocks, mut chain) = (Vec::new(), 0);
        let mut stretches = text.iter().peekable();
        for block in 1..=(prompt + answer) / BLOCK_TOKENS {
            let end = block * BLOCK_TOKENS;
            // A block has the text of every stretch that it touches.
            while let Some((seed, until)) = stretches.peek() {
                chain = mix(chain ^ seed, u64::from(block));
                if *until >= end {
                    break;
                }
                stretches.next();
            }
            blocks.push(chain);
        }
        let step = (KEY_TOKENS / BLOCK_TOKENS) as usize;
        let salt = adapter.map_or(0, |adapter| u64::from(adapter) + 1);
        let whole = (prompt / BLOCK_TOKENS) as usize;
        let keys = blocks.iter().take(whole).skip(step - 1).step_by(step);
        let keys = keys.map(|hash| mix(*hash, salt)).collect();
        Self { prompt, answer, blocks, keys, adapter, ..Self::default() }
    }
}

/// Folds `b` into `a`.
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x8ad8_72f1_5c0f_93a7) * u128::from(b ^ 0xe703_7ed1_a0b4_28db);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: Length = Length::Fixed(64);

    fn traffic(shape: Shape, seed: u64) -> Traffic {
        Traffic::new((shape, Arrivals::Poisson), 50.0, 10.0, 4, seed)
    }

    fn common(one: &[u64], two: &[u64]) -> usize {
        one.iter().zip(two).take_while(|(one, two)| one == two).count()
    }

    #[test]
    fn the_same_seed_makes_the_same_requests() {
        let shape = Shape::Plain { prompt: Length::Between(10, 900), answer: ANSWER };
        let all = |seed| {
            let traffic = traffic(shape, seed);
            let mut all = Vec::new();
            for (at, ask) in traffic {
                all.push((at, ask.prompt, ask.blocks, ask.gateway));
            }
            all
        };
        let first = all(1);
        assert_eq!(first, all(1));
        assert_ne!(first, all(2));
        assert!((400..600).contains(&first.len()), "{}", first.len());
        assert!(first.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        assert!(first.iter().all(|(_, prompt, blocks, gateway)| {
            blocks.len() as u32 == (prompt + 64) / 16 && *gateway < 4
        }));
    }

    #[test]
    fn a_group_shares_its_beginning_and_nothing_else() {
        let own = Length::Fixed(100);
        let traffic = traffic(Shape::Groups { groups: 2, shared: 1_000, own, answer: ANSWER }, 1);
        let asks: Vec<Ask> = traffic.map(|(_, ask)| ask).collect();
        let mut counts = [0; 2];
        for ask in &asks[1..] {
            let alike = common(&ask.blocks, &asks[0].blocks);
            assert!(alike == 0 || alike == 62, "{alike}");
            assert_eq!(common(&ask.keys, &asks[0].keys), alike / 4);
            counts[usize::from(alike > 0)] += 1;
        }
        assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
    }

    #[test]
    fn a_turn_goes_on_from_prompt_and_answer() {
        let (question, turns) = (Length::Between(10, 60), Length::Fixed(3));
        let shape =
            Shape::Chat { systems: 1, system: 320, turns, question, answer: ANSWER, pause: 2.0 };
        let mut traffic = traffic(shape, 5);
        let (at, mut first) = traffic.next().unwrap();
        let (next, mut second) = traffic.after(&mut first, at + 10).unwrap();
        assert!(next >= at + 10);
        assert_eq!(common(&first.blocks, &second.blocks), first.blocks.len());
        assert!(second.prompt > first.prompt + first.answer);
        let (_, mut third) = traffic.after(&mut second, next).unwrap();
        assert!(traffic.after(&mut third, next).is_none());
        let (_, other) = traffic.next().unwrap();
        assert_eq!(common(&first.blocks, &other.blocks), 20);
    }

    #[test]
    fn wanted_adapters_are_wanted_more() {
        let prompt = Length::Fixed(100);
        let traffic =
            traffic(Shape::Adapters { adapters: 10, skew: 1.0, prompt, answer: ANSWER }, 1);
        let mut counts = [0; 10];
        let mut keys = Vec::new();
        for (_, ask) in traffic {
            counts[ask.adapter.unwrap() as usize] += 1;
            keys.extend(ask.keys);
        }
        assert!(counts[0] > counts[4] && counts.iter().all(|count| *count > 0), "{counts:?}");
    }

    #[test]
    fn reuse_keeps_the_drawn_lengths() {
        let shape = Shape::Reuse {
            prompt: Length::Between(100, 5_000),
            answer: ANSWER,
            again: 0.6,
            recent: 50,
        };
        let traffic = traffic(shape, 1);
        let (mut seen, mut hits, mut all) = (std::collections::HashSet::new(), 0, 0);
        for (_, ask) in traffic {
            assert!((100..=5_000).contains(&ask.prompt));
            let prompt = &ask.blocks[..ask.prompt as usize / 16];
            hits += prompt.iter().take_while(|hash| seen.contains(*hash)).count();
            all += prompt.len();
            seen.extend(ask.blocks);
        }
        assert!((0.2..0.6).contains(&(hits as f64 / all as f64)), "{hits} of {all}");
    }
}
