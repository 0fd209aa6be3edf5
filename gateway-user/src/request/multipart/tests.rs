use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

fn boundary(content_type: &str) -> Result<Option<String>, Fault> {
    let boundary = Boundary::from_content_type(content_type.as_bytes())?;
    Ok(boundary.map(|boundary| String::from_utf8(boundary.delimiter[4..].to_vec()).unwrap()))
}

fn scan<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Fields, Fault> {
    let boundary = Boundary::from_content_type(b"multipart/form-data; boundary=XyZ");
    let mut scanner = Scanner::new(boundary.unwrap().unwrap());
    let mut early = None;
    for piece in pieces {
        if let Err(fault) = scanner.feed(piece) {
            assert_eq!(scanner.feed(b"--XyZ--"), Err(fault), "not for good");
            return Err(fault);
        }
        let model = scanner.model_so_far().map(Box::from);
        assert!(early.is_none() || early == model, "{early:?} became {model:?}");
        early = model;
        assert!(scanner.value.capacity() <= 2 * (MAX_MODEL + 1));
        assert!(scanner.head.capacity() <= 2 * MAX_PART_HEAD);
    }
    let fields = scanner.finish()?;
    assert_eq!(early, fields.model);
    Ok(fields)
}

fn whole(body: impl AsRef<[u8]>) -> Result<Fields, Fault> {
    scan([body.as_ref()])
}

/// A form of these parts, each a Content-Disposition's parameters and a value.
fn form(parts: &[(&str, &str)]) -> String {
    let parts = parts.iter().map(|(params, value)| {
        format!("--XyZ\r\nContent-Disposition: form-data; {params}\r\n\r\n{value}\r\n")
    });
    format!("{}--XyZ--\r\n", parts.collect::<String>())
}

fn one(head: &str, value: &str) -> Result<Fields, Fault> {
    whole(format!("--XyZ\r\n{head}\r\n{value}\r\n--XyZ--\r\n"))
}

fn model(body: &str) -> Option<String> {
    let text = body.escape_debug();
    whole(body).unwrap_or_else(|fault| panic!("{text}: {fault}")).model.map(String::from)
}

#[test]
fn boundaries() {
    let table = [
        ("multipart/form-data; boundary=abc", "abc"),
        ("Multipart/Form-Data;BOUNDARY=abc", "abc"),
        ("multipart/form-data; boundary=\"abc\"", "abc"),
        ("multipart/form-data; boundary=\"a b:c/d\"", "a b:c/d"),
        ("multipart/form-data; boundary=a:b/c=d?", "a:b/c=d?"),
        ("multipart/form-data ; x=\"y;\\\"boundary=no\" ; boundary = abc ; charset=UTF-8;", "abc"),
        ("multipart/form-data; boundary=----WebKitFormBoundary7MA4", "----WebKitFormBoundary7MA4"),
        ("multipart/form-data;; boundary=abc", "abc"),
    ];
    for (content_type, expected) in table {
        assert_eq!(boundary(content_type), Ok(Some(expected.into())), "{content_type}");
    }
    let longest = "b".repeat(MAX_BOUNDARY);
    assert_eq!(boundary(&format!("multipart/form-data;boundary={longest}")), Ok(Some(longest)));
    for other in ["", "application/json", "multipart/mixed; boundary=a", "multipart/form-datax"] {
        assert_eq!(boundary(other), Ok(None), "{other}");
    }
}

#[test]
fn unusable_content_types() {
    let too_long = format!("boundary={}", "b".repeat(MAX_BOUNDARY + 1));
    let table = [
        "",
        "boundary=",
        "boundary=\"\"",
        "boundary",
        "boundary=\"abc",
        "boundary=\"abc\"d",
        "boundary=a\"b",
        "boundary=a b",
        "boundary=\"abc \"",
        "boundary=\"a\\bc\"",
        "boundary=\"a\rb\"",
        "boundary=a\u{e9}",
        "boundary=abc; boundary=abc",
        "boundary=abc; Boundary=def",
        "boundary*=utf-8''abc",
        "boundary*0=ab; boundary*1=c",
        "x; boundary=abc",
        "boundary=abc; charset=utf-7",
        "boundary=abc; charset=utf-8; charset=utf-16",
        &too_long,
    ];
    for params in table {
        let fault = boundary(&format!("multipart/form-data; {params}")).unwrap_err();
        assert!(matches!(fault, Fault::ContentType { .. }), "{params}: {fault}");
        assert_eq!(fault.param(), None);
    }
}

