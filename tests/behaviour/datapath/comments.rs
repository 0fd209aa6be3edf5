//! A stream whose client was kept waiting by comments: what follows is the pod's, to the byte, and the kernel may carry
//! it as any other.

use std::thread::sleep;
use std::time::Duration;

use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::Gateway;
use sluice_tests::pod::{LAST, RawPod, STREAM, chunk};

use super::{Carrier, assert_nothing_left, event};

pub(super) fn comments_and_then_the_pods_bytes(carrier: Carrier) {
    let pod = RawPod::start();
    let plan = carrier.plan([pod.address]).spec("  limits: {keepAliveComments: 100ms}");
    let gateway = Gateway::start(&plan);
    let mut client = Client::connect(gateway.address);
    // The connections go on in the second round.
    for _ in 0..2 {
        client.post("/v1/chat/completions", &chat("base", 9, true));
        let mut taken = pod.take();
        let head = client.head();
        assert_eq!((head.status, head.header("transfer-encoding")), (200, Some("chunked")));
        let mut came = String::new();
        while came.matches(COMMENT).count() < 3 {
            came += &client.read_until(COMMENT);
        }
        // The pod's head is not passed on; what it says first comes behind a whole comment.
        taken.send(STREAM);
        let mut sent = String::new();
        for number in 0..40 {
            let text = String::from_utf8(chunk(event(number))).unwrap();
            taken.send(&text);
            came += &client.read_until(&text);
            sent += &text;
            // From the first content on no comment comes, however long the pod is silent.
            if number == 0 {
                sleep(Duration::from_millis(300));
            }
        }
        taken.send(LAST);
        taken.keep();
        came += &client.read_until(LAST);
        let rest = came.trim_start_matches(COMMENT);
        assert_eq!(rest, sent + LAST);
    }
    drop(client);
    carrier.assert_moved(&gateway, 5000);
    assert_nothing_left(&gateway);
}

const COMMENT: &str = "e\r\n: keep-alive\n\n\r\n";
