use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Runs until idle; the events with their times.
fn run(engine: &mut Engine) -> Vec<(u64, Event)> {
    let (mut log, mut events) = (Vec::new(), Vec::new());
    while let Some(due) = engine.next() {
        engine.step(due, &mut events);
        log.extend(events.drain(..).map(|event| (due, event)));
        assert!(log.len() < 1_000_000, "it never ends");
    }
    log
}

fn token_times(log: &[(u64, Event)], of: u64) -> Vec<u64> {
    let token = |(at, event): &(u64, Event)| match event {
        Event::Token { id, .. } if *id == of => Some(*at),
        _ => None,
    };
    log.iter().filter_map(token).collect()
}

fn request(prompt_tokens: u32, max_tokens: u32) -> Request {
    Request { prompt_tokens, max_tokens, ..Request::default() }
}

/// As if the prompt were this many tokens of a text that `text` names.
fn text(text: u64, prompt_tokens: u32) -> Request {
    let blocks = (0..u64::from(prompt_tokens / BLOCK_TOKENS)).map(|at| text << 32 | at).collect();
    Request { blocks, ..request(prompt_tokens, 1) }
}

fn cached(log: &[(u64, Event)], of: u64) -> Option<u32> {
    log.iter().find_map(|(_, event)| match event {
        Event::Started { id, cached } if *id == of => Some(*cached),
        _ => None,
    })
}

/// Takes a microsecond for each prompt token and nothing else, so that steps show their prefill.
fn counting_gpu() -> Gpu {
    Gpu { prefill_per_s: 1_000_000, ..Gpu::named("instant").unwrap().clone() }
}

#[test]
fn an_idle_engine_follows_the_formula() {
    for gpu in Gpu::names().map(|name| Gpu::named(name).unwrap()).filter(|gpu| gpu.base_us > 0) {
        for prompt in [1, 100, 1_000] {
            let mut engine = Engine::new(gpu, Limits::of(gpu));
            let id = engine.submit(5, request(prompt, 3)).unwrap();
            let times = token_times(&run(&mut engine), id);
            let first = 5 + gpu.base_us + u64::from(prompt) * 1_000_000 / gpu.prefill_per_s;
            let each = gpu.decode_us + gpu.decode_per_seq_us;
            assert_eq!(times, [first, first + each, first + 2 * each], "{} {prompt}", gpu.name);
        }
    }
}

#[test]
fn a_batch_decodes_together() {
    let gpu = Gpu { base_us: 0, ..Gpu::default() };
    let mut engine = Engine::new(&gpu, Limits::of(&gpu));
    let ids: Vec<u64> = (0..10).map(|_| engine.submit(0, request(16, 5)).unwrap()).collect();
    let log = run(&mut engine);
    let first = token_times(&log, ids[0]);
    assert!(ids.iter().all(|id| token_times(&log, *id) == first));
    assert_eq!(first[1] - first[0], gpu.decode_us + 10 * gpu.decode_per_seq_us);
}

#[test]
fn a_long_prompt_does_not_stop_those_that_decode() {
    let gpu = Gpu { base_us: 0, ..Gpu::default() };
    let limits = Limits { max_num_batched_tokens: 1_000, ..Limits::of(&gpu) };
    let mut engine = Engine::new(&gpu, limits);
    let short = engine.submit(0, request(10, 40)).unwrap();
    let long = engine.submit(1, request(20_000, 1)).unwrap();
    let log = run(&mut engine);
    let until = token_times(&log, long)[0];
    let meanwhile = token_times(&log, short).iter().filter(|at| **at < until).count();
    assert_eq!(meanwhile, 21, "one a chunk, of 999 tokens beside its own");
}

#[test]
fn prompts_are_remembered_by_block() {
    let gpu = Gpu::default();
    let salted = |salt| Request { salt, ..text(1, 100) };
    let adapted = |adapter| Request { adapter: Some(adapter), ..text(1, 100) };
    for (what, first, second, expected) in [
        ("the same", text(1, 100), text(1, 100), 96),
        ("the last token is computed", text(1, 96), text(1, 96), 80),
        ("a longer one", text(1, 40), text(1, 100), 32),
        ("another", text(1, 100), text(2, 100), 0),
        ("another salt", salted(1), salted(2), 0),
        ("the same salt", salted(1), salted(1), 96),
        ("another adapter", adapted(0), adapted(1), 0),
        ("adapter and base", adapted(0), text(1, 100), 0),
    ] {
        let mut engine = Engine::new(&gpu, Limits::of(&gpu));
        let ids = [first.clone(), second.clone()].map(|r| {
            let id = engine.submit(0, r).unwrap();
            (id, run(&mut engine))
        });
        assert_eq!(cached(&ids[1].1, ids[1].0), Some(expected), "{what}");
        assert_eq!(engine.counters().prefix_hits, u64::from(expected), "{what}");

        let limits = Limits { prefix_caching: false, ..Limits::of(&gpu) };
        let mut engine = Engine::new(&gpu, limits);
        for request in [first, second] {
            engine.submit(0, request).unwrap();
        }
        run(&mut engine);
        assert_eq!(engine.counters().prefix_hits, 0, "{what}, off");
    }
}