#[test]
fn model_in_any_order() {
    let file = ("name=\"file\"; filename=\"a.wav\"", "RIFF\r\n\r\n--Xy\r\r\n--XY\r\n-");
    let table: &[&[(&str, &str)]] = &[
        &[("name=\"model\"", "whisper-1")],
        &[("name=model", "whisper-1")],
        &[("NAME = \"model\" ", "whisper-1")],
        &[file, ("name=\"model\"", "whisper-1")],
        &[("name=\"model\"", "whisper-1"), file],
        &[file, ("name=\"model\"", "whisper-1"), ("name=\"language\"", "de"), file],
        &[("name=\"models\"", "x"), ("name=\"Model\"", "x"), ("name=\"model\"", "whisper-1")],
        &[("x=\"; name=\\\"y\"; name=\"model\"", "whisper-1")],
        &[("name=\"file\"; filename=\"\\\"; name=\\\"model\"", "x"), ("name=model", "whisper-1")],
    ];
    for parts in table {
        assert_eq!(model(&form(parts)).as_deref(), Some("whisper-1"), "{parts:?}");
    }
    let value = "m\r\n--Xy\u{e9}\r\r\n-\r";
    assert_eq!(model(&form(&[("name=model", value)])).as_deref(), Some(value));
    let longest = "m".repeat(MAX_MODEL);
    assert_eq!(model(&form(&[("name=model", &longest)])), Some(longest));

    assert_eq!(model("--XyZ--"), None);
    assert_eq!(model("--XyZ--\r\n--XyZ\r\nanything"), None);
    assert_eq!(model(&form(&[file])), None);

    let head = "content-type: text/plain; charset=utf-8\r\n\
        CONTENT-DISPOSITION: Form-Data; name=\"model\"\r\nX: y\r\n";
    assert_eq!(one(head, "whisper-1").unwrap().model.as_deref(), Some("whisper-1"));
}

#[test]
fn model_behind_a_large_file() {
    let block = (0..50_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8);
    let file = block.collect::<Vec<_>>().repeat(100);
    let head =
        &b"--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n"[..];
    let tail =
        &b"\r\n--XyZ\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nlate\r\n--XyZ--"[..];
    let body = [head, &file, tail].concat();
    let fields = scan(body.chunks(16 * 1024)).unwrap();
    assert_eq!(fields.model.as_deref(), Some("late"));
}

#[test]
fn stream_flags() {
    let stream = |values: &[&str]| {
        let parts: Vec<_> = values.iter().map(|value| ("name=\"stream\"", *value)).collect();
        whole(form(&parts)).unwrap().stream
    };
    for value in ["true", "True", "1", "on", "yes", "T", "y"] {
        assert!(stream(&[value]), "{value}");
        assert!(stream(&["false", value]), "{value}");
    }
    for value in ["false", "0", "", "true ", "truetrue"] {
        assert!(!stream(&[value]), "{value}");
        assert!(!stream(&["true", value]), "{value}");
    }
}

#[test]
fn model_faults() {
    let too_long = "m".repeat(MAX_MODEL + 1);
    let table: &[(&[(&str, &str)], Fault)] = &[
        (&[("name=model", "a"), ("name=x", "b"), ("name=\"model\"", "b")], Fault::ModelTwice),
        (&[("name=model", "")], Fault::ModelEmpty),
        (&[("name=model", &too_long)], Fault::ModelTooLong),
        (&[("name=model; filename=a", "a")], Fault::ModelNotString),
        (&[("name=model; filename*=utf-8''a", "a")], Fault::ModelNotString),
    ];
    for (parts, fault) in table {
        assert_eq!(whole(form(parts)), Err(*fault), "{parts:?}");
    }
    let body = b"--XyZ\r\nContent-Disposition: form-data; name=model\r\n\r\n\xff\r\n--XyZ--";
    assert_eq!(whole(body), Err(Fault::ModelNotUnicode));
}

