//! What requests and scrapes make of a pod, step by step; time is passed in.

use std::io::ErrorKind;

use super::*;
use crate::metrics::{Build, Metrics};
use crate::observe::models::Adapter;
use crate::observe::{Cause, Failure, Models, Question, Reading};
use crate::schedule::Signals;

/// A pool of `count` pods, with further lines of its scheduler.
pub(crate) fn pool(count: u16, lines: &str) -> Pool {
    let pods: Vec<String> = (1..=count).map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    let text = format!(
        "apiVersion: gateway.sluice.dev/v1alpha1\nkind: InferenceGatewayConfig\n\
         metadata: {{name: test}}\nspec:\n  schedulers:\n  - name: pool\n    modelName: base\n    \
         pods: [{}]\n{lines}",
        pods.join(", ")
    );
    let config = crate::config::parse(&text, "test.yaml").unwrap().config;
    let scheduler = &config.schedulers[0];
    let metrics = Metrics::new(Build { version: "0", revision: "0" }, Vec::new);
    Pool::new(scheduler, Settings::new(scheduler, None), metrics.pool("pool"), 7, None)
}

/// An idle vLLM.
fn idle() -> Reading {
    let signals =
        Signals { kv_usage: Some(0.0), waiting: Some(0), running: Some(0), ..Signals::default() };
    Reading { engine: EngineKind::Vllm, signals, ..Reading::default() }
}

fn failure(cause: Cause) -> Failure {
    Failure { question: Question::Metrics, cause }
}

fn status(pool: &Pool, number: usize, now: Instant) -> PodStatus {
    pool.status(now).swap_remove(number)
}

fn ready(pool: &Pool, number: usize, now: Instant) -> bool {
    status(pool, number, now).view.ready
}

fn id(pool: &Pool, number: usize) -> PodId {
    pool.pods()[number].id
}

