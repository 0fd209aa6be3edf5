//! Requests that hide in requests: whatever a message's bytes, the pod gets what hyper, nginx and HAProxy would
//! all read in them, or the client is refused and the connection ends.

use std::collections::BTreeSet;

use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::smuggling::golden::Golden;
use sluice_tests::smuggling::reader::Reader;
use sluice_tests::smuggling::{Case, Reading, StrictPod, corpus, read_all};

#[test]
fn field_report_38_no_message_is_read_in_a_way_of_its_own() {
    check(|message| vec![message.to_vec()]);
}

// Where a message is cut into segments must change nothing.
#[test]
fn field_report_38_nor_is_one_that_comes_in_pieces() {
    check(|message| {
        let mut random = fastrand::Rng::with_seed(message.len() as u64);
        let mut rest = message.to_vec();
        let mut pieces = Vec::new();
        for _ in 0..4 {
            let behind = rest.split_off(random.usize(..=rest.len().min(120)));
            pieces.push(std::mem::replace(&mut rest, behind));
        }
        pieces.push(rest);
        pieces.retain(|piece| !piece.is_empty());
        pieces
    });
}

// The readings of nginx and HAProxy are recorded; hyper's is asked for anew.
#[test]
fn field_report_38_the_record_is_of_these_messages() {
    let (cases, golden) = (corpus(), golden());
    assert!(cases.len() >= 200, "{}", cases.len());
    let names: BTreeSet<&str> = cases.iter().map(|case| &*case.name).collect();
    assert_eq!(names.len(), cases.len(), "two cases have one name");
    let recorded: BTreeSet<&str> = golden.cases.keys().map(String::as_str).collect();
    assert_eq!(names, recorded, "record them by `cargo xtask smuggling --record`");
    let hyper = Reader::hyper();
    let whole = |message: &[u8]| vec![message.to_vec()];
    let readings = read_all(&cases, hyper.address, whole, || hyper.requests());
    for (case, reading) in cases.iter().zip(&readings) {
        assert_eq!(reading, &golden.cases[&case.name][0], "hyper reads {:?} anew", case.name);
    }
    // A reader of which nothing was recorded would agree to nothing.
    for reader in 0..3 {
        let taken = golden.cases.values().filter(|of| !of[reader].requests.is_empty()).count();
        assert!(taken > 50, "{}: {taken}", golden.readers[reader]);
    }
}

fn golden() -> Golden {
    Golden::parse(include_str!("../golden/smuggling/readings.txt"))
}

/// Sends every message in pieces, and compares what the pod got with the readings.
fn check(split: impl Fn(&[u8]) -> Vec<Vec<u8>> + Sync) {
    let (cases, golden, pod) = (corpus(), golden(), StrictPod::start());
    let plan = Plan { pools: vec![("base".into(), vec![pod.address])], ..Plan::pool("base", &[]) };
    let limits = "  limits: {headerTimeout: 1s, bodyTimeout: 1s, idleTimeout: 1s}";
    let gateway = Gateway::start(&plan.spec(limits));
    let readings = read_all(&cases, gateway.address, split, || pod.requests());
    let faults = pod.faults();
    assert!(faults.is_empty(), "the pod was sent: {faults:#?}");
    let (mut problems, mut used) = (Vec::new(), BTreeSet::new());
    for (case, reading) in cases.iter().zip(&readings) {
        if let Err(what) = judge(case, reading, &golden, &mut used) {
            let readers = golden.readers.iter().zip(&golden.cases[&case.name]);
            let readers: Vec<String> =
                readers.map(|(name, reading)| format!("  {name}: {reading:?}")).collect();
            problems.push(format!(
                "{}\n  {what}\n  sluice: {reading:?}\n{}",
                case.name,
                readers.join("\n")
            ));
        }
    }
    assert!(problems.is_empty(), "{} messages:\n{}", problems.len(), problems.join("\n"));
    assert_eq!(used.len(), REFUSED.len(), "some are not needed: {used:?}");
    let refused = readings.iter().filter(|reading| reading.requests.is_empty()).count();
    println!("{} messages, of {refused} nothing reached a pod", cases.len());
    let marked: usize = readings.iter().map(|reading| reading.requests.len()).sum();
    assert_eq!(marked, pod.requests().len(), "requests of nobody: {:#?}", pod.requests());
    gateway.wait_idle();
}

/// What is wrong with how the gateway read a message; which of [`REFUSED`] it needs goes into `used`.
fn judge(
    case: &Case,
    reading: &Reading,
    golden: &Golden,
    used: &mut BTreeSet<usize>,
) -> Result<(), String> {
    let others = &golden.cases[&case.name];
    let own = reading.positions();
    let [hyper, nginx, haproxy] = others.each_ref().map(Reading::positions);
    if case.is_good() && (own != hyper || own != nginx || own != haproxy) {
        return Err("it must get through".into());
    }
    let answered = reading.statuses.iter().filter(|status| **status == 200).count();
    if answered != reading.requests.len() {
        return Err(format!("{answered} good answers"));
    }
    if let Some(status) =
        reading.statuses.iter().find(|status| !matches!(status, 200 | 400..=499 | 501 | 505))
    {
        return Err(format!("the client is told {status}"));
    }
    for (name, other) in golden.readers.iter().zip([&hyper, &nginx, &haproxy]) {
        for (at, request) in own.iter().enumerate() {
            if request.is_none() || other.get(at) == Some(request) {
                continue;
            }
            let refuses = other.get(at).is_none_or(Option::is_none);
            let excuse = REFUSED
                .iter()
                .position(|(who, what, _)| name.starts_with(who) && case.name.contains(what))
                .filter(|_| refuses);
            match excuse {
                Some(excuse) => used.insert(excuse),
                None => return Err(format!("{name} does not read request {at} so")),
            };
        }
    }
    let refused = reading.statuses.last().is_some_and(|status| *status != 200);
    if hyper == nginx && nginx == haproxy && own.len() < hyper.len() && !refused {
        return Err("a request was lost".into());
    }
    Ok(())
}

/// Who refuses which messages that the gateway reads as the others do, and why that is no danger.
const REFUSED: [(&str, &str, &str); 7] = [
    ("nginx", "\\t16\\t", "it takes no tab for white space"),
    ("nginx", "\\tchunked", "it takes no tab for white space"),
    ("nginx", "chunked\\t", "it takes no tab for white space"),
    ("nginx", "%00", "it decodes paths, and the gateway does not"),
    ("HAProxy", "upgrade: websocket", "it wants a whole handshake; the gateway reads on in HTTP"),
    ("hyper", "2,000 trailers", "it counts them; here their bytes are counted"),
    ("HAProxy", "2,000 trailers", "its buffer holds fewer; here they are thrown away"),
];
