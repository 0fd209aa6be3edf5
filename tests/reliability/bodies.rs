//! How much memory large request bodies take that are held at the same time.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::thread;

use bytes::Bytes;
use http::Request;
use sluice_tests::client::Client;
use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::http2::{Connection, run};
use sluice_tests::pod::{RawPod, answer, plan};
use sluice_tests::tls::{Authority, Identity};

/// Sends `clients` bodies of `bytes` each, over every protocol. The pod answers when it has them all, so that the gateway
/// holds all of them at once, several times: it keeps a body until the answer begins, as another pod may have to get it.
pub(crate) fn bodies(bytes: usize, clients: usize) -> Result<(), String> {
    let mut body = br#"{"model":"base","messages":[{"role":"user","content":""#.to_vec();
    body.resize(bytes - 4, b'x');
    body.extend(b"\"}]}");
    let body = Bytes::from(body);
    let authority = Authority::new();
    let identity = authority.issue("server", &["127.0.0.1"]);
    // Millions of tokens for one pod: what it would be asked to wait is not what is measured.
    let plain = |pods: &[RawPod]| plan(pods).scheduler("    saturation: {expectedWait: 24h}");
    let secure = |pods: &[RawPod]| Plan {
        listener: ", protocol: https".into(),
        ..plain(pods).spec(&Identity::spec(&[&identity]))
    };
    println!(
        "{clients} bodies of {bytes} bytes at once\n| protocol | memory more, of the bodies' size |\n|---|---|"
    );
    let mut worst = 0.0_f64;
    for (name, is_secure, is_http2) in [
        ("HTTP/1.1", false, false),
        ("HTTP/1.1, TLS", true, false),
        ("HTTP/2", false, true),
        ("HTTP/2, TLS", true, true),
    ] {
        let pods = [RawPod::start()];
        let gateway = Gateway::start(&if is_secure { secure(&pods) } else { plain(&pods) });
        let protocols: &[&str] = if is_http2 { &["h2"] } else { &["http/1.1"] };
        let speaker = authority.speaker(protocols, None);
        let before = gateway.resident();
        for _ in 0..ROUNDS {
            let senders: Vec<_> = (0..clients)
                .map(|_| {
                    let (body, speaker, address) = (body.clone(), speaker.clone(), gateway.address);
                    thread::spawn(move || match (is_secure, is_http2) {
                        (_, true) => run(async move {
                            let connection = match is_secure {
                                true => Connection::secure(address, &speaker).await,
                                false => Connection::plain(address).await,
                            };
                            over_http2(&connection, body).await;
                        }),
                        (true, false) => over_http1(speaker.tunnel(address), &body),
                        (false, false) => over_http1(address, &body),
                    })
                })
                .collect();
            let mut taken: Vec<_> = (0..clients)
                .map(|_| {
                    let mut taken = pods[0].take();
                    assert_eq!(taken.body.len(), bytes, "the pod gets the whole body");
                    taken.body = Vec::new();
                    taken
                })
                .collect();
            taken.iter_mut().for_each(|taken| taken.send(answer(200, "", "{}")));
            senders.into_iter().for_each(|sender| sender.join().expect("no request fails"));
            gateway.wait("the bodies to be let go", |status| status["buffered_bytes"] == 0);
        }
        let peak = gateway.peak_resident();
        let ratio = (peak - before) as f64 / (bytes * clients) as f64;
        println!("| {name} | {ratio:.2} |");
        worst = worst.max(ratio);
    }
    if worst > MOST { Err(format!("more than {MOST} times the bodies")) } else { Ok(()) }
}

fn over_http1(address: SocketAddr, body: &[u8]) {
    let mut client = Client::connect(address);
    client.post_bytes(PATH, body);
    assert_eq!(client.response().status, 200);
}

async fn over_http2(connection: &Connection, mut body: Bytes) {
    let request = Request::post(format!("http://gateway{PATH}"))
        .header("content-type", "application/json")
        .header("content-length", body.len());
    let mut exchange = connection.begin(request, false).await.expect("the gateway takes requests");
    while !body.is_empty() {
        exchange.body.reserve_capacity(body.len());
        let room = poll_fn(|context| exchange.body.poll_capacity(context)).await;
        let room = room.expect("the stream is open").expect("the gateway takes more");
        let part = body.split_to(room.min(body.len()));
        exchange.body.send_data(part, body.is_empty()).expect("there is room");
    }
    assert_eq!(exchange.response().await.expect("an answer").status, 200);
}

/// What is freed after one round is used in the next, or is not, if it lies badly.
const ROUNDS: usize = 3;

const PATH: &str = "/v1/chat/completions";

/// What a body may take, of its own size.
const MOST: f64 = 1.2;
