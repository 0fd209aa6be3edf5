//! Every form that engines tell usage in, at every split.

use super::*;

/// Whole, and in two pieces split anywhere.
fn read(event_stream: bool, text: &str) -> Usage {
    let whole = pieces(event_stream, &[text.as_bytes()]);
    for split in 0..=text.len() {
        let (a, b) = text.as_bytes().split_at(split);
        assert_eq!(pieces(event_stream, &[a, b]), whole, "{text:?} at {split}");
    }
    let each: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
    assert_eq!(pieces(event_stream, &each), whole, "{text:?}");
    whole
}

fn pieces(event_stream: bool, pieces: &[&[u8]]) -> Usage {
    let mut reader = Reader::new(event_stream);
    pieces.iter().for_each(|piece| reader.push(piece));
    reader.counts().usage()
}

fn usage(prompt: u64, completion: u64, cached: impl Into<Option<u64>>) -> Usage {
    Usage {
        prompt_tokens: Some(prompt),
        completion_tokens: Some(completion),
        cached_tokens: cached.into(),
    }
}

#[test]
fn documents() {
    for (text, expected) in [
        (
            r#"{"usage":{"prompt_tokens":9,"total_tokens":17,"completion_tokens":8}}"#,
            usage(9, 8, None),
        ),
        (
            "{ \"usage\" :\r\n\r\n{\n \"completion_tokens\" : 8 ,\t\"prompt_tokens\":9\n}}",
            usage(9, 8, None),
        ),
        (
            r#"{"usage":{"prompt_tokens":9,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":4}},"prompt_logprobs":[{"1":{"x":[]}}]}"#,
            usage(9, 8, 4),
        ),
        (
            r#"{"object":"response","usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":8,"output_tokens_details":{"reasoning_tokens":0}},"user":null}"#,
            usage(9, 8, 4),
        ),
        // Anthropic counts apart what was in a cache.
        (
            r#"{"type":"message","usage":{"input_tokens":2,"cache_creation_input_tokens":3,"cache_read_input_tokens":4,"output_tokens":8}}"#,
            usage(9, 8, 4),
        ),
        (
            r#"{"text":"x","meta_info":{"id":"y","finish_reason":{"type":"stop"},"prompt_tokens":9,"completion_tokens":8,"cached_tokens":4,"e2e_latency":0.29}}"#,
            usage(9, 8, 4),
        ),
        (
            r#"{"generated_text":"x","details":{"generated_tokens":8,"prefill":[{"id":1}],"input_length":9}}"#,
            usage(9, 8, None),
        ),
        (
            r#"{"object":"list","data":[{"embedding":[-0.1,2e-3,3]}],"usage":{"prompt_tokens":9,"completion_tokens":0,"prompt_tokens_details":null}}"#,
            usage(9, 0, None),
        ),
    ] {
        assert_eq!(read(false, text), expected, "{text}");
    }
}

// A line of an event may end in three ways, and the blank before its data is optional.
#[test]
fn field_report_2_streams_with_any_line_end() {
    let events = [
        r#"data: {"choices":[{"delta":{"content":"a"}}],"usage":null}"#,
        r#": keep-alive "usage":{"prompt_tokens":1000}"#,
        r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":4}}}"#,
        "data: [DONE]",
    ];
    for end in ["\n", "\r\n", "\r"] {
        for data in ["data: ", "data:"] {
            let text: String =
                events.iter().map(|event| event.replace("data: ", data) + end + end).collect();
            assert_eq!(read(true, &text), usage(9, 8, 4), "{text:?}");
        }
    }
}

// Field report 4 has a character in two reads; to this reader a split anywhere is the same.
#[test]
fn field_report_1_4_5_events_split_and_joined_anywhere() {
    let text = "data: {\"choices\":[{\"delta\":{\"content\":\"é\\\"\\\\\\u00e9}]\"}}]}\n\ndata: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":8}}\n\ndata: [DONE]\n\n";
    assert_eq!(read(true, text), usage(9, 8, None));
}

