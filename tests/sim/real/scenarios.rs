//! Scenarios of the simulator, so small that two processors bear them in real time.
//!
//! There are fewer pods, each with about the load that it has in the large scenario, and fewer adapters for
//! them. In `a` the load is less: what piles up at the small pods has to be waited for.

use sluice_tests::sim::Scenario;
use sluice_tests::sim::traffic::{Length, Shape};

/// The scenarios, of so many seconds each.
pub(crate) fn all(seconds: f64) -> Vec<Scenario> {
    let large = |name| Scenario::named(name).into_iter().copied();
    let mut all = Vec::new();
    all.extend(large("a-mixed-8b").map(|large| Scenario {
        name: "a-mixed-8b-small",
        fleet: &[("h100", 2), ("a10", 2)],
        rate: 8.0,
        ..large
    }));
    all.extend(large("c-prefix-8b").map(|large| Scenario {
        name: "c-prefix-8b-small",
        fleet: &[("l40s", 4)],
        rate: 8.0,
        ..large
    }));
    all.extend(large("d-adapters").map(|large| Scenario {
        name: "d-adapters-small",
        fleet: &[("h100", 3)],
        rate: 11.0,
        shape: Shape::Adapters {
            adapters: 40,
            skew: 1.0,
            prompt: Length::LogNormal(400.0, 0.8, 4_000),
            answer: Length::LogNormal(120.0, 0.7, 800),
        },
        // Half of the rate of a pod, and half of the slots.
        max_loras: 4,
        ..large
    }));
    all.extend(large("e-uniform").map(|large| Scenario {
        name: "e-uniform-small",
        fleet: &[("235b-fp8-8xh100", 3)],
        rate: 4.5,
        ..large
    }));
    all.into_iter().map(|small| Scenario { seconds, ..small }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_of_scenarios_has_a_small_one() {
        let all = all(50.0);
        let groups: Vec<&str> = all.iter().map(|small| &small.name[..2]).collect();
        assert_eq!(groups, ["a-", "c-", "d-", "e-"]);
        assert!(all.iter().all(|small| small.pods() <= 4 && small.gateways == 1));
        assert!(all.iter().all(|small| small.seconds == 50.0 && small.faults.is_empty()));
    }
}