#[test]
fn form_faults() {
    let part = "--XyZ\r\nContent-Disposition: form-data; name=x\r\n\r\nvalue";
    let table = [
        ("", 0, "closing boundary"),
        ("{\"model\":\"a\"}", 0, "does not start"),
        ("\r\n--XyZ--", 0, "does not start"),
        ("preamble\r\n--XyZ--", 0, "does not start"),
        ("--XyY--", 4, "does not start"),
        ("--XyZ", 5, "closing boundary"),
        ("--XyZ-", 6, "closing boundary"),
        ("--XyZ\r\nContent-Disp", 19, "closing boundary"),
        ("--XyZ \r\n", 5, "on its line"),
        ("--XyZ\n", 5, "on its line"),
        ("--XyZ\r\r\n", 6, "on its line"),
        ("--XyZ-\r\n", 6, "on its line"),
        ("--XyZa\r\n", 5, "on its line"),
        (part, 54, "closing boundary"),
        (&format!("{part}\r\n--XyZ more"), 61, "on its line"),
        ("--XyZ\r\nContent-Disposition: form-data; name=x\r\n\r\n--XyZ--", 53, "no value"),
    ];
    for (body, offset, part) in table {
        match whole(body) {
            Err(fault @ Fault::NotForm { offset: at, what }) => {
                assert_eq!(at, offset, "{body:?}: {what}");
                assert!(what.contains(part), "{body:?}: {what}");
                assert_eq!(fault.param(), None);
            }
            other => panic!("{body:?}: {other:?}"),
        }
    }
}

/// Heads that another parser may read as a `model`, or as another field.
#[test]
fn ambiguous_heads() {
    let many = "X: y\r\n".repeat(MAX_PART_FIELDS);
    let table = [
        ("", "one Content-Disposition"),
        ("X: y\r\n", "one Content-Disposition"),
        (
            "Content-Disposition: form-data; name=x\r\nContent-Disposition: form-data; name=y\r\n",
            "one Content-Disposition",
        ),
        ("Content-Disposition: form-data\r\n", "no name"),
        ("Content-Disposition: attachment; name=x\r\n", "not form-data"),
        ("Content-Disposition: form-data; name=x; name=model\r\n", "twice"),
        ("Content-Disposition: form-data; name=x; name*=utf-8''model\r\n", "twice"),
        ("Content-Disposition: form-data; name*=utf-8''model\r\n", "encoded"),
        ("Content-Disposition: form-data; name*0=mod; name*1=el\r\n", "twice"),
        ("Content-Disposition: form-data; name=\"mod\\el\"\r\n", "backslash"),
        ("Content-Disposition: form-data; x; name=model; name=y\r\n", "malformed"),
        ("Content-Disposition: form-data; name=\"x\" name=model\r\n", "malformed"),
        ("Content-Disposition: form-data; name=\"x\r\n", "malformed"),
        ("Content-Disposition: form-data; name=a b\r\n", "malformed"),
        ("Content-Disposition: form-data; filename=a\"b; name=\"x\r\n", "malformed"),
        ("Content-Disposition: form-data; filename=\"a\\\"; name=\"x\r\n", "malformed"),
        ("Content-Disposition: form-data;\r\n name=model\r\n", "malformed"),
        ("Content-Disposition : form-data; name=x\r\n", "malformed"),
        ("X: y\nContent-Disposition: form-data; name=model\r\n", "CR LF"),
        (
            "Content-Disposition: form-data; name=model\r\nContent-Transfer-Encoding: base64\r\n",
            "Content-Transfer-Encoding",
        ),
        (&format!("{many}Content-Disposition: form-data; name=x\r\n"), "too many lines"),
        (&format!("X: {}\r\n", "y".repeat(MAX_PART_HEAD)), "too long"),
    ];
    for (head, part) in table {
        let fault = one(head, "value").unwrap_err();
        let Fault::NotForm { what, .. } = fault else { panic!("{head:?}: {fault}") };
        assert!(what.contains(part), "{head:?}: {what}");
    }
}

