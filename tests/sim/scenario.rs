//! The table of what is simulated: fleets, traffic, and what goes wrong.
//!
//! Lengths and arrivals of the public traces are rebuilt from their quantiles; no trace is read.

use super::figures::Slo;
use super::traffic::{Arrivals, Length, Shape};

/// One fleet under one kind of traffic.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name; the letter is that of a group of scenarios.
    pub name: &'static str,
    /// GPU profiles and how many pods have each.
    pub fleet: &'static [(&'static str, u32)],
    /// So many times that fleet, and that rate.
    pub times: u32,
    /// Gateways before them.
    pub gateways: u32,
    /// Whether these tell each other what they have in flight, if their policy can.
    pub exchange: bool,
    /// Requests (of chats: conversations) a second; of clients who wait for answers, how many.
    pub rate: f64,
    /// How long they come.
    pub seconds: f64,
    /// When they come.
    pub arrivals: Arrivals,
    /// What they are.
    pub shape: Shape,
    /// Adapters that fit on a pod at once.
    pub max_loras: u32,
    /// Time to load one, microseconds.
    pub lora_load_us: u64,
    /// What goes wrong.
    pub faults: &'static [Fault],
    /// What clients are promised.
    pub slo: Slo,
}

/// Something that goes wrong with a pod.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// When, as a share of the run.
    pub at: f64,
    /// With which pod.
    pub pod: usize,
    /// What.
    pub what: Trouble,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// Each step takes so many times as long.
    Slow(f64),
    /// It refuses connections from now on, and what it was doing is lost.
    Dies,
    /// Its metrics stay as they are.
    Freezes,
}

impl Scenario {
    /// The scenario of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// Pods in all.
    pub fn pods(&self) -> usize {
        self.fleet.iter().map(|(_, count)| (*count * self.times) as usize).sum()
    }

    /// The same at another load.
    pub fn at(&self, load: f64) -> Self {
        Self { rate: self.rate * load, ..*self }
    }

    /// Requests a second for the whole fleet.
    pub fn whole_rate(&self) -> f64 {
        self.rate * f64::from(self.times)
    }
}

/// What most of them have.
const PLAIN: Scenario = Scenario {
    name: "",
    fleet: &[("h100", 8)],
    times: 1,
    gateways: 1,
    exchange: true,
    rate: 10.0,
    seconds: 90.0,
    arrivals: Arrivals::Poisson,
    shape: Shape::Plain {
        prompt: Length::LogNormal(500.0, 0.9, 8_000),
        answer: Length::LogNormal(150.0, 0.7, 1_000),
    },
    max_loras: 0,
    lora_load_us: 0,
    faults: &[],
    slo: Slo { ttft_ms: 1_000.0, tpot_ms: 60.0 },
};

/// Two generations of GPUs, 8B: a small pod bears a fifth of what a large one does.
const MIXED_8B: Scenario =
    Scenario { name: "a-mixed-8b", fleet: &[("h100", 4), ("a10", 4)], rate: 22.0, ..PLAIN };

/// Groups of prompts that begin alike, 8B.
const PREFIX: Scenario = Scenario {
    name: "c-prefix-8b",
    fleet: &[("l40s", 8)],
    rate: 16.0,
    shape: Shape::Groups {
        groups: 32,
        shared: 2_048,
        own: Length::Fixed(256),
        answer: Length::Fixed(256),
    },
    ..PLAIN
};

/// Equal pods, steady load.
const UNIFORM: Scenario = Scenario {
    name: "e-uniform",
    fleet: &[("235b-fp8-8xh100", 4)],
    rate: 6.0,
    seconds: 240.0,
    shape: Shape::Plain { prompt: Length::Between(768, 1_280), answer: Length::Between(192, 320) },
    slo: Slo { ttft_ms: 2_000.0, tpot_ms: 60.0 },
    ..PLAIN
};

/// Prompts and answers of a fleet that something happens to.
const TROUBLED: Scenario = Scenario { fleet: &[("h100", 6)], rate: 60.0, ..PLAIN };