#[test]
fn picker_report_5_counts_that_come_in_each_event_count_once() {
    let mut text = String::new();
    for count in 1..=8 {
        text.push_str(&format!("data: {{\"choices\":[{{}}],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":{count}}}}}\n\n"));
    }
    text.push_str(
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":8}}\n\n",
    );
    text.push_str("data: {\"choices\":[],\"usage\":null}\n\ndata: [DONE]\n\n");
    assert_eq!(read(true, &text), usage(9, 8, None));
}

#[test]
fn picker_report_6_a_message_tells_its_prompt_at_the_start() {
    for (start, delta) in [
        (r#"{"input_tokens":9,"output_tokens":1}"#, r#"{"output_tokens":8}"#),
        (r#"{"input_tokens":9,"output_tokens":0}"#, r#"{"input_tokens":0,"output_tokens":8}"#),
        (r#"{"input_tokens":0,"output_tokens":0}"#, r#"{"input_tokens":9,"output_tokens":8}"#),
        (
            r#"{"input_tokens":5,"cache_read_input_tokens":4,"output_tokens":1}"#,
            r#"{"output_tokens":8}"#,
        ),
    ] {
        let text = format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"content\":[],\"usage\":{start}}}}}\n\n\
             event: content_block_delta\ndata: {{\"delta\":{{\"text\":\"x\"}}}}\n\n\
             event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{}},\"usage\":{delta}}}\n\n\
             event: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
        );
        let cached = start.contains("cache_read").then_some(4);
        assert_eq!(read(true, &text), usage(9, 8, cached), "{text}");
    }
}

#[test]
fn whole_responses_and_cumulative_events() {
    let completed = "event: response.created\ndata: {\"response\":{\"usage\":null,\"tools\":[{\"parameters\":{\"usage\":{\"prompt_tokens\":7}}}]}}\n\n\
        event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"content\":[{\"text\":\"x\"}]}],\
        \"usage\":{\"input_tokens\":24,\"input_tokens_details\":{\"cached_tokens\":16},\"output_tokens\":6}},\"sequence_number\":2}\n\n";
    assert_eq!(read(true, completed), usage(24, 6, 16));
    let cumulative = "data: {\"text\":\"a\",\"meta_info\":{\"prompt_tokens\":24,\"completion_tokens\":1,\"cached_tokens\":16}}\n\n\
        data: {\"text\":\"ab\",\"meta_info\":{\"finish_reason\":{\"type\":\"stop\"},\"prompt_tokens\":24,\"completion_tokens\":2,\"cached_tokens\":16}}\n\n\
        data: [DONE]\n\n";
    assert_eq!(read(true, cumulative), usage(24, 2, 16));
}

#[test]
fn picker_report_7_odd_usage_is_unknown() {
    for text in [
        "",
        "usage",
        r#"{"usage":"many"}"#,
        r#"{"usage":[1,2]}"#,
        r#"{"usage":null}"#,
        r#"{"usage":{"prompt_tokens":"9"}}"#,
        r#"{"usage":{"prompt_tokens":9.5}}"#,
        r#"{"usage":{"prompt_tokens":9e3}}"#,
        r#"{"usage":{"prompt_tokens":99999999999999999999999}}"#,
        r#"{"usage":{"prompt_tokens":-9}}"#,
        r#"{"usage":{"prompt_tokens":{"prompt_tokens":9}}}"#,
        r#"{"usage":{"prompt_tokens":[9]}}"#,
        r#"{"usage":{"prompt_tokens":true}}"#,
        r#"{"usage":{"prompt_tokens":9"#,
        r#"{"usage":{"prompt_tokens\u0073":9}}"#,
        "}}}]]]\"\\",
    ] {
        assert_eq!(read(false, text), Usage::default(), "{text}");
        assert_eq!(read(true, &format!("data: {text}")), Usage::default(), "{text}");
    }
    // What follows is read all the same.
    let text = "data: {\"usage\":{\"x\n\ndata: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":8}}\n\n";
    assert_eq!(read(true, text), usage(9, 8, None));
}

