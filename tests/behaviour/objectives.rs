//! How important requests are, by the objective that they name (`objectives`).

use std::time::Duration;

use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::Gateway;
use sluice_tests::pod::{RawPod, Taken, answer, plan};

const CHAT: &str = "/v1/chat/completions";
const QUEUED: &str = "sluice_pool_requests_queued{pool=\"pool-0\"}";

/// One request that names an objective in this header.
fn ask(gateway: &Gateway, header: &str, objective: &str) -> Client {
    let mut client = Client::connect(gateway.address);
    let lines = format!("{header}: {objective}\r\nx-own: {objective}\r\n");
    client.post_with(CHAT, &lines, &chat("base", 1, false));
    client
}

fn end(mut taken: Taken) {
    taken.send(answer(200, "", "{}"));
    taken.keep();
}

#[test]
fn who_is_important_has_the_next_place_and_who_is_not_does_not_wait() {
    let pods = [RawPod::start()];
    let spec = "  objectives:\n  - {name: urgent, priority: 10}\n  \
                - {name: best-effort, priority: -1}\n  \
                - {name: elsewhere, poolRef: {name: pool-1}, priority: -1}";
    let mut plan = plan(&pods).spec(spec).scheduler("    saturation: {inFlight: 1, wait: 1m}");
    plan.pools.push(("other".into(), vec![RawPod::start().address]));
    let gateway = Gateway::start(&plan);
    let (old, new) = ("x-gateway-inference-objective", "X-LLM-D-Inference-Objective");
    // Where there is room, nobody is sent away.
    let mut first = ask(&gateway, new, "best-effort");
    let running = pods[0].take();
    // Names that are nobody's, and another pool's, are none.
    let mut waiting = Vec::new();
    for (header, objective) in [
        (new, "unknown"),
        (old, "urgent"),
        (new, "elsewhere"),
        (new, "urgent"),
        ("x-other", "none"),
    ] {
        waiting.push(ask(&gateway, header, objective));
        gateway.wait_metric(QUEUED, waiting.len() as f64);
    }
    for header in [old, new] {
        let refused = ask(&gateway, header, "best-effort").response();
        refused.assert_error(429, "pool_saturated", None);
        assert!(refused.header("retry-after").is_some());
    }
    end(running);
    assert_eq!(first.response().status, 200);
    let mut served = Vec::new();
    for _ in 0..waiting.len() {
        let taken = pods[0].take();
        served.push(taken.header("x-own").unwrap().to_owned());
        end(taken);
    }
    assert_eq!(served, ["urgent", "urgent", "unknown", "elsewhere", "none"]);
    for mut client in waiting {
        assert_eq!(client.response().status, 200);
    }
    // The newer name of the header counts where both are there.
    let mut client = ask(&gateway, new, "urgent");
    let running = pods[0].take();
    let mut both = Client::connect(gateway.address);
    both.post_with(
        CHAT,
        &format!("{new}: urgent\r\n{old}: best-effort\r\n"),
        &chat("base", 1, false),
    );
    assert!(both.is_silent(Duration::from_millis(100)));
    end(running);
    end(pods[0].take());
    assert_eq!((client.response().status, both.response().status), (200, 200));
}