#[test]
fn an_answer_that_comes_back_is_remembered() {
    let gpu = Gpu::default();
    let mut engine = Engine::new(&gpu, Limits::of(&gpu));
    engine.submit(0, Request { prompt_tokens: 40, max_tokens: 60, ..text(1, 96) }).unwrap();
    run(&mut engine);
    let id = engine.submit(0, text(1, 120)).unwrap();
    // 99 tokens were computed: the last one of an answer never is.
    assert_eq!(cached(&run(&mut engine), id), Some(96));
}

#[test]
fn a_full_cache_preempts_the_newest_and_all_finish() {
    let gpu = counting_gpu();
    let limits = Limits { kv_blocks: 8, max_num_seqs: 3, ..Limits::of(&gpu) };
    let mut engine = Engine::new(&gpu, limits);
    let ids = [0; 4].map(|_| engine.submit(0, request(16, 100)).unwrap());
    let mut events = Vec::new();
    while !matches!(events.last(), Some(Event::Preempted { .. })) {
        let due = engine.next().unwrap();
        engine.step(due, &mut events);
    }
    assert_eq!(events.last(), Some(&Event::Preempted { id: ids[2] }));
    let waiting: Vec<u64> = engine.waiting.iter().map(|sequence| sequence.id).collect();
    assert_eq!(waiting, [ids[2], ids[3]], "before those that came later");
    events.extend(run(&mut engine).into_iter().map(|(_, event)| event));
    for id in ids {
        let tokens =
            events.iter().filter(|e| matches!(e, Event::Token { id: of, .. } if *of == id));
        assert_eq!(tokens.count(), 100);
    }
    assert_eq!(engine.kv().used(), 0);
}

#[test]
fn an_adapter_without_a_slot_waits_and_lets_others_pass() {
    let gpu = Gpu { base_us: 0, ..Gpu::default() };
    let mut engine = Engine::new(&gpu, Limits { max_loras: 1, ..Limits::of(&gpu) });
    let mut submit = |adapter| {
        let request = Request { adapter, ..request(16, 4) };
        engine.submit(0, request).unwrap()
    };
    let (a, b, base, again) = (submit(Some(7)), submit(Some(8)), submit(None), submit(Some(7)));
    let mut events = Vec::new();
    engine.step(0, &mut events);
    assert_eq!(engine.adapters(), (vec![7], vec![8]));
    assert_eq!((engine.running(), engine.waiting(), engine.slots()), (3, 1, &[7][..]));
    let log = run(&mut engine);
    let first = |id| token_times(&log, id)[0];
    assert_eq!(first(a), gpu.lora_load_us + 48 * 1_000_000 / gpu.prefill_per_s);
    assert_eq!((first(a), first(a)), (first(base), first(again)));
    assert!(first(b) > *token_times(&log, a).last().unwrap());
    assert_eq!((engine.counters().lora_loads, engine.slots()), (2, &[8][..]));
    assert_eq!(engine.adapters(), (vec![], vec![]));
}

#[test]
fn what_can_never_run_is_rejected() {
    let gpu = Gpu::default();
    let limits = Limits { max_model_len: 1_000, kv_blocks: 50, max_loras: 0, ..Limits::of(&gpu) };
    let mut engine = Engine::new(&gpu, limits);
    assert_eq!(engine.submit(0, request(700, 101)), Err(Rejected::TooLong(800)));
    assert_eq!(engine.submit(0, request(u32::MAX, u32::MAX)), Err(Rejected::TooLong(800)));
    let adapted = Request { adapter: Some(0), ..request(1, 1) };
    assert_eq!(engine.submit(0, adapted), Err(Rejected::NoAdapters));
    assert_eq!((engine.live(), engine.next()), (0, None));
    assert!(engine.submit(0, request(700, 100)).is_ok());
}

#[test]
fn abort_frees_at_every_stage() {
    let gpu = Gpu { max_num_seqs: 1, ..Gpu::default() };
    for steps in 0..4 {
        let mut engine = Engine::new(&gpu, Limits::of(&gpu));
        let ids = [100, 200].map(|prompt| engine.submit(0, request(prompt, 50)).unwrap());
        for _ in 0..steps {
            let due = engine.next().unwrap();
            engine.step(due, &mut Vec::new());
        }
        for id in ids {
            assert!(engine.abort(id) && !engine.abort(id));
        }
        assert_eq!((engine.live(), engine.kv().used()), (0, 0), "{steps}");
        assert_eq!((run(&mut engine).len(), engine.counters().aborted), (0, 2));
    }
}

