//! Which pod has which response of the Responses interface: requests about one by its id have to go there, as the
//! state lives in the one process that made it.
//!
//! Bounded: of the responses that nobody has asked about for longest the pod is forgotten. Shared by all workers,
//! and touched by requests of this interface only.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::pool::PodId;

/// Where a response is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Found {
    /// At this pod.
    At(PodId),
    /// Somebody else's.
    Others,
    /// Not remembered.
    Nowhere,
}

/// The pods of responses, by the responses' ids.
#[derive(Debug)]
pub struct Responses {
    generations: Mutex<Generations>,
    most: usize,
}

/// The old half is forgotten whole when the young one is full; what is asked about becomes young again.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Box<str>, Stored>,
    old: HashMap<Box<str>, Stored>,
}

#[derive(Debug)]
struct Stored {
    pod: PodId,
    owner: Option<Box<str>>,
    /// The model that was asked for, where another one has made it.
    named: Option<Box<str>>,
    /// Its tokens are still to be counted.
    owes_usage: bool,
}

impl Responses {
    /// Remembers at most so many.
    pub fn new(most: usize) -> Self {
        Self { generations: Mutex::default(), most }
    }

    /// `pod` has made the response `id`, for `owner` where callers are told apart, who asked for the model `named` where
    /// that is another one.
    pub fn learn(&self, id: &str, pod: PodId, owner: Option<Box<str>>, named: Option<Box<str>>) {
        if id.is_empty() || id.len() > MAX_ID {
            return;
        }
        let mut generations = self.generations.lock();
        let Generations { young, old } = &mut *generations;
        // Engines let clients choose ids: nobody takes another's response away by naming his own like it.
        if young.get(id).or(old.get(id)).is_some_and(|known| known.owner != owner) {
            return;
        }
        let known = generations.old.remove(id);
        let known = known.or_else(|| generations.young.remove(id));
        let owes_usage = known.is_some_and(|known| known.owes_usage);
        generations.young.insert(id.into(), Stored { pod, owner, named, owes_usage });
        generations.turn(self.most);
    }

    /// The response `id` is made in the background: its tokens are not known yet.
    pub fn owe_usage(&self, id: &str) {
        if let Some(stored) = self.generations.lock().young.get_mut(id) {
            stored.owes_usage = true;
        }
    }

    /// The tokens of the response `id` are known now: whether they are still to be counted, which is told once.
    pub fn settle_usage(&self, id: &str) -> bool {
        let mut generations = self.generations.lock();
        let Generations { young, old } = &mut *generations;
        let stored = young.get_mut(id).or_else(|| old.get_mut(id));
        stored.is_some_and(|stored| std::mem::take(&mut stored.owes_usage))
    }

    /// The model that was asked for when another one made the response `id`.
    pub fn named(&self, id: &str) -> Option<Box<str>> {
        let generations = self.generations.lock();
        generations.young.get(id).or_else(|| generations.old.get(id))?.named.clone()
    }

    /// Where the response `id` is, for `owner` to use.
    pub fn find(&self, id: &str, owner: Option<&str>) -> Found {
        let mut generations = self.generations.lock();
        if let Some((id, stored)) = generations.old.remove_entry(id) {
            generations.young.insert(id, stored);
        }
        let found = match generations.young.get(id) {
            Some(stored) if stored.owner.as_deref() == owner => Found::At(stored.pod),
            Some(_) => Found::Others,
            None => Found::Nowhere,
        };
        generations.turn(self.most);
        found
    }
}

impl Default for Responses {
    fn default() -> Self {
        Self::new(MOST)
    }
}

impl Generations {
    fn turn(&mut self, most: usize) {
        if self.young.len() > most / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

/// Responses that are remembered: about 120 bytes each.
const MOST: usize = 128 * 1024;

/// Longest id, in bytes; vLLM's have 37.
pub const MAX_ID: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::tests::pool;

    #[test]
    fn nobody_takes_anothers_response_away() {
        let pods = pool(2, "").pods();
        let responses = Responses::new(100);
        responses.learn("resp", pods[0].id, Some("alice".into()), None);
        responses.learn("resp", pods[1].id, Some("bob".into()), None);
        assert_eq!(responses.find("resp", Some("alice")), Found::At(pods[0].id));
        assert_eq!(responses.find("resp", Some("bob")), Found::Others);
        responses.learn("resp", pods[1].id, Some("alice".into()), None);
        assert_eq!(responses.find("resp", Some("alice")), Found::At(pods[1].id));
    }

    #[test]
    fn the_latest_are_remembered_and_no_more() {
        let pods = pool(2, "").pods();
        let responses = Responses::new(100);
        responses.learn("kept", pods[1].id, None, None);
        for number in 0..1000 {
            responses.learn(&format!("resp_{number}"), pods[0].id, None, None);
            assert_eq!(
                responses.find("kept", None),
                Found::At(pods[1].id),
                "asked about, at {number}"
            );
        }
        assert_eq!(responses.find("resp_999", None), Found::At(pods[0].id));
        assert_eq!(responses.find("resp_960", None), Found::At(pods[0].id));
        assert_eq!(responses.find("resp_800", None), Found::Nowhere);
        let generations = responses.generations.lock();
        assert!(generations.young.len() + generations.old.len() <= 102);
    }

    #[test]
    fn a_response_is_its_owners_alone() {
        let pods = pool(1, "").pods();
        let responses = Responses::default();
        responses.learn("resp_1", pods[0].id, Some("alice".into()), None);
        assert_eq!(responses.find("resp_1", Some("alice")), Found::At(pods[0].id));
        assert_eq!(responses.find("resp_1", Some("bob")), Found::Others);
        assert_eq!(responses.find("resp_1", None), Found::Others);
    }

    #[test]
    fn usage_that_is_owed_is_settled_once() {
        let pods = pool(1, "").pods();
        let responses = Responses::default();
        responses.owe_usage("resp_1");
        responses.learn("resp_1", pods[0].id, None, None);
        assert!(!responses.settle_usage("resp_1"));
        responses.owe_usage("resp_1");
        responses.learn("resp_1", pods[0].id, None, None);
        assert!(responses.settle_usage("resp_1"));
        assert!(!responses.settle_usage("resp_1"));
        assert!(!responses.settle_usage("resp_2"));
    }

    #[test]
    fn odd_ids_are_not_kept() {
        let pods = pool(1, "").pods();
        let responses = Responses::default();
        let long = "x".repeat(MAX_ID + 1);
        for id in ["", &long] {
            responses.learn(id, pods[0].id, None, None);
            assert_eq!(responses.find(id, None), Found::Nowhere);
        }
    }
}
