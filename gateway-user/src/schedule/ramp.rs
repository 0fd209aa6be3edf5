//! A pod that has come back gets its share of the requests bit by bit. Pure.
//!
//! It has nothing in flight, so it is the best for each request, and gets all that come until it has as many as the
//! others: a flood, to a server whose caches are cold and whose kernels may still have to be compiled, or that is about to fail
//! again. For [`RAMP`] it is therefore held to a part of what the others have in flight, which grows with the time since it
//! came back, and gets more only where no other pod of the same standing would take the request. So nothing is refused
//! for its sake, and pods that are all just back hold each other to nothing.

use std::time::Duration;

use super::PodView;

/// What pods have that are not just back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settled {
    /// Requests in flight at one of them, on average.
    usual: f32,
    /// The least share that each of the others is let have.
    least: f32,
}

/// What a pod that has been back for so long may have, as a share of what others have. `None`: as much as it likes.
pub fn share(back: Option<Duration>) -> Option<f32> {
    let share = back?.as_secs_f32() / RAMP.as_secs_f32();
    (share < 1.0).then_some(share)
}

impl Settled {
    /// Of the ready ones of `pods`; `None` where all of these are just back.
    pub fn of(pods: &[PodView]) -> Option<Self> {
        let ready = || pods.iter().filter(|pod| pod.ready);
        let settled = || ready().filter(|pod| pod.share.is_none());
        let (count, all) = (settled().count() as f32, ready().count() as f32);
        if count == 0.0 {
            return None;
        }
        let in_flight: f32 = settled().map(|pod| pod.in_flight as f32).sum();
        // Where most are just back, the few others would be the ones to get a flood. With this they have at most twice
        // what each would have if all were alike: from `count * 2 + back * x = all` and `least = x / 2`.
        let back = all - count;
        let least = if back > count { (back - count) / (2.0 * back) } else { 0.0 };
        Some(Self { usual: in_flight / count, least })
    }

    /// Whether `pod` is just back and has all that it may have for now.
    pub fn hold(&self, pod: &PodView) -> bool {
        // One at a time shows that it works.
        let most = |share: f32| (share.max(self.least) * self.usual).max(1.0);
        pod.share.is_some_and(|share| pod.in_flight as f32 >= most(share))
    }
}

/// How long that lasts: engines that have just started are seen to take some seconds for their first requests.
const RAMP: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(share: Option<f32>, in_flight: u32) -> PodView {
        PodView { ready: true, share, in_flight, ..PodView::default() }
    }

    #[test]
    fn the_share_grows_with_time() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (back, expected) in [
            (None, None),
            (ms(0), Some(0.0)),
            (ms(2500), Some(0.25)),
            (ms(7500), Some(0.75)),
            (ms(10_000), None),
            (ms(3_600_000), None),
        ] {
            assert_eq!(share(back), expected, "{back:?}");
        }
    }

    #[test]
    fn the_others_say_what_is_usual() {
        let (out, back) = (PodView { ready: false, ..pod(None, 90) }, pod(Some(0.5), 100));
        let settled = |usual, least| Some(Settled { usual, least });
        for (pods, expected) in [
            (vec![], None),
            (vec![out], None),
            (vec![back, back], None),
            (vec![pod(None, 8), out], settled(8.0, 0.0)),
            (vec![pod(None, 8), pod(None, 3), back], settled(5.5, 0.0)),
            (vec![pod(None, 8), back], settled(8.0, 0.0)),
            // One of three has half of all then, which is one and a half times a third.
            (vec![pod(None, 8), back, back], settled(8.0, 0.25)),
            (vec![pod(None, 8), back, back, back, back], settled(8.0, 0.375)),
        ] {
            assert_eq!(Settled::of(&pods), expected, "{pods:?}");
        }
    }

    #[test]
    fn a_pod_is_held_at_its_share_and_not_below() {
        for (share, in_flight, usual, least, held) in [
            (None, 100, 1.0, 0.0, false),
            (Some(0.0), 0, 40.0, 0.0, false),
            (Some(0.0), 1, 40.0, 0.0, true),
            (Some(0.1), 3, 40.0, 0.0, false),
            (Some(0.1), 4, 40.0, 0.0, true),
            (Some(0.99), 39, 40.0, 0.0, false),
            (Some(0.99), 40, 40.0, 0.0, true),
            (Some(0.1), 9, 40.0, 0.25, false),
            (Some(0.1), 10, 40.0, 0.25, true),
            (Some(0.5), 19, 40.0, 0.25, false),
            // The others are idle.
            (Some(0.5), 0, 0.0, 0.0, false),
            (Some(0.5), 1, 0.0, 0.0, true),
        ] {
            let found = Settled { usual, least }.hold(&pod(share, in_flight));
            assert_eq!(found, held, "{share:?} {in_flight} {least}");
        }
    }

    /// Requests go to whichever pod has the fewest in flight and is not held.
    #[test]
    fn few_settled_pods_get_at_most_twice_their_part() {
        for (settled, back) in [(1, 1), (3, 1), (1, 3), (1, 9), (2, 30)] {
            let mut pods = vec![pod(None, 0); settled];
            pods.extend(vec![pod(Some(0.0), 0); back]);
            let all = 100 * pods.len() as u32;
            for _ in 0..all {
                let known = Settled::of(&pods).unwrap();
                let open = pods.iter_mut().filter(|pod| !known.hold(pod));
                open.min_by_key(|pod| pod.in_flight).unwrap().in_flight += 1;
            }
            let most = pods.iter().map(|pod| pod.in_flight).max().unwrap();
            assert!(most <= 205, "{settled} {back}: {most}");
        }
    }
}
