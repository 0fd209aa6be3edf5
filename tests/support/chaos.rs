//! Pods that are killed, restarted, stalled and made to talk nonsense while clients ask, and what the clients may
//! see of that: whole answers, answers that are visibly cut, and errors that say what happened.
//!
//! One pod is well all the time: whatever another pod does before its first content, the request could have been
//! served, so it must be.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::client::{Client, Response, chat};
use crate::engine::{Faults, Options, Server};
use crate::gateway::{Gateway, Plan};
use crate::pod::{self, Signals};

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Chaos {
    /// Requests in all.
    pub requests: u64,
    /// Clients at once.
    pub clients: u64,
    /// What is drawn by lot follows from it.
    pub seed: u64,
}

/// How often the clients saw what.
#[derive(Debug, Default)]
pub struct Report {
    /// Whole answers; answers visibly cut; errors of the engine; time-outs; requests that the client left.
    pub seen: BTreeMap<&'static str, u64>,
    /// Faults that pods were given.
    pub faults: u64,
}

impl Chaos {
    /// Runs it.
    ///
    /// # Errors
    /// The first thing that a client must not see, or what was left behind.
    pub fn run(&self) -> Result<Report, String> {
        let pods = Server::start_all((0..4).map(|_| fast()).collect()).expect("pods start");
        let mut addresses: Vec<SocketAddr> = pods.iter().map(|pod| pod.addr).collect();
        addresses.push(garbage(self.seed));
        let plan = Plan { pools: vec![("base".into(), addresses)], ..Plan::pool("base", &[]) };
        let gateway = Gateway::start(
            &plan.spec("  limits: {firstByteTimeout: 1s, streamIdleTimeout: 1s, maxAttempts: 10}"),
        );
        let (asked, problem) = (AtomicU64::new(0), Mutex::new(None));
        let (over, faults) = (AtomicBool::new(false), AtomicU64::new(0));
        let seen = Mutex::new(BTreeMap::new());
        thread::scope(|scope| {
            scope.spawn(|| torment(&pods[1..], self.seed, &over, &faults));
            let clients: Vec<_> = (0..self.clients)
                .map(|number| {
                    let (asked, problem, seen) = (&asked, &problem, &seen);
                    let (well, address) = (pods[0].name(), gateway.address);
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(self.seed ^ number << 32);
                        while asked.fetch_add(1, Ordering::Relaxed) < self.requests {
                            match request(address, well, &mut random) {
                                Ok(what) => {
                                    *seen.lock().expect("no panic").entry(what).or_insert(0) += 1
                                }
                                Err(what) => {
                                    problem.lock().expect("no panic").get_or_insert(what);
                                    asked.store(self.requests, Ordering::Relaxed);
                                }
                            }
                        }
                    })
                })
                .collect();
            for client in clients {
                client.join().expect("no client panics");
            }
            over.store(true, Ordering::Relaxed);
        });
        if let Some(problem) = problem.into_inner().expect("no panic") {
            return Err(format!("{problem}\n{}", gateway.log()));
        }
        let seen = seen.into_inner().expect("no panic");
        let report = Report { seen, faults: faults.into_inner() };
        report.check(&gateway)?;
        Ok(report)
    }
}

impl Report {
    /// Each request ended once, and nothing is left of any.
    fn check(&self, gateway: &Gateway) -> Result<(), String> {
        let status = gateway.wait_idle();
        if status["buffered_bytes"] != 0 {
            return Err(format!("bodies are left: {status:#}"));
        }
        gateway.wait("the connections to end", |status| status["connections"] == 0);
        let page = gateway.get("/metrics").ok_or("no metrics")?;
        let counted: f64 = page
            .lines()
            .filter(|line| line.starts_with("sluice_pool_requests_total{pool=\"pool-0\","))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        let asked: u64 = self.seen.values().sum();
        // Who leaves at once may not have been read.
        let left = self.seen.get("left").copied().unwrap_or(0);
        if counted > asked as f64 || counted < (asked - left) as f64 {
            return Err(format!(
                "{asked} requests were sent, {left} were left, and {counted} counted"
            ));
        }
        Ok(())
    }
}

fn fast() -> Options {
    Options { speed: 10.0, ..Options::default() }
}