/// A pick for a request without an adapter.
fn pick(pool: &Pool, now: Instant) -> Result<Place, NoPod> {
    pool.reserve(Ask::default(), now)
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn scrapes_put_a_pod_out_and_bring_it_back() {
    // The causes of scrapes one after the other, none for an answer; and whether the pod is ready
    // behind them.
    let silent = Some(Cause::Timeout);
    let broken = Some(Cause::Broken);
    let refused = Some(Cause::Refused);
    let page = Some(Cause::Status(500));
    let table: [(&str, &[Option<Cause>], bool); 11] = [
        ("never asked", &[], true),
        ("one silence", &[silent], true),
        ("two", &[silent, silent], true),
        ("three", &[silent, silent, silent], false),
        ("mixed", &[silent, broken, Some(Cause::Unreachable(ErrorKind::HostUnreachable))], false),
        ("an answer between", &[silent, silent, None, silent, silent], true),
        ("an error page between", &[silent, silent, page, silent, silent], true),
        ("refused", &[refused], false),
        ("refused and back", &[refused, None], true),
        ("silent and back with an error page", &[silent, silent, silent, page], true),
        ("refused, then silent", &[refused, silent], false),
    ];
    for (name, causes, expected) in table {
        let pool = pool(1, "");
        let now = Instant::now();
        for cause in causes {
            match cause {
                None => {
                    pool.observed(id(&pool, 0), idle(), now);
                }
                Some(cause) => {
                    pool.unobserved(id(&pool, 0), &failure(*cause), now);
                }
            }
        }
        assert_eq!(ready(&pool, 0, now), expected, "{name}");
        assert_eq!(pool.ready(now), expected, "{name}");
        let is_well = matches!(causes.last(), None | Some(None));
        assert_eq!(status(&pool, 0, now).trouble.is_none(), is_well, "{name}");
    }
}

#[test]
fn what_choosing_a_pod_lacks() {
    let mute = Reading {
        engine: EngineKind::Vllm,
        signals: Signals { running: Some(0), ..Signals::default() },
        ..Reading::default()
    };
    let asleep = Reading { asleep: true, ..idle() };
    let unknown = Reading { engine: EngineKind::Unknown, ..idle() };
    let page = "cannot read the pod's metrics: it answered with HTTP status 500";
    let mute_says = "vllm does not tell how full its KV cache is, how many requests wait";
    let failed = || Err(Cause::Status(500));
    for (what, answers, later, expected) in [
        ("not asked yet", vec![], Duration::ZERO, None),
        ("all told", vec![Ok(idle())], Duration::ZERO, None),
        ("an old server", vec![Ok(mute)], Duration::ZERO, Some(mute_says)),
        ("asleep", vec![Ok(asleep)], Duration::from_secs(600), None),
        (
            "another page",
            vec![Ok(unknown)],
            Duration::ZERO,
            Some("its metrics are of no known model server"),
        ),
        ("an error", vec![failed()], Duration::ZERO, Some(page)),
        ("an error after an answer", vec![Ok(idle()), failed()], Duration::ZERO, Some(page)),
        ("an answer after an error", vec![failed(), Ok(idle())], Duration::ZERO, None),
        ("one silence", vec![Ok(idle()), Err(Cause::Timeout)], Duration::ZERO, None),
        (
            "long silence",
            vec![Ok(idle()), Err(Cause::Timeout)],
            Duration::from_secs(600),
            Some("cannot read the pod's metrics: no whole answer in time"),
        ),
    ] {
        let pool = pool(1, "");
        let now = Instant::now();
        for answer in answers {
            match answer {
                Ok(reading) => drop(pool.observed(id(&pool, 0), reading, now)),
                Err(cause) => drop(pool.unobserved(id(&pool, 0), &failure(cause), now)),
            }
        }
        assert_eq!(status(&pool, 0, now + later).lacks.as_deref(), expected, "{what}");
    }
}

#[test]
fn what_a_pod_told_is_forgotten_when_it_tells_nonsense() {
    let pool = pool(1, "");
    let now = Instant::now();
    for (cause, is_known) in
        [(Cause::Status(500), false), (Cause::Refused, false), (Cause::Timeout, true)]
    {
        pool.observed(id(&pool, 0), idle(), now);
        assert!(status(&pool, 0, now).view.age.is_some());
        pool.unobserved(id(&pool, 0), &failure(cause), now);
        // Silence only makes it older.
        assert_eq!(status(&pool, 0, now + 5 * MS).view.age.is_some(), is_known, "{cause:?}");
    }
    // A page of metrics that nobody knows is no signal.
    pool.observed(id(&pool, 0), Reading { engine: EngineKind::Unknown, ..idle() }, now);
    assert_eq!(status(&pool, 0, now).view.age, None);
}

#[test]
fn a_sleeping_engine_is_not_ready() {
    let pool = pool(1, "");
    let now = Instant::now();
    pool.observed(id(&pool, 0), Reading { asleep: true, ..idle() }, now);
    assert_eq!(pick(&pool, now).map(|_| ()), Err(NoPod::Empty));
    pool.observed(id(&pool, 0), idle(), now);
    assert!(pick(&pool, now).is_ok());
}

#[test]
fn pauses_double_only_from_one_to_the_next() {
    let pool = pool(1, "");
    let mut now = Instant::now();
    for pause in [500, 1000, 2000, 4000, 8000, 10_000, 10_000] {
        // Requests that were under way together are one failure.
        for _ in 0..50 {
            pool.eject(id(&pool, 0), "gone", false, now);
        }
        assert!(!ready(&pool, 0, now + (pause - 1) * MS), "{pause}");
        now += pause * MS;
        assert!(ready(&pool, 0, now), "{pause}");
    }
    assert_eq!(pool.pods()[0].failures(), 350);
    // Once it has served, the count begins anew.
    pool.served(id(&pool, 0), now, now);
    pool.eject(id(&pool, 0), "gone", false, now);
    assert!(ready(&pool, 0, now + 500 * MS));
}

#[test]
fn a_scrape_brings_back_what_did_not_listen_and_not_what_refuses() {
    for (silent, back) in [(true, true), (false, false)] {
        let pool = pool(1, "");
        let now = Instant::now();
        pool.eject(id(&pool, 0), "why", silent, now);
        assert_eq!(pool.observed(id(&pool, 0), idle(), now + MS), back);
        assert_eq!(ready(&pool, 0, now + MS), back);
        // As long as it is out, /status says why.
        let trouble = status(&pool, 0, now + MS).trouble;
        assert_eq!(
            trouble.is_some_and(|trouble| trouble.starts_with("why; no requests for")),
            !back
        );
        pool.observed(id(&pool, 0), idle(), now + 600 * MS);
        assert!(ready(&pool, 0, now + 600 * MS));
        assert_eq!(status(&pool, 0, now + 600 * MS).trouble, None);
    }
}

#[test]
fn only_a_newer_request_shows_that_a_pod_serves_again() {
    let pool = pool(1, "");
    let start = Instant::now();
    let out: [fn(&Pool, Instant); 2] = [
        |pool, now| pool.eject(id(pool, 0), "draining", false, now),
        |pool, now| {
            pool.unobserved(id(pool, 0), &failure(Cause::Refused), now);
        },
    ];
    for put_out in out {
        put_out(&pool, start + 10 * MS);
        // Taken before it began to drain, and answered only now.
        pool.served(id(&pool, 0), start + 9 * MS, start + 20 * MS);
        assert!(!ready(&pool, 0, start + 20 * MS));
        pool.served(id(&pool, 0), start + 11 * MS, start + 20 * MS);
        assert!(ready(&pool, 0, start + 20 * MS));
        assert_eq!(status(&pool, 0, start + 20 * MS).trouble, None);
    }
}

#[test]
fn a_failed_request_does_not_shorten_what_a_scrape_has_found() {
    let pool = pool(1, "");
    let now = Instant::now();
    pool.unobserved(id(&pool, 0), &failure(Cause::Refused), now);
    pool.eject(id(&pool, 0), "connecting failed", true, now);
    assert!(!ready(&pool, 0, now + 3600 * 1000 * MS));
}

#[test]
fn a_pod_that_comes_back_gets_its_share_bit_by_bit() {
    let second = Duration::from_secs(1);
    let start = Instant::now();
    let share = |pool: &Pool, now| status(pool, 1, now).view.share;
    // From one that has always been there, whether it was asleep, down, or put out by a request.
    type Step = fn(&Pool, Instant);
    let asleep = |pool: &Pool, now| {
        pool.observed(id(pool, 1), Reading { asleep: true, ..idle() }, now);
    };
    let down = |pool: &Pool, now| {
        pool.unobserved(id(pool, 1), &failure(Cause::Refused), now);
    };
    let ejected = |pool: &Pool, now| pool.eject(id(pool, 1), "why", false, now);
    let told = |pool: &Pool, now| {
        pool.observed(id(pool, 1), idle(), now);
    };
    let served = |pool: &Pool, now| pool.served(id(pool, 1), now, now);
    // How it goes out, what happens after 5 s, and how long it has been back then.
    let table: [(&str, Step, Step, Duration); 4] = [
        ("asleep", asleep, told, Duration::ZERO),
        ("down", down, told, Duration::ZERO),
        // Tried again after half a second.
        ("put out", ejected, told, 4500 * MS),
        ("put out, and has served", ejected, served, 4500 * MS),
    ];
    for (name, out, back, already) in table {
        let pool = pool(2, "    weights: {queue: 2}");
        for number in 0..2 {
            pool.observed(id(&pool, number), idle(), start);
        }
        assert_eq!(share(&pool, start), None, "{name}: it was never out");
        out(&pool, start);
        let now = start + 5 * second;
        pool.observed(id(&pool, 0), idle(), now);
        back(&pool, now);
        assert_eq!(share(&pool, now), schedule::ramp::share(Some(already)), "{name}");
        assert!(share(&pool, now).is_some_and(|share| share < 0.5), "{name}");
        // It has nothing in flight, and gets one request; the others go to the one that is busy.
        let places: Vec<_> = (0..4).map(|_| pick(&pool, now).unwrap()).collect();
        let given = |number| places.iter().filter(|of| of.pod.id == id(&pool, number)).count();
        assert!(given(1) <= 2, "{name}: {}", given(1));
        assert!(given(0) >= 2, "{name}");
        let settled = now + 10 * second;
        assert_eq!(share(&pool, settled), None, "{name}");
    }
}

#[test]
fn pods_that_are_all_just_back_take_everything() {
    let pool = pool(2, "");
    let now = Instant::now();
    for number in 0..2 {
        pool.unobserved(id(&pool, number), &failure(Cause::Refused), now);
        pool.observed(id(&pool, number), idle(), now);
    }
    let places: Vec<_> = (0..40).map(|_| pick(&pool, now).unwrap()).collect();
    for number in 0..2 {
        let given = places.iter().filter(|of| of.pod.id == id(&pool, number)).count();
        assert!(given >= 10, "{number}: {given}");
    }
}

#[test]
fn three_broken_requests_in_a_row_put_a_pod_out_unless_it_is_the_last() {
    let pool = pool(2, "");
    let now = Instant::now();
    let broke = |number, times: u32| {
        for _ in 0..times {
            pool.broke(id(&pool, number), "it closed", now);
        }
    };
    broke(0, 2);
    pool.served(id(&pool, 0), now, now);
    broke(0, 2);
    assert!(ready(&pool, 0, now), "two in a row, twice");
    broke(0, 1);
    assert!(!ready(&pool, 0, now));
    let trouble = status(&pool, 0, now).trouble.unwrap();
    assert!(trouble.starts_with("3 requests in a row failed: it closed"), "{trouble}");
    // There is nothing better than the other one.
    broke(1, 20);
    assert!(ready(&pool, 1, now));
    assert_eq!(pool.pods()[1].failures(), 20);
}

#[test]
fn silent_pods_are_the_last_resort() {
    let pool = pool(3, "");
    let now = Instant::now();
    for _ in 0..3 {
        pool.unobserved(id(&pool, 0), &failure(Cause::Timeout), now);
    }
    pool.unobserved(id(&pool, 1), &failure(Cause::Refused), now);
    pool.observed(id(&pool, 2), idle(), now);
    for _ in 0..20 {
        assert_eq!(pick(&pool, now).unwrap().pod.id, id(&pool, 2));
    }
    pool.unobserved(id(&pool, 2), &failure(Cause::Refused), now);
    for _ in 0..20 {
        assert_eq!(
            pick(&pool, now).unwrap().pod.id,
            id(&pool, 0),
            "the only one that may be alive"
        );
    }
    assert!(!pool.ready(now), "but it is not what the gateway calls ready");
    let tried = [id(&pool, 0)];
    let again = pool.reserve(Ask { tried: &tried, ..Ask::default() }, now);
    assert_eq!(again.map(|_| ()), Err(NoPod::Exhausted));
}

#[test]
fn metrics_of_another_port_say_nothing_of_the_pod() {
    let pool = pool(1, "    metrics: {port: 9000}");
    let now = Instant::now();
    for _ in 0..5 {
        pool.unobserved(id(&pool, 0), &failure(Cause::Refused), now);
        pool.unobserved(id(&pool, 0), &failure(Cause::Timeout), now);
    }
    assert!(ready(&pool, 0, now));
    pool.eject(id(&pool, 0), "connecting failed", true, now);
    pool.observed(id(&pool, 0), idle(), now);
    assert!(!ready(&pool, 0, now));
}

#[test]
fn a_place_is_given_back_when_dropped() {
    let pool = pool(2, "    saturation: {inFlight: 2}");
    let now = Instant::now();
    let mut places: Vec<Place> = (0..4).map(|_| pick(&pool, now).unwrap()).collect();
    let in_flight = || pool.pods().iter().map(|pod| pod.in_flight()).collect::<Vec<_>>();
    assert_eq!(in_flight(), [2, 2]);
    assert_eq!(pick(&pool, now).map(|_| ()), Err(NoPod::Saturated));
    let freed = places.swap_remove(1).pod.id;
    let place = pick(&pool, now).unwrap();
    assert_eq!(place.pod.id, freed);
    drop((place, places));
    assert_eq!(in_flight(), [0, 0]);
    assert_eq!(pool.pods().iter().map(|pod| pod.requests()).sum::<u64>(), 5);
}

#[test]
fn many_threads_leave_nothing_in_flight() {
    let pool = pool(4, "    saturation: {inFlight: 3}");
    let now = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let places: Vec<_> = (0..4).map_while(|_| pick(&pool, now).ok()).collect();
                    assert!(pool.pods().iter().all(|pod| pod.in_flight() <= 3));
                    drop(places);
                }
            });
        }
    });
    assert!(pool.pods().iter().all(|pod| pod.in_flight() == 0));
}

