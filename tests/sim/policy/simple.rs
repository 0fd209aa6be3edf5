//! Policies that look at no metrics, as load balancers that know nothing of models have them.

use fastrand::Rng;
use gateway_user::schedule::NoPod;

use super::{Policy, least, open};
use crate::sim::gateway::Seen;
use crate::sim::traffic::Ask;

/// One pod after the other.
pub(super) struct RoundRobin(usize);

impl RoundRobin {
    /// Begins anywhere: several gateways do not go in step.
    pub(super) fn new(mut rng: Rng) -> Self {
        Self(rng.usize(..1_000))
    }
}

impl Policy for RoundRobin {
    fn pick(&mut self, _: &Ask, pods: &[Seen], _: u64) -> Result<usize, NoPod> {
        let open = open(pods)?;
        self.0 = (self.0 + 1) % pods.len();
        Ok(open.iter().copied().find(|pod| *pod >= self.0).unwrap_or(open[0]))
            .inspect(|pod| self.0 = *pod)
    }
}

/// By lot.
pub(super) struct Random(pub(super) Rng);

impl Policy for Random {
    fn pick(&mut self, _: &Ask, pods: &[Seen], _: u64) -> Result<usize, NoPod> {
        let open = open(pods)?;
        Ok(open[self.0.usize(..open.len())])
    }
}

/// The fewest of this gateway's own requests.
pub(super) struct LeastRequest(pub(super) Rng);

impl Policy for LeastRequest {
    fn pick(&mut self, _: &Ask, pods: &[Seen], _: u64) -> Result<usize, NoPod> {
        least(&open(pods)?, &mut self.0, |pod| f64::from(pods[pod].in_flight))
    }
}

/// The one of two by lot that has fewer of this gateway's own requests.
pub(super) struct PowerOfTwo(pub(super) Rng);

impl Policy for PowerOfTwo {
    fn pick(&mut self, _: &Ask, pods: &[Seen], _: u64) -> Result<usize, NoPod> {
        let open = open(pods)?;
        let first = self.0.usize(..open.len());
        // Another one, if there is another.
        let second = (first + self.0.usize(1..open.len().max(2))) % open.len();
        let two = [open[first], open[second]];
        least(&two, &mut self.0, |pod| f64::from(pods[pod].in_flight))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::seen;
    use super::*;

    fn picks(policy: &mut dyn Policy, pods: &[Seen], count: usize) -> Vec<usize> {
        (0..count).map(|_| policy.pick(&Ask::default(), pods, 0).unwrap()).collect()
    }

    #[test]
    fn round_robin_goes_round_and_past_what_is_gone() {
        let mut pods = vec![seen(0, 0, 9), seen(0, 0, 0), seen(0, 0, 0)];
        let mut policy = RoundRobin(0);
        assert_eq!(picks(&mut policy, &pods, 6), [1, 2, 0, 1, 2, 0]);
        pods[1].ready = false;
        assert_eq!(picks(&mut policy, &pods, 4), [2, 0, 2, 0]);
    }

    #[test]
    fn least_request_takes_the_least_and_equals_by_lot() {
        let pods = [seen(0, 0, 3), seen(90, 9, 1), seen(0, 0, 1), seen(0, 0, 2)];
        let picks = picks(&mut LeastRequest(Rng::with_seed(1)), &pods, 100);
        assert!(picks.iter().all(|pod| [1, 2].contains(pod)), "{picks:?}");
        let ones = picks.iter().filter(|pod| **pod == 1).count();
        assert!((30..70).contains(&ones), "{ones}");
    }

    #[test]
    fn power_of_two_never_takes_the_worst_and_not_always_the_best() {
        let pods = [seen(0, 0, 0), seen(0, 0, 1), seen(0, 0, 2)];
        let picks = picks(&mut PowerOfTwo(Rng::with_seed(1)), &pods, 300);
        let count = |pod| picks.iter().filter(|pick| **pick == pod).count();
        assert_eq!(count(2), 0);
        // The best one is among two of three in two cases out of three.
        assert!((170..230).contains(&count(0)), "{}", count(0));
        assert_eq!(PowerOfTwo(Rng::with_seed(1)).pick(&Ask::default(), &pods[..1], 0), Ok(0));
    }
}
