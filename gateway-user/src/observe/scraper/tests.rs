use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fastrand::Rng;
use proptest::prelude::{ProptestConfig, any, prop, prop_assert, proptest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::LocalSet;
use tokio::time::sleep;

use self::fake::{Answer, FakePod};
use super::*;
use crate::observe::engines::{EngineKind, NotMetrics};
use crate::observe::models::NotModels;

mod fake;

const IDLE: &str = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n";
const LOADED: &str = "vllm:num_requests_running 5\nvllm:num_requests_waiting 0\n";
const ONE_MODEL: &str = r#"{"data":[{"id":"base"}]}"#;

#[derive(Clone, Debug, PartialEq)]
enum Event {
    Reading(EngineKind, Option<u32>),
    Models(usize),
    Failed(Failure),
}

/// Keeps what it is told.
#[derive(Default)]
struct Recorder {
    busy: Cell<bool>,
    /// No more requests are placed.
    steady: Cell<bool>,
    placed: Cell<u64>,
    events: RefCell<Vec<Event>>,
}

impl Recorder {
    fn take(&self) -> Vec<Event> {
        self.events.take()
    }

    /// Failures since last asked; nothing else.
    fn failures(&self) -> Vec<Cause> {
        let failed = |event| match event {
            Event::Failed(failure) => Some(failure.cause),
            _ => None,
        };
        self.take().into_iter().filter_map(failed).collect()
    }
}

impl Sink for Rc<Recorder> {
    fn busy(&self) -> bool {
        self.busy.get()
    }

    fn placed(&self) -> u64 {
        self.placed.set(self.placed.get() + u64::from(!self.steady.get()));
        self.placed.get()
    }

    fn given(&self) -> u64 {
        self.busy().into()
    }

    async fn wanted(&self, before: u64) {
        while self.given() <= before {
            sleep(millis(10)).await;
        }
    }

    fn reading(&self, reading: Reading) {
        let event = Event::Reading(reading.engine, reading.signals.running);
        self.events.borrow_mut().push(event);
    }

    fn models(&self, models: Models) {
        self.events.borrow_mut().push(Event::Models(models.bases.len()));
    }

    fn failed(&self, failure: Failure) {
        self.events.borrow_mut().push(Event::Failed(failure));
    }
}

fn source() -> MetricsSource {
    MetricsSource {
        port: None,
        path: "/metrics".into(),
        busy_interval: Duration::from_millis(50),
        idle_interval: Duration::from_secs(1),
        stale_after: Duration::from_secs(3),
    }
}

fn target() -> Target {
    Target::new(([10, 0, 0, 1], 8000).into(), &source(), None).unwrap()
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Watches `pod` on a paused clock while `script` goes on, and stops with it.
fn watching<F: Future>(
    pod: &FakePod,
    target: Target,
    script: impl FnOnce(Rc<Recorder>) -> F,
) -> F::Output {
    watching_with_seed(1, pod, target, script)
}

fn watching_with_seed<F: Future>(
    seed: u64,
    pod: &FakePod,
    target: Target,
    script: impl FnOnce(Rc<Recorder>) -> F,
) -> F::Output {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    LocalSet::new().block_on(&runtime.unwrap(), async {
        let sink = Rc::new(Recorder::default());
        let rng = Rng::with_seed(seed);
        tokio::select! {
            biased;
            () = watch_over(pod.clone(), target, sink.clone(), rng) => panic!("it ended"),
            output = script(sink.clone()) => output,
        }
    })
}

#[test]
fn tells_load_and_models_at_once_over_one_connection() {
    let pod = FakePod::with_metrics(LOADED);
    let events = watching(&pod, target(), |sink| async move {
        sleep(millis(1)).await;
        let first = sink.take();
        sleep(secs(10)).await;
        first
    });
    assert_eq!(events, [Event::Reading(EngineKind::Vllm, Some(5)), Event::Models(1)]);
    assert_eq!(pod.0.borrow().connections, 1);
    let head = &pod.0.borrow().asked[0].head;
    assert!(head.starts_with("GET /metrics HTTP/1.1\r\nhost: 10.0.0.1:8000\r\n"), "{head}");
}

/// Case 57: often while there is something to see, seldom when not.
#[test]
fn field_report_57_the_rate_follows_the_load() {
    let rate = |metrics, busy, steady| {
        let pod = FakePod::with_metrics(metrics);
        watching(&pod, target(), |sink| async move {
            sink.busy.set(busy);
            sink.steady.set(steady);
            sleep(secs(20)).await;
        });
        pod.count("/metrics")
    };
    let (idle, loaded) = (rate(IDLE, false, false), rate(LOADED, false, false));
    let (ours, steady) = (rate(IDLE, true, false), rate(LOADED, true, true));
    assert!((20..=30).contains(&idle), "{idle}");
    assert!((360..=440).contains(&loaded), "{loaded}");
    assert!((360..=440).contains(&ours), "{ours}");
    // Streams flow, and there is nothing to decide.
    assert!((40..=55).contains(&steady), "{steady}");
}

#[test]
fn an_idle_pod_that_becomes_busy_is_asked_soon() {
    let pod = FakePod::with_metrics(IDLE);
    let source = MetricsSource { idle_interval: secs(60), ..source() };
    let target = Target::new(([10, 0, 0, 1], 8000).into(), &source, None).unwrap();
    let (before, after) = watching(&pod, target, |sink| {
        let pod = pod.clone();
        async move {
            sleep(secs(600)).await;
            let before = pod.count("/metrics");
            sink.busy.set(true);
            sleep(millis(30)).await;
            (before, pod.count("/metrics"))
        }
    });
    assert_eq!(after, before + 1);
}

/// Case 57: a slow pod is asked once at a time, and less often.
#[test]
fn field_report_57_one_in_flight_and_a_slow_pod_rests() {
    let pod = FakePod::with_metrics(LOADED);
    pod.set("/metrics", Answer::Late(millis(30), LOADED));
    watching(&pod, target(), |_| sleep(secs(30)));
    let asked = pod.count("/metrics");
    assert!((85..=110).contains(&asked), "every 300 ms: {asked}");
    assert_eq!(pod.0.borrow().most_in_flight, 1);
}

/// Case 57: a pod that hangs costs its own task a second, and is found again when it comes back.
#[test]
fn field_report_57_a_hanging_pod_times_out() {
    let pod = FakePod::with_metrics(LOADED);
    pod.set("/metrics", Answer::Silence);
    watching(&pod, target(), |sink| {
        let pod = pod.clone();
        async move {
            sleep(secs(9)).await;
            assert_eq!(sink.failures(), [Cause::Timeout; 4]);
            assert_eq!(pod.0.borrow().most_in_flight, 1);
            pod.set("/metrics", Answer::Body(LOADED));
            sleep(secs(3)).await;
            let events = sink.take();
            let came_up = [Event::Reading(EngineKind::Vllm, Some(5)), Event::Models(1)];
            assert!(events.windows(2).any(|pair| pair == came_up), "{events:?}");
        }
    });
}

#[test]
fn a_pod_that_closes_idle_connections_is_no_failure() {
    let pod = FakePod::with_metrics(IDLE);
    pod.0.borrow_mut().closes_idle_after = Some(millis(300));
    let events = watching(&pod, target(), |sink| async move {
        sleep(secs(20)).await;
        sink.failures()
    });
    assert_eq!(events, []);
    assert!(pod.count("/metrics") > 15);
    assert!(pod.0.borrow().connections > 10);
    assert_eq!(pod.0.borrow().slowest_close, Duration::ZERO);
}

#[test]
fn a_close_that_crosses_the_question_is_no_failure() {
    let pod = FakePod::with_metrics(LOADED);
    pod.0.borrow_mut().closes_on_reuse = true;
    let events = watching(&pod, target(), |sink| async move {
        sleep(secs(2)).await;
        sink.failures()
    });
    assert_eq!(events, []);
    assert!(pod.count("/metrics") > 30);
}

/// Case 55 and picker case 25: each failure is told with its cause, and never as a reading.
#[test]
fn field_report_55_failures_by_cause() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let five_mib = "400\r\n".to_owned() + &"x".repeat(1024) + "\r\n";
    for (answer, cause) in [
        (Answer::Status(500), Cause::Status(500)),
        (Answer::Status(307), Cause::Status(307)),
        (Answer::Body(""), Cause::NotMetrics(NotMetrics(Shape::Empty))),
        (Answer::Body("<html>"), Cause::NotMetrics(NotMetrics(Shape::Html))),
        (Answer::Body("{\"detail\":\"x\"}"), Cause::NotMetrics(NotMetrics(Shape::Json))),
        (Answer::Body("no healthy upstream"), Cause::NotMetrics(NotMetrics(Shape::Other))),
        (Answer::Silence, Cause::Timeout),
        (Answer::Raw(b"".to_vec()), Cause::Broken),
        (Answer::Raw(b"SSH-2.0-OpenSSH\r\n".to_vec()), Cause::Broken),
        (
            Answer::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nup 1\n".to_vec()),
            Cause::Broken,
        ),
        (Answer::Raw(format!("{chunked}5\r\nup 1\n\r\n").into_bytes()), Cause::Broken),
        (
            Answer::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 4194305\r\n\r\n".to_vec()),
            Cause::TooLarge,
        ),
        (
            Answer::Raw(format!("{chunked}{}", five_mib.repeat(5 << 10)).into_bytes()),
            Cause::TooLarge,
        ),
    ] {
        let pod = FakePod::with_metrics("");
        pod.set("/metrics", answer);
        let events = watching(&pod, target(), |sink| async move {
            sleep(millis(1001)).await;
            sink.take()
        });
        let failure = Failure { question: Question::Metrics, cause };
        assert_eq!(events.first(), Some(&Event::Failed(failure)));
        assert!(!events.iter().any(|event| matches!(event, Event::Reading(..))), "{cause}");
        // It is up if it speaks HTTP: then its models can be read.
        assert_eq!(events.contains(&Event::Models(1)), cause.answered(), "{cause}");
    }
}

/// Picker case 25: a pod that is down is told as such again and again, and is back by itself,
/// models first thing.
#[test]
fn picker_report_25_down_and_up_again() {
    let pod = FakePod::with_metrics(IDLE);
    watching(&pod, target(), |sink| {
        let pod = pod.clone();
        async move {
            pod.0.borrow_mut().down = true;
            pod.0.borrow_mut().closes_idle_after = Some(Duration::ZERO);
            sleep(secs(10)).await;
            let refused = sink.failures();
            assert!(refused.len() > 8, "{refused:?}");
            assert!(refused.iter().all(|cause| *cause == Cause::Refused), "{refused:?}");

            pod.0.borrow_mut().down = false;
            pod.0.borrow_mut().closes_idle_after = None;
            sleep(millis(1200)).await;
            let events = sink.take();
            let came_up = [Event::Reading(EngineKind::Vllm, Some(0)), Event::Models(1)];
            assert_eq!(events[..2], came_up);

            // Restarted between two readings of its models.
            pod.0.borrow_mut().down = true;
            pod.set("/metrics", Answer::Raw(b"".to_vec()));
            sleep(millis(1200)).await;
            assert_eq!(sink.failures().first(), Some(&Cause::Refused));
            pod.0.borrow_mut().down = false;
            pod.set("/metrics", Answer::Body(IDLE));
            sleep(millis(1200)).await;
            assert_eq!(sink.take()[..2], came_up);
        }
    });
}

#[test]
fn models_are_read_more_often_while_busy() {
    let reads = |metrics, busy| {
        let pod = FakePod::with_metrics(metrics);
        watching(&pod, target(), |sink| async move {
            sink.busy.set(busy);
            sleep(secs(60)).await;
        });
        pod.count("/v1/models")
    };
    let (idle, loaded, ours) = (reads(IDLE, false), reads(LOADED, false), reads(IDLE, true));
    assert!((10..=13).contains(&idle), "{idle}");
    assert!((27..=33).contains(&loaded), "{loaded}");
    assert!((27..=33).contains(&ours), "{ours}");
}

#[test]
fn a_server_without_a_list_of_models_says_so() {
    let pod = FakePod::new(&[("/metrics", Answer::Body(IDLE))]);
    let failure = |cause| Event::Failed(Failure { question: Question::Models, cause });
    watching(&pod, target(), |sink| {
        let pod = pod.clone();
        async move {
            sleep(millis(1)).await;
            assert_eq!(sink.take()[1..], [failure(Cause::Status(404))]);
            pod.set("/v1/models", Answer::Body("[]"));
            sleep(secs(6)).await;
            assert!(sink.take().contains(&failure(Cause::NotModels(NotModels))));
        }
    });
}

const ITERATIONS: &str = r#"[{"numActiveRequests":7,"numQueuedRequests":0}]"#;
const SERVE_TEXT: &str = "trtllm_num_requests_running 9\n";

#[test]
fn trtllm_serve_text_is_found_behind_json() {
    let pod = FakePod::with_metrics(ITERATIONS);
    pod.set(FALLBACK_PATH, Answer::Body(SERVE_TEXT));
    watching(&pod, target(), |sink| {
        let pod = pod.clone();
        async move {
            sleep(secs(1)).await;
            let events = sink.take();
            let text = Event::Reading(EngineKind::TrtllmServe, Some(9));
            assert!(events.iter().all(|event| matches!(event, Event::Models(1)) || *event == text));
            assert_eq!(pod.count("/metrics"), 1);
            assert!(pod.count(FALLBACK_PATH) > 10);

            // Another server takes its place.
            pod.set(FALLBACK_PATH, Answer::Status(404));
            pod.set("/metrics", Answer::Body(LOADED));
            sleep(secs(1)).await;
            let last = sink.take().pop();
            assert_eq!(last, Some(Event::Reading(EngineKind::Vllm, Some(5))));
        }
    });
}

#[test]
fn trtllm_serve_with_json_alone() {
    let pod = FakePod::with_metrics(ITERATIONS);
    let events = watching(&pod, target(), |sink| async move {
        sleep(secs(1)).await;
        sink.take()
    });
    let json = Event::Reading(EngineKind::TrtllmServe, Some(7));
    assert!(events.iter().all(|event| matches!(event, Event::Models(1)) || *event == json));
    assert_eq!(pod.count(FALLBACK_PATH), 1);
    assert!(pod.count("/metrics") > 10);
}

#[test]
fn metrics_on_another_port_and_path() {
    let pod = FakePod::new(&[
        ("/triton/metrics", Answer::Body("nv_gpu_utilization 1\n")),
        ("/v1/models", Answer::Body(ONE_MODEL)),
    ]);
    let source = MetricsSource { port: Some(8002), path: "/triton/metrics".into(), ..source() };
    let target = Target::new(([10, 0, 0, 1], 8000).into(), &source, None).unwrap();
    watching(&pod, target, |sink| async move {
        sleep(secs(9)).await;
        assert_eq!(sink.failures(), []);
    });
    let state = pod.0.borrow();
    for asked in &state.asked {
        let port = if asked.path == "/v1/models" { 8000 } else { 8002 };
        assert_eq!(asked.port, port, "{asked:?}");
    }
    assert!(state.asked.iter().any(|asked| asked.port == 8000));
    assert_eq!(state.connections, 2);
}

/// Case 43: a pod with a key wants it for metrics and models as well.
#[test]
fn field_report_43_the_key_is_sent_with_every_question() {
    let pod = FakePod::with_metrics(IDLE);
    let key = Arc::new(PodKey::new("pods.key"));
    key.set("s3cret").unwrap();
    let target = Target::new(([10, 0, 0, 1], 8000).into(), &source(), Some(key)).unwrap();
    assert!(!format!("{target:?}").contains("s3cret"));
    watching(&pod, target, |_| sleep(secs(9)));
    let state = pod.0.borrow();
    assert!(state.asked.len() > 8);
    for asked in &state.asked {
        assert!(asked.head.contains("\r\nauthorization: Bearer s3cret\r\n"), "{asked:?}");
    }
}

#[test]
fn targets_that_cannot_be_asked() {
    let new = |path: &str| {
        let source = MetricsSource { path: path.into(), ..source() };
        Target::new(([10, 0, 0, 1], 8000).into(), &source, None).map(drop)
    };
    assert_eq!(new("/metrics?model=a"), Ok(()));
    for path in ["metrics", "", "/a b", "*"] {
        assert_eq!(new(path), Err(InvalidTarget::Path), "{path}");
    }
}

/// A run is replayed by its seed; another seed asks at other times (case 65: gateways must not go
/// in step).
#[test]
fn times_depend_on_the_seed_alone() {
    let gaps = |seed| {
        let pod = FakePod::with_metrics(IDLE);
        watching_with_seed(seed, &pod, target(), |_| sleep(secs(20)));
        let times = pod.times("/metrics");
        times.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
    };
    assert_eq!(gaps(1), gaps(1));
    assert_ne!(gaps(1), gaps(2));
}

#[test]
fn nothing_is_left_when_it_is_dropped() {
    let pod = FakePod::with_metrics(IDLE);
    pod.set("/metrics", Answer::Silence);
    watching(&pod, target(), |_| sleep(millis(500)));
    assert_eq!(Rc::strong_count(&pod.0), 1);
}

/// Over real sockets, once: a server that answers, and a port where nothing listens.
#[tokio::test]
async fn over_tcp() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = async {
        let mut stream = listener.accept().await.unwrap().0;
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            seen.push(stream.read_u8().await.unwrap());
        }
        let body = LOADED;
        let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        drop((stream, listener));
        std::future::pending().await
    };
    let sink = Rc::new(Recorder::default());
    let target = Target::new(address, &source(), None).unwrap();
    let end = async {
        while sink.events.borrow().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = watch(target, sink.clone(), Rng::with_seed(1)) => panic!("it ended"),
        () = server => panic!("it ended"),
        () = end => {}
    }
    let refused = Failure { question: Question::Models, cause: Cause::Refused };
    let reading = Event::Reading(EngineKind::Vllm, Some(5));
    assert_eq!(sink.take()[..2], [reading, Event::Failed(refused)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a pod sends: one event for it, no panic, no wait beyond the time limit.
    #[test]
    fn any_answer(
        head in prop::sample::select(vec![
            "",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ]),
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let pod = FakePod::with_metrics("");
        pod.set("/metrics", Answer::Raw([head.as_bytes(), &body].concat()));
        let events = watching(&pod, target(), |sink| async move {
            sleep(millis(1)).await;
            sink.take()
        });
        prop_assert!(!events.is_empty());
    }
}