/// One request of some kind, and what came of it.
fn request(
    gateway: SocketAddr,
    well: &str,
    random: &mut fastrand::Rng,
) -> Result<&'static str, String> {
    let stream = random.bool();
    let tokens = random.u32(1..40);
    let mut body = chat("base", tokens, stream);
    if random.u8(..8) == 0 {
        body["padding"] = "x".repeat(random.usize(..500_000)).into();
    }
    let mut client = Client::connect(gateway);
    client.post("/v1/chat/completions", &body);
    if random.u8(..16) == 0 {
        // Some leave before the answer, some within it.
        if random.bool() {
            client.is_silent(Duration::from_millis(random.u64(1..40)));
        }
        return Ok("left");
    }
    let response = client.response();
    let text = response.text();
    let wrong = |what: &str| {
        let Response { status, complete, headers, .. } = &response;
        Err(format!(
            "{what}: {status}, complete: {complete}, stream: {stream}, {headers:?}, {text}"
        ))
    };
    let of_well = text.contains(well);
    let words = (1..=tokens).filter(|word| text.contains(&format!(" w{word:04}"))).count();
    match (response.status, response.complete) {
        (200, true) if text.contains("\"error\"") => match of_well {
            false => Ok("error within the stream"),
            true => wrong("an error of the pod that is well"),
        },
        (200, true) if words < tokens as usize => wrong("a clean end of half an answer"),
        (200, true) if stream && !text.trim_end().ends_with("data: [DONE]") => wrong("no [DONE]"),
        (200, true) => Ok("whole"),
        (200, false) if of_well => wrong("an answer of the pod that is well was cut"),
        (200, false) if text.contains("[DONE]") => wrong("cut behind its end"),
        (200, false) if text.is_empty() => {
            wrong("cut before any content: another pod could serve it")
        }
        (200, false) => Ok("cut"),
        // The engine's own word for it, as another pod was not to be asked behind it.
        (500, true) if text.contains("EngineCore") || text.contains("error") => {
            Ok("engine's error")
        }
        (504, true) if text.contains("pod_timeout") => Ok("time-out"),
        _ => wrong("this could have been served"),
    }
}

/// Has one pod after the other fail, in every way.
fn torment(pods: &[Server], seed: u64, over: &AtomicBool, faults: &AtomicU64) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !over.load(Ordering::Relaxed) {
        let pod = &pods[random.usize(..pods.len())];
        let some = Some(Duration::from_millis(random.u64(50..500)));
        let times = Some(random.u32(1..6));
        match random.u8(..10) {
            0 => pod.die(some),
            1 => pod.refuse(some),
            2 => pod.kill_engine(some),
            3 => pod.fault(Faults { times, no_answer: true, ..Faults::default() }),
            4 => {
                pod.fault(Faults { times, stall_after: Some(random.u32(..5)), ..Faults::default() })
            }
            5 => {
                pod.fault(Faults { times, crash_after: Some(random.u32(..5)), ..Faults::default() })
            }
            6 => {
                pod.fault(Faults { times, error_after: Some(random.u32(..5)), ..Faults::default() })
            }
            7 => pod.fault(Faults { times, status: Some(503), ..Faults::default() }),
            8 => pod.fault(Faults {
                times,
                crash_after: Some(0),
                crash_fin: true,
                ..Faults::default()
            }),
            _ => pod.fault(Faults::default()),
        }
        faults.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(random.u64(20..120)));
    }
    for pod in pods {
        pod.fault(Faults::default());
        pod.revive();
    }
}

/// A pod whose metrics are in order and whose answers are none.
fn garbage(seed: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    thread::spawn(move || {
        for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            thread::spawn(move || talk(stream, seed ^ number as u64));
        }
    });
    address
}

fn talk(mut stream: TcpStream, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut buffer = Vec::new();
    while let Some((head, _)) = pod::request(&mut stream, &mut buffer) {
        if let Some(page) = pod::own_page(&head, Signals::default()) {
            if stream.write_all(page.as_bytes()).is_err() {
                return;
            }
            continue;
        }
        let noise: Vec<u8> = (0..random.usize(1..3000)).map(|_| random.u8(..)).collect();
        let answer: &[u8] = match random.u8(..8) {
            0 => &noise,
            1 => b"HTTP/1.1 200",
            2 => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            3 => b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\ntransfer-encoding: chunked\r\n\r\n",
            4 => b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n{}",
            5 => b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
            6 => b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
            _ => b"",
        };
        let _ = stream.write_all(answer);
        // Half of them end by FIN, the others by RST, as what has come is not read.
        if random.bool() {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(10)));
            let _ = stream.read(&mut [0; 1024]);
        }
        return;
    }
}
