//! Requests that wait for a place while every pod of their pool is full: those of a higher priority first, then in the
//! order in which they came, each no longer than the pool lets it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::schedule::NoPod;

/// The queue of one pool.
#[derive(Debug, Default)]
pub(super) struct Queue {
    line: Mutex<Line>,
    freed: Notify,
    waiting: Gauge,
}

/// Those that wait, the next one first, each with what tells it that it is.
#[derive(Debug, Default)]
struct Line {
    all: BTreeMap<Place, Arc<Notify>>,
    came: u64,
}

/// A higher priority is earlier; then the smaller number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Place {
    priority: Reverse<i32>,
    number: u64,
}

impl Queue {
    /// An empty queue, whose length `waiting` tells.
    pub(super) fn new(waiting: Gauge) -> Self {
        Self { waiting, ..Self::default() }
    }

    /// Requests in it.
    pub(super) fn waiting(&self) -> i64 {
        self.waiting.get()
    }

    /// A place may have become free.
    pub(super) fn freed(&self) {
        // Else the next to wait would be woken in vain.
        if self.waiting() > 0 {
            self.freed.notify_one();
        }
    }

    /// Tries whenever that may help, until there is another answer than that all are full or `patience` has
    /// passed. Dropped, it leaves the queue.
    pub(super) async fn wait<T>(
        &self,
        patience: Duration,
        priority: i32,
        mut attempt: impl FnMut() -> Result<T, NoPod>,
    ) -> Result<T, NoPod> {
        let until = Instant::now() + patience;
        let waiting = Waiting::new(self, priority);
        loop {
            let is_front = waiting.is_front();
            if is_front {
                match attempt() {
                    Err(NoPod::Saturated) => {}
                    other => return other,
                }
            }
            let now = Instant::now();
            if now >= until {
                return Err(NoPod::Saturated);
            }
            if !is_front {
                let _ = timeout_at(until, waiting.turn.notified()).await;
                continue;
            }
            // A place that becomes free before this waits for it is kept as a permit.
            let look = until.min(now + LOOK);
            let was_freed = timeout_at(look, self.freed.notified()).await.is_ok();
            if was_freed && !waiting.is_front() {
                // It is for the one that has come in front.
                self.freed.notify_one();
            }
        }
    }
}

/// One that waits is in the queue and is counted as long as this lives.
struct Waiting<'a> {
    queue: &'a Queue,
    place: Place,
    /// It is the first now.
    turn: Arc<Notify>,
}

impl<'a> Waiting<'a> {
    fn new(queue: &'a Queue, priority: i32) -> Self {
        let turn = Arc::new(Notify::new());
        let mut line = queue.line.lock();
        line.came += 1;
        let place = Place { priority: Reverse(priority), number: line.came };
        line.all.insert(place, Arc::clone(&turn));
        queue.waiting.inc();
        Self { queue, place, turn }
    }

    fn is_front(&self) -> bool {
        let line = self.queue.line.lock();
        line.all.first_key_value().is_some_and(|(first, _)| *first == self.place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut line = self.queue.line.lock();
        line.all.remove(&self.place);
        if let Some((_, next)) = line.all.first_key_value() {
            next.notify_one();
        }
        self.queue.waiting.dec();
    }
}

/// How often the first looks anyway: what a pod is expected to take falls with time alone.
const LOOK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use tokio::task::{LocalSet, spawn_local};
    use tokio::time::sleep;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Takes one of `places` if there is one.
    fn take(places: &Cell<u32>) -> Result<(), NoPod> {
        let left = places.get().checked_sub(1).ok_or(NoPod::Saturated)?;
        places.set(left);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_given_in_order_and_as_soon_as_they_are_free() {
        let local = LocalSet::new();
        let queue = Rc::new(Queue::default());
        let places = Rc::new(Cell::new(0));
        let served = Rc::new(RefCell::new(Vec::new()));
        let start = Instant::now();
        for number in 0..5 {
            let (queue, places, served) = (queue.clone(), places.clone(), served.clone());
            local.spawn_local(async move {
                let result = queue.wait(100 * MS, 0, || take(&places)).await;
                served.borrow_mut().push((number, result, start.elapsed().as_millis()));
            });
        }
        local
            .run_until(async {
                sleep(5 * MS).await;
                assert_eq!(queue.waiting(), 5);
                places.set(2);
                queue.freed();
                sleep(45 * MS).await;
                places.set(1);
                queue.freed();
                sleep(100 * MS).await;
            })
            .await;
        let late = Err(NoPod::Saturated);
        let expected =
            [(0, Ok(()), 5), (1, Ok(()), 5), (2, Ok(()), 50), (3, late, 100), (4, late, 100)];
        // The last two give up at the same moment.
        served.borrow_mut().sort_by_key(|(number, _, at)| (*at, *number));
        assert_eq!(*served.borrow(), expected);
        assert_eq!(queue.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_higher_priority_comes_first_and_of_one_the_earlier() {
        let local = LocalSet::new();
        let queue = Rc::new(Queue::default());
        let places = Rc::new(Cell::new(0));
        let served = Rc::new(RefCell::new(Vec::new()));
        for (number, priority) in [0, 5, 0, i32::MAX, 5].into_iter().enumerate() {
            let (queue, places, served) = (queue.clone(), places.clone(), served.clone());
            local.spawn_local(async move {
                // They come one behind the other.
                sleep(MS * number as u32).await;
                if queue.wait(300 * MS, priority, || take(&places)).await.is_ok() {
                    served.borrow_mut().push(number);
                }
            });
        }
        local
            .run_until(async {
                sleep(5 * MS).await;
                assert_eq!(queue.waiting(), 5);
                for _ in 0..4 {
                    places.set(1);
                    queue.freed();
                    // Less than until somebody looks anyway: whoever is in front has been told.
                    sleep(MS).await;
                    assert_eq!(places.get(), 0);
                }
                sleep(400 * MS).await;
            })
            .await;
        assert_eq!(*served.borrow(), [3, 1, 4, 0]);
        assert_eq!((queue.waiting(), queue.line.lock().all.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_makes_room_and_other_answers_end_the_wait() {
        LocalSet::new()
            .run_until(async {
                let queue = Rc::new(Queue::default());
                let first = spawn_local({
                    let queue = queue.clone();
                    async move { queue.wait(MS * 1000, 0, || Err::<(), _>(NoPod::Saturated)).await }
                });
                sleep(MS).await;
                first.abort();
                let _ = first.await;
                assert_eq!(queue.waiting(), 0);
                let empty = queue.wait(MS * 1000, 0, || Err::<(), _>(NoPod::Empty)).await;
                assert_eq!(empty, Err(NoPod::Empty));
                // What is not told of is found by looking.
                let seen = Cell::new(0);
                let start = Instant::now();
                let looked = queue.wait(MS * 1000, 0, || {
                    seen.set(seen.get() + 1);
                    if seen.get() == 3 { Ok(()) } else { Err(NoPod::Saturated) }
                });
                assert_eq!((looked.await, start.elapsed()), (Ok(()), 2 * LOOK));
            })
            .await;
    }
}
