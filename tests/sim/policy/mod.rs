//! Who gets a request: the policies that are compared, each behind [`Policy`], one for each gateway.

mod index;
mod product;
mod reference;
mod simple;
mod sluice;

use gateway_user::schedule::NoPod;

use super::gateway::{Looks, Seen};
use super::traffic::Ask;

/// Picks pods for one gateway, from what that gateway knows.
pub trait Policy {
    /// How it looks at metrics.
    fn looks(&self) -> Looks {
        Looks::Never
    }

    /// The pod for a request.
    ///
    /// # Errors
    /// No pod may be given it: the client gets a 429, or a 503.
    fn pick(&mut self, ask: &Ask, pods: &[Seen], now: u64) -> Result<usize, NoPod>;

    /// The request went there.
    fn sent(&mut self, _pod: usize, _ask: &Ask, _now: u64) {}

    /// Its first token came.
    fn began(&mut self, _pod: usize, _ask: &Ask, _now: u64) {}

    /// It is over, so many tokens of its answer seen: all of them, or the pod died.
    fn ended(&mut self, _pod: usize, _ask: &Ask, _tokens: u32, _now: u64) {}

    /// The pod was asked for its metrics and answered.
    fn looked(&mut self, _pod: usize, _seen: &Seen, _now: u64) {}

    /// The pod is gone, and with it all that it remembered.
    fn gone(&mut self, _pod: usize) {}

    /// What it tells the other gateways now: datagrams.
    fn tell(&mut self, _pods: &[Seen], _now: u64) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Another gateway told this.
    fn hear(&mut self, _datagram: &[u8], _now: u64) {}
}

/// A policy by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// One after the other.
    RoundRobin,
    /// By lot.
    Random,
    /// The fewest of this gateway's own requests.
    LeastRequest,
    /// The one of two by lot with fewer of this gateway's own requests.
    PowerOfTwo,
    /// The reference picker with its defaults.
    ReferenceDefault,
    /// The least product of prompt tokens to compute and batch size.
    PrefillBatchProduct,
    /// `schedule` with its default profile.
    SluiceLatency,
    /// `schedule` with the profile for batches.
    SluiceThroughput,
}

impl Name {
    /// All, in the order of tables.
    pub const ALL: [Self; 8] = [
        Self::RoundRobin,
        Self::Random,
        Self::LeastRequest,
        Self::PowerOfTwo,
        Self::ReferenceDefault,
        Self::PrefillBatchProduct,
        Self::SluiceLatency,
        Self::SluiceThroughput,
    ];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
            Self::LeastRequest => "least-request",
            Self::PowerOfTwo => "power-of-two",
            Self::ReferenceDefault => "reference-default",
            Self::PrefillBatchProduct => "prefill-batch-product",
            Self::SluiceLatency => "sluice-latency",
            Self::SluiceThroughput => "sluice-throughput",
        }
    }

    /// The policy of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == name)
    }

    /// The policy for one gateway before so many pods.
    pub fn policy(self, pods: usize, seed: u64) -> Box<dyn Policy> {
        let rng = fastrand::Rng::with_seed(seed);
        match self {
            Self::RoundRobin => Box::new(simple::RoundRobin::new(rng)),
            Self::Random => Box::new(simple::Random(rng)),
            Self::LeastRequest => Box::new(simple::LeastRequest(rng)),
            Self::PowerOfTwo => Box::new(simple::PowerOfTwo(rng)),
            Self::ReferenceDefault => Box::new(reference::Reference::new(pods, rng)),
            Self::PrefillBatchProduct => Box::new(product::Product::new(pods, rng)),
            Self::SluiceLatency => Box::new(sluice::Sluice::latency(pods, rng)),
            Self::SluiceThroughput => Box::new(sluice::Sluice::throughput(pods, rng)),
        }
    }
}

/// The pods that may be picked at all.
///
/// # Errors
/// There is none.
fn open(pods: &[Seen]) -> Result<Vec<usize>, NoPod> {
    let open: Vec<usize> =
        (0..pods.len()).filter(|at| pods[*at].ready && !pods[*at].tried).collect();
    if !open.is_empty() {
        return Ok(open);
    }
    Err(if pods.iter().any(|pod| pod.ready) { NoPod::Exhausted } else { NoPod::Empty })
}

/// One of those with the least cost, by lot.
fn least(
    open: &[usize],
    rng: &mut fastrand::Rng,
    cost: impl Fn(usize) -> f64,
) -> Result<usize, NoPod> {
    let (mut best, mut equal, mut lowest) = (None, 0, f64::INFINITY);
    for &pod in open {
        let cost = cost(pod);
        if cost < lowest {
            (best, equal, lowest) = (Some(pod), 1, cost);
        } else if cost == lowest {
            equal += 1;
            if rng.u32(..equal) == 0 {
                best = Some(pod);
            }
        }
    }
    best.ok_or(NoPod::Empty)
}

#[cfg(test)]
mod tests {
    use gateway_user::schedule::Signals;

    use super::*;

    /// A pod with so many running, waiting and own requests.
    pub(super) fn seen(running: u32, waiting: u32, in_flight: u32) -> Seen {
        let signals = Signals {
            running: Some(running),
            waiting: Some(waiting),
            kv_usage: Some(0.0),
            ..Signals::default()
        };
        Seen { ready: true, in_flight, signals, at: Some(0), kv_blocks: 10_000, ..Seen::default() }
    }

    #[test]
    fn names_are_found() {
        for name in Name::ALL {
            assert_eq!(Name::named(name.as_str()), Some(name));
        }
        assert_eq!(Name::named("luck"), None);
    }

    #[test]
    fn no_policy_takes_a_pod_that_is_gone_or_was_tried() {
        let mut pods = vec![seen(0, 0, 0); 4];
        pods[1].ready = false;
        pods[2].tried = true;
        let mut some = vec![seen(0, 0, 0); 2];
        some[0].ready = false;
        some[1].tried = true;
        for name in Name::ALL {
            let mut policy = name.policy(4, 1);
            let mut counts = [0; 4];
            for now in 0..40 {
                let ask = Ask { id: now, prompt: 100, ..Ask::default() };
                let pod = policy.pick(&ask, &pods, now).unwrap();
                policy.sent(pod, &ask, now);
                counts[pod] += 1;
            }
            assert_eq!((counts[1], counts[2]), (0, 0), "{name:?}");
            assert!(counts[0] > 5 && counts[3] > 5, "{name:?}: {counts:?}");
            let refused = policy.pick(&Ask::default(), &some, 50);
            assert_eq!(refused, Err(NoPod::Exhausted), "{name:?}");
            some[1].ready = false;
            assert_eq!(policy.pick(&Ask::default(), &some, 50), Err(NoPod::Empty), "{name:?}");
            some[1].ready = true;
        }
    }
}