#[test]
fn embeddings_finish_without_a_token() {
    let mut engine = Engine::new(&counting_gpu(), Limits::of(&counting_gpu()));
    let id = engine.submit(0, request(100, 0)).unwrap();
    let log = run(&mut engine);
    assert_eq!(log.last(), Some(&(100, Event::Finished { id })));
    assert_eq!(engine.counters().generation_tokens, 0);
}

/// What happens to an engine in a generated run.
#[derive(Clone, Debug)]
enum Act {
    Submit { prompt: u32, tokens: u32, text: u64, adapter: Option<u32> },
    Steps(u8),
    Abort(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let adapter = prop::option::of(0..4_u32);
    prop_oneof![
        4 => (1..400_u32, 0..60_u32, 0..3_u64, adapter).prop_map(
            |(prompt, tokens, text, adapter)| Act::Submit { prompt, tokens, text, adapter }
        ),
        2 => (1..20_u8).prop_map(Act::Steps),
        1 => any::<usize>().prop_map(Act::Abort),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    (1..8_u32, 1..300_u32, 8..64_u32, 0..3_u32, any::<bool>()).prop_map(
        |(max_num_seqs, max_num_batched_tokens, kv_blocks, max_loras, prefix_caching)| Limits {
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len: 1_000,
            kv_blocks,
            prefix_caching,
            max_loras,
        },
    )
}

/// An engine, and what a caller knows of its requests.
struct Checked {
    engine: Engine,
    /// Tokens wanted and seen of each request that is not done.
    open: HashMap<u64, (u32, u32)>,
    finished: u64,
    log: Vec<(u64, Event)>,
}

impl Checked {
    fn step(&mut self) -> bool {
        let Some(due) = self.engine.next() else { return false };
        let mut events = Vec::new();
        self.engine.step(due, &mut events);
        for event in &events {
            match event {
                Event::Token { id, count } => {
                    let (wanted, seen) = self.open.get_mut(id).expect("a token of an open request");
                    *seen += 1;
                    assert!(seen == count && seen <= wanted);
                }
                Event::Finished { id } => {
                    let (wanted, seen) = self.open.remove(id).expect("finished once");
                    assert_eq!(wanted, seen);
                    self.finished += 1;
                }
                Event::Started { id, .. } | Event::Preempted { id } => {
                    assert!(self.open.contains_key(id));
                }
            }
        }
        self.log.extend(events.into_iter().map(|event| (due, event)));
        let limits = *self.engine.limits();
        assert!(self.engine.running() <= limits.max_num_seqs as usize);
        assert!(self.engine.kv().used() <= limits.kv_blocks);
        assert!(self.engine.slots().len() <= limits.max_loras as usize);
        let (batch, _) = self.engine.adapters();
        assert!(batch.iter().all(|adapter| self.engine.slots().contains(adapter)));
        if self.engine.running() > 0 {
            let length = self.engine.next().expect("a step is under way") - due;
            assert!(length <= u64::from(limits.max_num_batched_tokens));
        }
        for sequence in &self.engine.running {
            let room = sequence.blocks.len() * BLOCK_TOKENS as usize;
            assert!(room >= (sequence.computed + sequence.scheduled) as usize);
        }
        assert_eq!(self.engine.live(), self.open.len());
        true
    }
}

fn play(limits: Limits, acts: &[Act]) -> Vec<(u64, Event)> {
    let gpu = Gpu { lora_load_us: 0, ..counting_gpu() };
    let engine = Engine::new(&gpu, limits);
    let mut run = Checked { engine, open: HashMap::new(), finished: 0, log: Vec::new() };
    let mut submitted = Vec::new();
    let mut now = 0;
    for act in acts {
        match *act {
            Act::Submit { prompt, tokens, text: name, adapter } => {
                now = now.max(run.log.last().map_or(0, |(at, _)| *at));
                let request = Request { max_tokens: tokens, adapter, ..text(name, prompt) };
                if let Ok(id) = run.engine.submit(now, request) {
                    run.open.insert(id, (tokens, 0));
                    submitted.push(id);
                }
            }
            Act::Steps(steps) => {
                for _ in 0..steps {
                    run.step();
                }
            }
            Act::Abort(which) => {
                let Some(id) = submitted.get(which % submitted.len().max(1)) else { continue };
                assert_eq!(run.engine.abort(*id), run.open.remove(id).is_some());
            }
        }
    }
    while run.step() {
        assert!(run.log.len() < 1_000_000, "it never ends");
    }
    assert!(run.open.is_empty());
    assert_eq!((run.engine.kv().used(), run.engine.live()), (0, 0));
    assert_eq!(run.engine.counters().finished, run.finished);
    run.log
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn limits_hold_and_all_requests_finish(
        limits in limits(),
        acts in prop::collection::vec(act(), 1..60),
    ) {
        let log = play(limits, &acts);
        prop_assert_eq!(log, play(limits, &acts), "the same acts, another run");
    }
}
