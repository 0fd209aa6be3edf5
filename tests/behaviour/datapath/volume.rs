//! Mixed traffic over many connections and pods; `cargo xtask soak` runs it for longer.

use sluice_tests::script::ScriptPod;
use sluice_tests::soak::{Progress, Traffic};

use super::{Carrier, assert_nothing_left};

pub(super) fn two_hundred_megabytes_of_mixed_traffic(carrier: Carrier) {
    // A third for each carrier.
    let bytes = 200_000_000 / 3;
    let pods = ScriptPod::start_all(3);
    let gateway = carrier.gateway(&pods);
    let traffic = Traffic { bytes, ..Traffic::mixed(1) };
    let progress = Progress::default();
    traffic.run(gateway.address, &progress).unwrap_or_else(|problem| panic!("{problem}"));
    // Much of it is in messages that are too large to be looked through, or for slow readers.
    carrier.assert_moved(&gateway, bytes / 20);
    assert_nothing_left(&gateway);
}