#[test]
fn adapters_lead_to_where_they_are() {
    let pool = pool(3, "");
    let now = Instant::now();
    let models = |names: &[&str]| {
        let adapter = |name: &&str| Adapter { id: (*name).into(), parent: "base".into() };
        Models { adapters: names.iter().map(adapter).collect(), ..Models::default() }
    };
    for number in 0..3 {
        pool.observed(id(&pool, number), idle(), now);
    }
    assert!(pool.listed(id(&pool, 1), &models(&["sql"])));
    assert!(!pool.listed(id(&pool, 1), &models(&["sql"])), "nothing new");
    let ask = |tried: &[PodId]| {
        pool.reserve(Ask { adapter: Some("sql"), tried, ..Ask::default() }, now)
            .map(|place| place.pod.id)
    };
    assert_eq!(ask(&[]), Ok(id(&pool, 1)));
    // In use elsewhere, though not listed: in GPU memory is better still.
    let active = Reading { adapters_active: vec!["sql".into()], ..idle() };
    pool.observed(id(&pool, 2), active, now);
    assert_eq!(ask(&[]), Ok(id(&pool, 2)));
    assert_eq!(ask(&[id(&pool, 2)]), Ok(id(&pool, 1)));
    assert_eq!(ask(&[id(&pool, 2), id(&pool, 1)]), Ok(id(&pool, 0)));
    assert_eq!(pool.loaded_adapters(), [Arc::from("sql")]);
    assert_eq!(status(&pool, 2, now).adapters, [Arc::from("sql")]);
    // They go with the process.
    pool.unobserved(id(&pool, 1), &failure(Cause::Refused), now);
    assert!(pool.loaded_adapters().is_empty());
    // A pod that does not list its models has not lost them.
    pool.listed(id(&pool, 0), &models(&["sql"]));
    let unlisted = Failure { question: Question::Models, cause: Cause::Status(500) };
    assert!(!pool.unobserved(id(&pool, 0), &unlisted, now).reach);
    assert_eq!(pool.loaded_adapters(), [Arc::from("sql")]);
    assert!(ready(&pool, 0, now) && status(&pool, 0, now).trouble.is_none());
}

