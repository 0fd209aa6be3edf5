//! Requests while pods are killed, restarted, stalled, and answer nonsense.
//!
//! `cargo xtask reliability chaos` has 10,000 of them.

use sluice_tests::chaos::Chaos;

#[test]
fn clients_see_honest_outcomes_while_pods_fail_in_every_way() {
    let report = Chaos { requests: 1500, clients: 16, seed: 1 }
        .run()
        .unwrap_or_else(|what| panic!("{what}"));
    let seen = |what: &str| report.seen.get(what).copied().unwrap_or(0);
    assert!(seen("whole") > 1000, "{report:?}");
    // Else nothing was put to the test.
    assert!(report.faults > 20 && seen("cut") > 0 && seen("left") > 20, "{report:?}");
}