/// A form, what it holds, and where its pieces may be broken.
fn parts() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let name = select(&["model", "stream", "file", "prompt"][..]);
    let piece = select(&["\r\n--Xy", "\r\n--XyA", "\r", "\n", "--XyZ", "abc", "-", "\u{e9}"][..]);
    let value = prop_oneof![
        vec(piece, 0..6).prop_map(|pieces| pieces.concat().into_bytes()),
        vec(any::<u8>(), 0..30),
        select(&["true", "a", "false"][..]).prop_map(|value| value.as_bytes().to_vec()),
    ];
    let part = (name, any::<bool>(), value).prop_map(|(name, quoted, value)| {
        let name = if quoted { format!("name=\"{name}\"") } else { format!("name={name}") };
        (name, value)
    });
    vec(part, 0..4)
}

fn assemble(parts: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in parts {
        let head = format!("--XyZ\r\nContent-Disposition: form-data; {name}\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(value);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--XyZ--\r\nepilogue");
    body
}

fn perhaps_broken() -> impl Strategy<Value = Vec<u8>> {
    let byte = select(&b"\r\n-XyZ:;= \"\\*a"[..]);
    (parts(), vec((any::<Index>(), any::<bool>(), byte), 0..3)).prop_map(|(parts, edits)| {
        let mut body = assemble(&parts);
        for (at, insert, byte) in edits {
            let at = at.index(body.len());
            if insert {
                body.insert(at, byte);
            } else {
                body[at] = byte;
            }
        }
        body
    })
}

proptest! {
    #[test]
    fn finds_what_was_put_in(parts in parts()) {
        let clean = |value: &[u8]| !value.starts_with(b"--XyZ") && !memmem(value, b"\r\n--XyZ");
        prop_assume!(parts.iter().all(|(_, value)| clean(value)));
        let mut expected = Ok(Fields::default());
        for (name, value) in &parts {
            let Ok(fields) = &mut expected else { break };
            match name.trim_start_matches("name=").trim_matches('"') {
                "model" if fields.model.is_some() => expected = Err(Fault::ModelTwice),
                "model" => match std::str::from_utf8(value) {
                    Ok("") => expected = Err(Fault::ModelEmpty),
                    Ok(name) => fields.model = Some(name.into()),
                    Err(_) => expected = Err(Fault::ModelNotUnicode),
                },
                "stream" => fields.stream = truth(value) == Some(true),
                _ => {}
            }
        }
        let body = assemble(&parts);
        let mut found = whole(&body);
        if let Ok(fields) = &mut found {
            let place = fields.model_at.take();
            let model = place.map(|place| &body[place.start as usize..place.end as usize]);
            prop_assert_eq!(model, fields.model.as_deref().map(str::as_bytes));
        }
        prop_assert_eq!(found, expected);
    }

    /// Cut in two at every place, in three at some, and in pieces of one size.
    #[test]
    fn every_split_gives_the_same(body in perhaps_broken(), second in 0..20_usize) {
        let expected = whole(&body);
        for at in 0..=body.len() {
            let (front, back) = body.split_at(at);
            let (middle, back) = back.split_at(second.min(back.len()));
            prop_assert_eq!(&scan([front, middle, back]), &expected, "at {}", at);
        }
        for size in [1, 2, 3, 9] {
            prop_assert_eq!(&scan(body.chunks(size)), &expected, "in pieces of {}", size);
        }
    }

    #[test]
    fn arbitrary_bytes_end_or_fail(body in vec(any::<u8>(), 0..100), kind in ".{0,30}") {
        let _ = whole(&body);
        let _ = scan([&b"--XyZ\r\nContent-Disposition: form-data; "[..], &body]);
        let _ = boundary(&format!("multipart/form-data; {kind}"));
    }
}

fn memmem(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