#[test]
fn a_pod_that_left_the_pool_may_still_report() {
    let pool = pool(1, "");
    let other = id(&super::tests::pool(1, ""), 0);
    let now = Instant::now();
    assert!(!pool.observed(other, idle(), now));
    pool.eject(other, "gone", true, now);
    pool.broke(other, "gone", now);
    pool.served(other, now, now);
    assert!(ready(&pool, 0, now));
}

#[test]
fn one_fast_answer_does_not_draw_requests_to_a_busier_pod() {
    let pool = pool(2, "");
    let mut now = Instant::now();
    let busy =
        Signals { kv_usage: Some(0.5), waiting: Some(4), running: Some(4), ..idle().signals };
    let scrape = |now| {
        pool.observed(id(&pool, 0), idle(), now);
        pool.observed(id(&pool, 1), Reading { signals: busy, ..idle() }, now);
    };
    scrape(now);
    let ask = Ask { stream: true, ..Ask::default() };
    for _ in 0..20 {
        let place = pool.reserve(ask, now).unwrap();
        assert_eq!(place.pod.id, id(&pool, 0));
        // It fails there, and is answered at once by the other.
        let tried = [place.pod.id];
        let other = pool.reserve(Ask { tried: &tried, ..ask }, now).unwrap();
        drop(place);
        other.began(now + MS);
        let last_received = Some(now + MS);
        other.end(Answered { prompt_tokens: None, output_tokens: Some(1), last_received });
        now += 4 * MS;
        scrape(now);
    }
}

