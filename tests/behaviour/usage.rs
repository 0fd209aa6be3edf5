//! Tokens are counted from whatever an engine says of them, once, whichever way the answer went.

use std::thread::sleep;
use std::time::Duration;

use serde_json::json;
use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::Gateway;
use sluice_tests::pod::{LAST, RawPod, STREAM, Taken, answer, chunk, plan};

/// What is sent for it, and what has to be counted: prompt, cached, generated.
struct Form {
    name: &'static str,
    stream: bool,
    /// The body, in the pieces that the pod writes.
    pieces: Vec<String>,
    tokens: [u32; 3],
}

fn forms() -> Vec<Form> {
    let whole =
        |name, body: String, tokens| Form { name, stream: false, pieces: vec![body], tokens };
    let stream = |name, pieces: Vec<String>, tokens| Form { name, stream: true, pieces, tokens };
    let logprobs = format!("[{}]", "{\"1\":{\"logprob\":-0.5,\"rank\":1}},".repeat(200) + "null");
    let usage = r#"{"prompt_tokens":9,"total_tokens":17,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":4}}"#;
    let delta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"word\"}}\n\n";
    let many = |event: &str| (0..300).map(|_| event.to_owned()).collect::<Vec<_>>();
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"role\":\"assistant\",\"usage\":{\"input_tokens\":5,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\n\n";
    let end = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":8}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let plain = "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n";
    vec![
        whole("chat", format!("{{\"choices\":[],\"usage\":{usage}}}"), [9, 4, 8]),
        // What follows the counts is longer than what is kept of a body's end.
        whole("logprobs", format!("{{\"usage\":{usage},\"prompt_logprobs\":{logprobs}}}"), [9, 4, 8]),
        whole(
            "responses",
            r#"{"object":"response","usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":8}}"#.into(),
            [9, 4, 8],
        ),
        whole(
            "message",
            r#"{"type":"message","usage":{"input_tokens":5,"cache_read_input_tokens":4,"output_tokens":8}}"#.into(),
            [9, 4, 8],
        ),
        whole(
            "generate",
            r#"{"text":"x","meta_info":{"prompt_tokens":9,"completion_tokens":8,"cached_tokens":4}}"#.into(),
            [9, 4, 8],
        ),
        whole("odd", r#"{"usage":{"prompt_tokens":"9","completion_tokens":[8]}}"#.into(), [0, 0, 0]),
        stream(
            "a chunk of its own",
            [many(plain), vec![format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n"), "data: [DONE]\n\n".into()]]
                .concat(),
            [9, 4, 8],
        ),
        stream(
            "in every chunk",
            (1..=8)
                .map(|count| format!("data: {{\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":{count}}}}}\n\n"))
                .chain(["data: [DONE]\n\n".into()])
                .collect(),
            [9, 0, 8],
        ),
        stream(
            "messages",
            // The first event, which alone tells the prompt, comes in two writes.
            [vec![start[..60].into(), start[60..].into()], many(delta), vec![end.into()]].concat(),
            [9, 4, 8],
        ),
        stream(
            "responses stream",
            [
                vec!["event: response.created\ndata: {\"response\":{\"usage\":null}}\n\n".into()],
                many("event: response.output_text.delta\ndata: {\"delta\":\"word\"}\n\n"),
                // Longer than what is kept of it.
                vec![format!(
                    "event: response.completed\ndata: {{\"response\":{{\"output\":[\"{}\"],\"usage\":{{\"input_tokens\":9,\
                     \"input_tokens_details\":{{\"cached_tokens\":4}},\"output_tokens\":8}}}},\"sequence_number\":3}}\n\n",
                    "word ".repeat(1000)
                )],
            ]
            .concat(),
            [9, 4, 8],
        ),
        stream(
            "generate stream",
            (1..=8)
                .map(|count| {
                    format!(
                        "data: {{\"text\":\"{}\",\"meta_info\":{{\"finish_reason\":null,\"prompt_tokens\":9,\
                         \"completion_tokens\":{count},\"cached_tokens\":4}}}}\n\n",
                        "word".repeat(count)
                    )
                })
                .chain(["data: [DONE]\n\n".into()])
                .collect(),
            [9, 4, 8],
        ),
        stream(
            "generate stream with its text again",
            (1..=8)
                .map(|index| {
                    let last = index == 8;
                    // Longer than what is kept of a stream's end.
                    let text = if last { format!("\"{}\"", "word ".repeat(1000)) } else { "null".into() };
                    let details = r#"{"finish_reason":"length","generated_tokens":8,"seed":null,"input_length":9}"#;
                    let details = if last { details } else { "null" };
                    format!(
                        "data:{{\"index\":{index},\"token\":{{\"id\":1,\"text\":\"word\"}},\"generated_text\":{text},\
                         \"details\":{details}}}\n\n"
                    )
                })
                .collect(),
            [9, 0, 8],
        ),
    ]
}

#[test]
fn field_report_1_2_5_every_form_of_usage_is_counted_once() {
    for paths in [vec![], vec!["relay"]] {
        let pods = [RawPod::start()];
        let mut plan = plan(&pods);
        plan.paths = paths;
        let gateway = Gateway::start(&plan);
        let mut client = Client::connect(gateway.address);
        let (mut sums, mut answers) = ([0; 3], 0.0);
        for form in forms() {
            for end in ["\n", "\r\n", "\r"] {
                client.post("/v1/chat/completions", &chat("base", 3, form.stream));
                let mut taken = pods[0].take();
                let pieces: Vec<_> =
                    form.pieces.iter().map(|piece| piece.replace('\n', end)).collect();
                match form.stream {
                    true => stream(&mut taken, &pieces),
                    false => taken.send(answer(
                        200,
                        "content-type: application/json\r\n",
                        &pieces.concat(),
                    )),
                }
                taken.keep();
                let response = client.response();
                assert_eq!((response.complete, response.text()), (true, pieces.concat()));
                for (sum, tokens) in sums.iter_mut().zip(form.tokens) {
                    *sum += tokens;
                }
                // Once it is counted, all of it is.
                answers += 1.0;
                let ok = "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}";
                gateway.wait_metric(ok, answers);
                gateway.wait_idle();
                for (kind, sum) in ["prompt", "cached", "generated"].into_iter().zip(sums) {
                    let of = format!("{{pool=\"pool-0\",model=\"base\",kind=\"{kind}\"}}");
                    let counted = gateway.metric(&format!("sluice_pool_model_tokens_total{of}"));
                    assert_eq!(
                        counted.unwrap_or(0.0),
                        f64::from(sum),
                        "{} {end:?} {kind}",
                        form.name
                    );
                }
            }
        }
        // Where the kernel can, it has carried some of them: all went one way otherwise.
        let bytes = |path| {
            let sample = format!("sluice_flow_bytes_total{{path=\"{path}\"}}");
            gateway.metric(&sample).unwrap_or(0.0)
        };
        let carries = !gateway.wait_idle()["flows"].is_null();
        assert_eq!(bytes("local") + bytes("splice") > 0.0, carries, "{:?}", plan.paths);
        let total = |what| gateway.metric(&format!("sluice_pool_{what}_total{{pool=\"pool-0\"}}"));
        assert_eq!(total("prompt_tokens"), Some(sums[0].into()));
        assert_eq!(total("cached_prompt_tokens"), Some(sums[1].into()));
        assert_eq!(total("generation_tokens"), Some(sums[2].into()));
    }
}

/// Some pieces are written alone, others together.
fn stream(taken: &mut Taken, pieces: &[String]) {
    let head = STREAM.replace("; charset=utf-8", "");
    taken.send(&head);
    for (at, piece) in pieces.iter().enumerate() {
        taken.send(chunk(piece));
        if at < 4 || pieces.len() - at < 3 {
            sleep(SPLIT);
        }
    }
    taken.send(LAST);
}

// What a pod compressed could not be read: it is asked not to, whatever the client takes.
#[test]
fn field_report_29_pods_are_asked_for_what_can_be_read() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    for lines in
        ["", "Accept-Encoding: gzip, br\r\n", "accept-encoding: zstd\r\nAccept-Encoding: *\r\n"]
    {
        let body = json!({"model": "base"}).to_string();
        client.send(format!(
            "POST /v1/embeddings HTTP/1.1\r\nhost: g\r\n{lines}content-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let mut taken = pods[0].take();
        let head = taken.head.to_ascii_lowercase();
        let asked: Vec<_> =
            head.lines().filter(|line| line.starts_with("accept-encoding:")).collect();
        assert_eq!(asked, ["accept-encoding: identity"], "{lines:?}");
        taken.send(answer(200, "", "{}"));
        taken.keep();
        assert_eq!(client.response().status, 200);
    }
}

/// Between two writes that are to be read apart.
const SPLIT: Duration = Duration::from_millis(5);
