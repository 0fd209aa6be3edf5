//! A client that asks once and looks at the clock.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// How a request ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// With all its tokens.
    Answered {
        /// The pod, by its name.
        pod: usize,
        /// From the request to the first token.
        first: Duration,
        /// From the request to the last token.
        last: Duration,
        /// How many there were.
        tokens: u32,
    },
    /// With a 429.
    Rejected,
}

/// Asks for a stream of so many tokens.
///
/// # Errors
/// There was no whole answer.
pub(crate) async fn ask(to: SocketAddr, body: &str, tokens: u32) -> anyhow::Result<Outcome> {
    timeout(PATIENCE, ask_unbounded(to, body, tokens)).await.context("no answer in time")?
}

async fn ask_unbounded(to: SocketAddr, body: &str, tokens: u32) -> anyhow::Result<Outcome> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(to).await.context("connect")?;
    stream.set_nodelay(true)?;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.context("send")?;
    let mut answer = Vec::with_capacity(256 * tokens as usize);
    let (mut first, mut last, mut seen) = (None, begun, 0_usize);
    // To its end: the gateway closes.
    while stream.read_buf(&mut answer).await.context("receive")? > 0 {
        // With what may be the beginning of the word in the piece before.
        let from = (seen + 1).saturating_sub(TOKEN.len());
        if memmem::find(answer.get(from..).unwrap_or_default(), TOKEN).is_some() {
            last = Instant::now();
            first = first.or(Some(last));
        }
        seen = answer.len();
    }
    let (status, events) = read(&answer)?;
    match (status, first) {
        (200, Some(first)) => {
            let (pod, count) = told(&events).context("an answer without the pod's name")?;
            ensure!(count == tokens, "{count} tokens of {tokens}");
            Ok(Outcome::Answered { pod, first: first - begun, last: last - begun, tokens })
        }
        (429, _) => Ok(Outcome::Rejected),
        _ => bail!("{status}: {}", String::from_utf8_lossy(&events)),
    }
}

/// Status and body of a whole answer.
fn read(answer: &[u8]) -> anyhow::Result<(u16, Vec<u8>)> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(start) = head.parse(answer)? else { bail!("half a head") };
    let status = head.code.context("no status")?;
    let chunked = head.headers.iter().any(|header| {
        header.name.eq_ignore_ascii_case("transfer-encoding")
            && header.value.eq_ignore_ascii_case(b"chunked")
    });
    let mut rest = answer.get(start..).unwrap_or_default();
    if !chunked {
        return Ok((status, rest.to_vec()));
    }
    let mut body = Vec::with_capacity(rest.len());
    loop {
        let Ok(httparse::Status::Complete((line, size))) = httparse::parse_chunk_size(rest) else {
            bail!("the answer breaks off");
        };
        let size = usize::try_from(size)?;
        if size == 0 {
            return Ok((status, body));
        }
        body.extend(rest.get(line..line + size).context("the answer breaks off")?);
        rest = rest.get(line + size + 2..).context("the answer breaks off")?;
    }
}

/// The pod that says that it answered, and how many tokens it sent.
fn told(events: &[u8]) -> Option<(usize, u32)> {
    let tokens = memmem::find_iter(events, TOKEN).count();
    let name = memmem::find(events, FINGERPRINT)? + FINGERPRINT.len();
    let name = events.get(name..)?.split(|byte| *byte == b'"').next()?;
    let pod = std::str::from_utf8(name).ok()?.parse().ok()?;
    Some((pod, u32::try_from(tokens).ok()?))
}

/// No simulated run is as long.
const PATIENCE: Duration = Duration::from_secs(600);

/// In every event that has a token.
const TOKEN: &[u8] = b"\"text\":";
/// In the last one.
const FINGERPRINT: &[u8] = b"\"system_fingerprint\":\"";

#[cfg(test)]
mod tests {
    use sluice_tests::engine::{Faults, Options, Server};

    use super::*;

    const BODY: &str = r#"{"stream":true,"max_tokens":20,"prompt":"abc def"}"#;

    fn ask_of(server: &Server, tokens: u32) -> anyhow::Result<Outcome> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(ask(server.addr, BODY, tokens))
    }

    #[test]
    fn a_whole_answer_has_its_pod_and_its_times() {
        let server = Server::start(Options { name: "3".to_owned(), ..Options::default() }).unwrap();
        let Outcome::Answered { pod, first, last, tokens } = ask_of(&server, 20).unwrap() else {
            panic!("it is answered");
        };
        assert_eq!((pod, tokens), (3, 20));
        // Nothing is sooner than the model server allows: 20 ms before the first token, 7 ms for each other.
        assert!(first >= Duration::from_millis(20) && first < last, "{first:?}");
        assert!(last >= Duration::from_millis(20 + 19 * 7), "{last:?}");
    }

    #[test]
    fn half_an_answer_is_none() {
        let server = Server::start(Options { name: "0".to_owned(), ..Options::default() }).unwrap();
        assert!(ask_of(&server, 21).is_err(), "a token is missing");
        server.fault(Faults { crash_after: Some(5), ..Faults::default() });
        assert!(ask_of(&server, 20).is_err());
        server.fault(Faults { status: Some(503), ..Faults::default() });
        assert!(ask_of(&server, 20).unwrap_err().to_string().starts_with("503"));
        server.fault(Faults { status: Some(429), ..Faults::default() });
        assert!(matches!(ask_of(&server, 20), Ok(Outcome::Rejected)));
    }
}