/// A prompt of about so many tokens, read as a request's would be.
fn prompt(pool: &Pool, tokens: usize, seed: &str) -> Prompt {
    let body = format!("{{\"prompt\": \"{}\"}}", seed.repeat(tokens * 4 / seed.len()));
    let mut scanner = crate::request::scan::Scanner::new();
    scanner.feed(body.as_bytes()).unwrap();
    pool.read_prompt(body.as_bytes(), &scanner.finish().unwrap().prompt, None)
}

/// Tokens of the prompt that each pod is thought to have.
fn cached(pool: &Pool, prompt: &Prompt, now: Instant) -> Vec<u32> {
    let ask = Ask { prompt, ..Ask::default() };
    pool.explain(ask, now).iter().map(|status| status.view.cached_tokens).collect()
}

#[test]
fn a_prompt_goes_where_it_has_been_computed() {
    let pool = pool(4, "");
    let now = Instant::now();
    for number in 0..4 {
        pool.observed(id(&pool, number), idle(), now);
    }
    let long = prompt(&pool, 4000, "once upon a time ");
    let ask = Ask { prompt: &long, ..Ask::default() };
    let first = pool.reserve(ask, now).unwrap();
    let pod = first.pod.id;
    // Nothing is there before it has been sent.
    assert_eq!(cached(&pool, &long, now), [0; 4]);
    first.sent(&long);
    drop(first);
    let expected: Vec<bool> = pool.pods().iter().map(|of| of.id == pod).collect();
    let found: Vec<bool> =
        cached(&pool, &long, now).iter().map(|tokens| (3900..4000).contains(tokens)).collect();
    assert_eq!(found, expected);
    assert_eq!(pool.reserve(ask, now).unwrap().pod.id, pod);
    // Another prompt has nothing there, and a part of this one has a part.
    assert_eq!(cached(&pool, &prompt(&pool, 4000, "another one "), now), [0; 4]);
    let half = prompt(&pool, 2000, "once upon a time ");
    assert!(cached(&pool, &half, now).iter().any(|tokens| (1900..2000).contains(tokens)));
}