const BURSTS: Arrivals = Arrivals::Clients { pause: 1.5, apart: 12.0, length: 4.0, times: 4.0 };

/// Questions, and among them now and then a whole document.
const DOCUMENTS: Shape = Shape::Plain {
    prompt: Length::Rarely(
        0.004,
        &Length::LogNormal(300.0, 0.6, 8_000),
        &Length::Between(80_000, 124_000),
    ),
    answer: Length::LogNormal(150.0, 0.7, 1_000),
};

/// Everything that is simulated.
pub static SCENARIOS: &[Scenario] = &[
    MIXED_8B,
    Scenario {
        name: "a-mixed-32b",
        fleet: &[("32b-2xh100", 2), ("32b-4xa10", 4)],
        rate: 15.0,
        slo: Slo { ttft_ms: 2_000.0, tpot_ms: 100.0 },
        ..PLAIN
    },
    Scenario {
        name: "b-bursts-70b",
        fleet: &[("70b-4xh100", 4)],
        rate: 40.0,
        seconds: 240.0,
        arrivals: BURSTS,
        shape: DOCUMENTS,
        slo: Slo { ttft_ms: 2_000.0, tpot_ms: 100.0 },
        ..PLAIN
    },
    Scenario {
        name: "b-bursts-235b",
        fleet: &[("235b-fp8-8xh100", 4)],
        rate: 24.0,
        seconds: 240.0,
        arrivals: BURSTS,
        shape: DOCUMENTS,
        slo: Slo { ttft_ms: 2_000.0, tpot_ms: 100.0 },
        ..PLAIN
    },
    PREFIX,
    Scenario {
        name: "c-chat-8b",
        fleet: &[("l40s", 8)],
        rate: 5.0,
        shape: Shape::Chat {
            systems: 8,
            system: 1_024,
            turns: Length::Between(2, 8),
            question: Length::LogNormal(120.0, 1.0, 4_000),
            answer: Length::LogNormal(180.0, 0.7, 1_000),
            pause: 6.0,
        },
        ..PLAIN
    },
    Scenario {
        name: "d-adapters",
        fleet: &[("h100", 8)],
        rate: 60.0,
        shape: Shape::Adapters {
            adapters: 100,
            skew: 1.0,
            prompt: Length::LogNormal(400.0, 0.8, 4_000),
            answer: Length::LogNormal(120.0, 0.7, 800),
        },
        max_loras: 8,
        lora_load_us: 150_000,
        ..PLAIN
    },
    UNIFORM,
    Scenario {
        name: "f-azure-code",
        fleet: &[("l40s", 6)],
        rate: 8.0,
        arrivals: Arrivals::Spells { requests: 260.0, silence: 340.0, uneven: 0.5 },
        shape: Shape::Plain {
            prompt: Length::Quantiles(&[
                (0.0, 3.0),
                (0.05, 75.0),
                (0.5, 1_469.0),
                (0.9, 5_194.0),
                (0.95, 7_315.0),
                (1.0, 7_436.0),
            ]),
            answer: Length::Quantiles(&[
                (0.0, 1.0),
                (0.05, 6.0),
                (0.5, 13.0),
                (0.9, 55.0),
                (0.95, 90.0),
                (0.99, 252.0),
                (1.0, 900.0),
            ]),
        },
        // An answer is over before a second prompt is; what counts is the first token.
        slo: Slo { ttft_ms: 1_000.0, tpot_ms: 300.0 },
        ..PLAIN
    },
    Scenario {
        name: "f-azure-conv",
        fleet: &[("l40s", 6)],
        rate: 14.0,
        shape: Shape::Plain {
            prompt: Length::Quantiles(&[
                (0.0, 10.0),
                (0.05, 181.0),
                (0.5, 1_020.0),
                (0.9, 2_735.0),
                (0.95, 4_083.0),
                (0.99, 4_142.0),
                (1.0, 8_000.0),
            ]),
            answer: Length::Quantiles(&[
                (0.0, 8.0),
                (0.05, 41.0),
                (0.5, 129.0),
                (0.9, 424.0),
                (0.95, 451.0),
                (0.99, 601.0),
                (1.0, 1_000.0),
            ]),
        },
        ..PLAIN
    },
    Scenario {
        name: "f-mooncake",
        fleet: &[("h100", 6)],
        rate: 6.0,
        shape: Shape::Reuse {
            prompt: Length::Quantiles(&[
                (0.0, 300.0),
                (0.05, 901.0),
                (0.5, 6_909.0),
                (0.9, 27_367.0),
                (0.95, 39_552.0),
                (0.99, 85_401.0),
                (1.0, 110_000.0),
            ]),
            answer: Length::Quantiles(&[
                (0.0, 2.0),
                (0.05, 10.0),
                (0.5, 350.0),
                (0.9, 597.0),
                (0.95, 698.0),
                (0.99, 1_120.0),
                (1.0, 2_000.0),
            ]),
            again: 0.8,
            recent: 200,
        },
        slo: Slo { ttft_ms: 5_000.0, tpot_ms: 100.0 },
        ..PLAIN
    },
    Scenario {
        name: "g-slow-pod",
        faults: &[Fault { at: 0.3, pod: 0, what: Trouble::Slow(5.0) }],
        ..TROUBLED
    },
    Scenario {
        name: "g-dead-pod",
        faults: &[Fault { at: 0.4, pod: 0, what: Trouble::Dies }],
        ..TROUBLED
    },
    Scenario {
        name: "g-frozen-metrics",
        faults: &[Fault { at: 0.0, pod: 0, what: Trouble::Freezes }],
        ..TROUBLED
    },
    Scenario { name: "h-mixed-8b-x8", gateways: 8, ..MIXED_8B },
    Scenario { name: "h-prefix-8b-x8", gateways: 8, ..PREFIX },
    Scenario { name: "h-uniform-x8", gateways: 8, ..UNIFORM },
    Scenario { name: "h-mixed-8b-x8-silent", gateways: 8, exchange: false, ..MIXED_8B },
    Scenario { name: "h-prefix-8b-x8-silent", gateways: 8, exchange: false, ..PREFIX },
    Scenario { name: "h-uniform-x8-silent", gateways: 8, exchange: false, ..UNIFORM },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Gpu;
    use crate::sim::traffic::Traffic;

    #[test]
    fn as_much_is_reused_as_in_the_trace() {
        // 36.6 % of the blocks of that hour were those of an earlier prompt.
        let mooncake = Scenario::named("f-mooncake").unwrap();
        let kind = (mooncake.shape, mooncake.arrivals);
        let (mut seen, mut hits, mut all) = (std::collections::HashSet::new(), 0, 0);
        for (_, ask) in Traffic::new(kind, 3.4, 900.0, 1, 1) {
            let prompt = &ask.blocks[..ask.prompt as usize / 16];
            hits += prompt.iter().take_while(|hash| seen.contains(*hash)).count();
            all += prompt.len();
            seen.extend(ask.blocks);
        }
        let share = hits as f64 / all as f64;
        assert!((0.3..0.43).contains(&share), "{share}");
    }

    #[test]
    fn every_scenario_can_run() {
        for scenario in SCENARIOS {
            assert!(std::ptr::eq(Scenario::named(scenario.name).unwrap(), scenario));
            let known = scenario.fleet.iter().all(|(gpu, _)| Gpu::named(gpu).is_some());
            assert!(known && scenario.rate > 0.0 && scenario.gateways > 0, "{}", scenario.name);
            let faults = scenario.faults;
            assert!(
                faults.iter().all(|f| f.pod < scenario.pods() && f.at < 1.0),
                "{}",
                scenario.name
            );
        }
        assert!(Scenario::named("z").is_none());
        assert_eq!(SCENARIOS[0].at(0.5).rate, SCENARIOS[0].rate / 2.0);
    }
}
