//! Requests that wait for a place while every pod of their pool is full: in the order in which they came, each no
//! longer than the pool lets it.

use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout_at};

use crate::schedule::NoPod;

/// The queue of one pool.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Held by the first in the queue; gives itself out in the order of asking.
    front: Mutex<()>,
    freed: Notify,
    waiting: Gauge,
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
        mut attempt: impl FnMut() -> Result<T, NoPod>,
    ) -> Result<T, NoPod> {
        let until = Instant::now() + patience;
        let _waiting = Waiting::new(&self.waiting);
        let Ok(_front) = timeout_at(until, self.front.lock()).await else {
            return Err(NoPod::Saturated);
        };
        loop {
            match attempt() {
                Err(NoPod::Saturated) => {}
                other => return other,
            }
            let now = Instant::now();
            if now >= until {
                return Err(NoPod::Saturated);
            }
            // A place that becomes free before this waits for it is kept as a permit.
            let look = until.min(now + LOOK);
            let _ = timeout_at(look, self.freed.notified()).await;
        }
    }
}

/// One that waits is counted as long as this lives.
struct Waiting<'a>(&'a Gauge);

impl<'a> Waiting<'a> {
    fn new(count: &'a Gauge) -> Self {
        count.inc();
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.dec();
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
                let result = queue.wait(100 * MS, || take(&places)).await;
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
    async fn who_leaves_makes_room_and_other_answers_end_the_wait() {
        LocalSet::new()
            .run_until(async {
                let queue = Rc::new(Queue::default());
                let first = spawn_local({
                    let queue = queue.clone();
                    async move { queue.wait(MS * 1000, || Err::<(), _>(NoPod::Saturated)).await }
                });
                sleep(MS).await;
                first.abort();
                let _ = first.await;
                assert_eq!(queue.waiting(), 0);
                let empty = queue.wait(MS * 1000, || Err::<(), _>(NoPod::Empty)).await;
                assert_eq!(empty, Err(NoPod::Empty));
                // What is not told of is found by looking.
                let seen = Cell::new(0);
                let start = Instant::now();
                let looked = queue.wait(MS * 1000, || {
                    seen.set(seen.get() + 1);
                    if seen.get() == 3 { Ok(()) } else { Err(NoPod::Saturated) }
                });
                assert_eq!((looked.await, start.elapsed()), (Ok(()), 2 * LOOK));
            })
            .await;
    }
}