#[test]
fn picker_report_16_what_a_pod_has_cached_is_forgotten_with_it() {
    let now = Instant::now();
    let table = [
        ("asleep", Ok(Reading { asleep: true, ..idle() }), 0..=0),
        ("gone", Err(Cause::Refused), 0..=0),
        ("silent once", Err(Cause::Timeout), 3900..=3999),
        // The last blocks go first: those ahead are of use without them.
        ("a smaller cache", Ok(Reading { kv_tokens: Some(640), ..idle() }), 640..=640),
        ("blocks of another size", Ok(Reading { block_size: Some(256), ..idle() }), 0..=0),
    ];
    for (name, event, expected) in table {
        let pool = pool(1, "");
        pool.observed(id(&pool, 0), idle(), now);
        let look = || prompt(&pool, 4000, "once upon a time ");
        let long = look();
        pool.reserve(Ask { prompt: &long, ..Ask::default() }, now).unwrap().sent(&long);
        assert!((3900..4000).contains(&cached(&pool, &long, now)[0]), "{name}");
        match event {
            Ok(reading) => {
                pool.observed(id(&pool, 0), reading, now);
            }
            Err(cause) => {
                pool.unobserved(id(&pool, 0), &failure(cause), now);
            }
        }
        let long = look();
        let left = cached(&pool, &long, now)[0];
        assert!(expected.contains(&left), "{name}: {left}");
    }
}

#[test]
fn what_pods_count_is_not_what_is_guessed() {
    let now = Instant::now();
    let events = "    kvEvents: {port: 5557}\n";
    for (numerator, denominator) in [(995, 1000), (2, 1), (1, 4)] {
        let pool = pool(1, events);
        let reading = Reading { kv_tokens: Some(200_000), ..idle() };
        pool.observed(id(&pool, 0), reading.clone(), now);
        let short = prompt(&pool, 400, "to be counted ");
        let counted = |guessed: u64| guessed * numerator / denominator;
        let place = pool.reserve(Ask { prompt: &short, ..Ask::default() }, now).unwrap();
        let prompt_tokens = Some(counted(short.tokens));
        place.end(Answered { prompt_tokens, output_tokens: Some(1), last_received: Some(now) });
        pool.observed(id(&pool, 0), reading, now);
        // All of it is cached, whatever it is counted as.
        let whole = prompt(&pool, 90_000, "once upon a time ");
        pool.reserve(Ask { prompt: &whole, ..Ask::default() }, now).unwrap().sent(&whole);
        let found = u64::from(cached(&pool, &whole, now)[0]);
        let (tokens, block) = (counted(whole.tokens), counted(64) + 2);
        assert!((tokens - block..=tokens).contains(&found), "{found} of {tokens}");
        // The cache is so large by the pods' count.
        for number in 0..100 {
            let other = prompt(&pool, 20_000, &format!("the story of number {number}. "));
            pool.reserve(Ask { prompt: &other, ..Ask::default() }, now).unwrap().sent(&other);
        }
        let entries = |pool: &Pool| pool.metrics.prefix_usage().unwrap().entries as u64;
        let expected = 200_000 * denominator / numerator / 64;
        let found = entries(&pool);
        assert!((expected * 9 / 10..=expected).contains(&found), "{found}, not {expected}");
        // And so is what a pod says that it holds.
        let (share, _) = pool.cache_of(id(&pool, 0)).unwrap();
        share.holds(20_000);
        let found = entries(&pool);
        assert!(
            (expected / 10..=expected * 2 / 10).contains(&found),
            "{found}, not {expected} / 10"
        );
    }
}

#[test]
fn the_index_is_counted_and_stays_small() {
    let pool = pool(2, "");
    let now = Instant::now();
    pool.observed(id(&pool, 0), Reading { kv_tokens: Some(64_000), ..idle() }, now);
    pool.observed(id(&pool, 1), Reading { kv_tokens: Some(64_000), ..idle() }, now);
    for number in 0..300 {
        let long = prompt(&pool, 4000, &format!("the story of number {number}. "));
        let ask = Ask { prompt: &long, ..Ask::default() };
        pool.reserve(ask, now).unwrap().sent(&long);
    }
    let usage = pool.metrics.prefix_usage().unwrap();
    assert!((1800..=2000).contains(&usage.entries), "{}", usage.entries);
    assert!(usage.bytes < 300_000, "{}", usage.bytes);
}