#[test]
fn what_others_wrote_is_no_count() {
    for text in [
        r#"{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":9}"}}]}"#,
        r#"{"choices":[{"usage":{"prompt_tokens":9,"completion_tokens":8}}]}"#,
        r#"{"content":[{"type":"tool_use","input":{"usage":{"input_tokens":9}}}]}"#,
        r#"{"metadata":{"usage":{"prompt_tokens":9}}}"#,
        r#"{"x":"usage","prompt_tokens":9}"#,
        r#"{"usage_":{"prompt_tokens":9}}"#,
        r#"[{"usage":{"prompt_tokens":9}}]"#,
    ] {
        assert_eq!(read(false, text), Usage::default(), "{text}");
        assert_eq!(read(true, &format!("data: {text}\n\n")), Usage::default(), "{text}");
    }
}

#[test]
fn ids() {
    for (event_stream, text, id) in [
        (false, r#"{"x":{"id":"no"},"id" : "resp_1","usage":{}}"#, Some("resp_1")),
        (false, r#"{"id":"a\u0062"}"#, None),
        (false, r#"{"id":1,"object":"x"}"#, None),
        (false, r#"{"previous_response_id":"resp_1"}"#, None),
        (false, r#"[{"id":"resp_1"}]"#, None),
        (
            true,
            "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\"}}\n\ndata: {\"response\":{\"id\":\"resp_2\"}}\n\n",
            Some("resp_1"),
        ),
        (true, "data: {\"item\":{\"id\":\"msg_1\"}}\n\n", None),
    ] {
        for split in 0..=text.len() {
            let mut reader = Reader::new(event_stream);
            let (a, b) = text.as_bytes().split_at(split);
            reader.push(a);
            reader.push(b);
            assert_eq!(reader.id().filter(|id| !id.is_empty()), id, "{text} at {split}");
        }
    }
}

#[test]
fn a_response_says_that_it_is_complete() {
    for (event_stream, text, completed) in [
        (false, r#"{"id":"resp_1","status" : "completed"}"#, true),
        (false, r#"{"id":"resp_1","status":"incomplete"}"#, true),
        (false, r#"{"status":"in_progress","output":[{"status":"completed"}]}"#, false),
        (false, r#"{"status":"complete"}"#, false),
        (false, r#"{"x":"status","completed":1}"#, false),
        (false, r#"{"output":[],"text":"\"status\":\"completed\""}"#, false),
        (
            true,
            "data: {\"response\":{\"status\":\"in_progress\"}}\n\ndata: {\"response\":{\"status\":\"completed\"}}\n\n",
            true,
        ),
        (true, "data: {\"item\":{\"status\":\"completed\"}}\n\n", false),
    ] {
        for split in 0..=text.len() {
            let mut reader = Reader::new(event_stream);
            let (a, b) = text.as_bytes().split_at(split);
            reader.push(a);
            reader.push(b);
            assert_eq!(reader.is_completed(), completed, "{text} at {split}");
        }
    }
}

#[test]
fn behind_a_gap_the_next_line_is_read() {
    let mut reader = Reader::new(true);
    reader.push(b"data: {\"choices\":[{\"delta\":{\"content\":\"ab");
    reader.skip();
    reader.push(b"{\"usage\":{\"prompt_tokens\":7}}\n\ndata: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":8}}\n\n");
    assert_eq!(reader.counts().usage(), usage(9, 8, None));
}

#[test]
fn the_last_in_a_piece_that_begins_anywhere() {
    for (text, expected) in [
        (r#"s":1,"usage":{"prompt_tokens":9,"completion_tokens":8}}"#, usage(9, 8, None)),
        (
            "x}}\n\ndata: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":8,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: {\"usage\":null}",
            usage(9, 8, 4),
        ),
        (
            r#"ab \"details\":{\"generated_tokens\":1}","details":{"finish_reason":"length","generated_tokens":8,"seed":null,"input_length":9}}"#,
            usage(9, 8, None),
        ),
        (
            r#"ab","meta_info":{"prompt_tokens":9,"completion_tokens":8,"cached_tokens":4}}"#,
            usage(9, 8, 4),
        ),
    ] {
        assert_eq!(last_in(text.as_bytes()).usage(), expected, "{text}");
    }
    assert_eq!(last_in(b"\"usage\":{\"prompt_tokens\":9").usage(), Usage::default());
}