#[test]
fn what_a_pod_refused_is_not_in_its_cache() {
    let pool = pool(1, "");
    let now = Instant::now();
    pool.observed(id(&pool, 0), Reading { kv_tokens: Some(64_000), ..idle() }, now);
    let half = prompt(&pool, 2000, "once upon a time ");
    let long = prompt(&pool, 4000, "once upon a time ");
    let send = |prompt: &Prompt| {
        let place = pool.reserve(Ask { prompt, ..Ask::default() }, now).unwrap();
        place.sent(prompt);
        place
    };
    drop(send(&half));
    send(&long).refused(&long);
    // What it had before it has still.
    let left = cached(&pool, &long, now)[0];
    assert!((1900..2000).contains(&left), "{left}");
    // What cannot fit drives nothing out.
    drop(send(&prompt(&pool, 100_000, "all in all, ")));
    assert_eq!(cached(&pool, &long, now)[0], left);
}

#[test]
fn what_others_told_of_a_prompt_is_forgotten_with_its_blocks() {
    let pool = pool(1, "");
    let now = Instant::now();
    pool.observed(id(&pool, 0), idle(), now);
    let long = prompt(&pool, 4000, "once upon a time ");
    let place = pool.reserve(Ask { prompt: &long, ..Ask::default() }, now).unwrap();
    let slot = place.slot.unwrap();
    pool.cache.index.insert(slot, &schedule::exchange::marks(&long.blocks));
    place.sent(&long);
    place.refused(&long);
    assert_eq!(pool.cache.index.usage().entries, 0);
}

#[test]
fn a_pod_that_was_silent_for_long_may_have_been_restarted() {
    let pool = pool(1, "");
    let now = Instant::now();
    pool.observed(id(&pool, 0), idle(), now);
    let long = prompt(&pool, 4000, "once upon a time ");
    pool.reserve(Ask { prompt: &long, ..Ask::default() }, now).unwrap().sent(&long);
    for expected in [3900..4000, 3900..4000, 0..1] {
        pool.unobserved(id(&pool, 0), &failure(Cause::Timeout), now);
        let left = cached(&pool, &long, now)[0];
        assert!(expected.contains(&left), "{left}");
    }
}

#[test]
fn a_stream_without_a_first_token_does_not_shut_its_pod() {
    let pool = pool(1, "");
    let mut now = Instant::now();
    let ask = Ask { stream: true, ..Ask::default() };
    let _stuck = pool.reserve(ask, now).unwrap();
    for _ in 0..10 {
        now += Duration::from_secs(60);
        pool.observed(id(&pool, 0), idle(), now);
        pool.reserve(ask, now).unwrap().began(now + MS);
    }
}

#[test]
fn only_answers_say_how_fast_a_pool_gets_done() {
    let pool = pool(1, "    saturation: {inFlight: 1}");
    let mut now = Instant::now();
    let end = |place: Place, at| {
        place.end(Answered { last_received: Some(at), ..Answered::default() });
    };
    let place = pick(&pool, now).unwrap();
    now += Duration::from_secs(30);
    end(place, now);
    // A hundred that the pod refused.
    for _ in 0..100 {
        drop(pick(&pool, now).unwrap());
        now += MS;
    }
    let _held = pick(&pool, now).unwrap();
    assert!(pick(&pool, now).is_err());
    assert!(pool.retry_after(now) >= Duration::from_secs(10), "{:?}", pool.retry_after(now));
}

// Another configuration.

/// The scheduler of a pool with these ports, each pod with this UID.
fn scheduler(pods: &[(u16, &str)], lines: &str) -> Scheduler {
    let list: Vec<String> = pods.iter().map(|(port, _)| format!("'127.0.0.1:{port}'")).collect();
    let text = format!(
        "apiVersion: gateway.sluice.dev/v1alpha1\nkind: InferenceGatewayConfig\n\
         metadata: {{name: test}}\nspec:\n  schedulers:\n  - name: pool\n    modelName: base\n    \
         pods: [{}]\n{lines}",
        list.join(", ")
    );
    let mut scheduler =
        crate::config::parse(&text, "test.yaml").unwrap().config.schedulers.remove(0);
    for (pod, (_, uid)) in scheduler.pods.iter_mut().zip(pods) {
        pod.uid = Some((*uid).to_owned());
    }
    scheduler
}

fn configure(pool: &Pool, pods: &[(u16, &str)], lines: &str) {
    let scheduler = scheduler(pods, lines);
    let settings = Settings::new(&scheduler, Some(&pool.settings()));
    pool.configure(&scheduler, settings, Instant::now());
}

fn ids(pool: &Pool) -> Vec<PodId> {
    pool.pods().iter().map(|pod| pod.id).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_are_who_they_are_by_uid_and_not_by_address() {
    let pool = pool(1, "");
    configure(&pool, &[(1, "a"), (2, "b")], "");
    let before = ids(&pool);
    configure(&pool, &[(2, "b"), (1, "a"), (3, "c")], "");
    let moved = ids(&pool);
    assert_eq!(moved[..2], [before[1], before[0]], "the order is the configuration's");
    configure(&pool, &[(1, "a"), (2, "new")], "");
    let renewed = ids(&pool);
    assert_eq!(renewed[0], before[0]);
    assert!(!moved.contains(&renewed[1]) && renewed[1] != before[1], "an address came back");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_to_an_address_inherits_nothing() {
    let pool = pool(1, "");
    configure(&pool, &[(1, "a")], "");
    let now = Instant::now();
    let old = ids(&pool)[0];
    pool.observed(old, idle(), now);
    let loaded = Models {
        adapters: vec![Adapter { id: "sql".into(), parent: "base".into() }],
        ..Models::default()
    };
    pool.listed(old, &loaded);
    let prompt = pool.read_prompt(&[b'x'; 40_000], &Parts::default(), None);
    let place = pool.reserve(Ask { prompt: &prompt, ..Ask::default() }, now).unwrap();
    place.sent(&prompt);
    assert_eq!(pool.status(now)[0].pod.in_flight(), 1);
    configure(&pool, &[(1, "b")], "");
    let status = pool.status(now).remove(0);
    assert_eq!(status.pod.in_flight(), 0);
    assert_eq!((status.view.age, status.adapters.len()), (None, 0));
    assert!(pool.loaded_adapters().is_empty());
    // What the old one still says is not the new one's.
    assert!(!pool.observed(old, idle(), now));
    pool.eject(old, "gone", true, now);
    place.sent(&prompt);
    let status = pool.explain(Ask { prompt: &prompt, ..Ask::default() }, now).remove(0);
    assert_eq!((status.view.age, status.view.ready, status.view.cached_tokens), (None, true, 0));
    drop(place);
    assert_eq!(pool.status(now)[0].pod.in_flight(), 0, "and never negative");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_gets_a_pod_that_comes() {
    let full = "    saturation: {inFlight: 1, wait: 10s}\n";
    let pool = std::rc::Rc::new(pool(1, full));
    configure(&pool, &[(1, "a")], full);
    let first = pool.reserve(Ask::default(), Instant::now()).unwrap();
    let waits = std::rc::Rc::clone(&pool);
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async move {
            let waiting = tokio::task::spawn_local(async move {
                waits.admit(0, || waits.reserve(Ask::default(), Instant::now())).await.unwrap()
            });
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!waiting.is_finished());
            configure(&pool, &[(1, "a"), (2, "b")], full);
            let (place, waited) = waiting.await.unwrap();
            assert_eq!(waited, Duration::from_secs(1));
            assert_eq!(place.pod.address.port(), 2);
        })
        .await;
    drop(first);
}

// Until it has failed several times in a row a check says that the pod is well, whatever this one has found.
#[tokio::test(start_paused = true)]
async fn a_failed_health_check_brings_no_pod_back() {
    let pool = pool(1, "");
    let (now, pod) = (Instant::now(), id(&pool, 0));
    pool.unobserved(pod, &failure(Cause::Refused), now);
    pool.checked(pod, Ok(()), false, now);
    assert!(!ready(&pool, 0, now), "it has not answered");
    pool.checked(pod, Ok(()), true, now);
    assert!(ready(&pool, 0, now));
    // One who begins to check anew thinks it well at first.
    pool.checked(pod, Err("three in a row".into()), false, now);
    pool.checked(pod, Ok(()), false, now);
    assert!(!ready(&pool, 0, now), "it is as ill as before");
    pool.checked(pod, Ok(()), true, now);
    assert!(ready(&pool, 0, now));
}

// What scrapes of the serving port have found, scrapes of another one never take back.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_down_while_its_metrics_move_is_tried_again() {
    let pool = pool(1, "");
    configure(&pool, &[(1, "a")], "");
    let now = Instant::now();
    pool.unobserved(id(&pool, 0), &failure(Cause::Refused), now);
    configure(&pool, &[(1, "a")], "    aliases: [b]\n");
    assert!(!ready(&pool, 0, now), "nothing has changed for it");
    configure(&pool, &[(1, "a")], "    metrics: {port: 9000}\n");
    assert!(ready(&pool, 0, now));
}
