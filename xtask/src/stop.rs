//! Ctrl-C and its like, turned into a flag that every thread of a task looks at.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};

/// Set once, when the task is to end.
#[derive(Default)]
pub(crate) struct Stop {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Takes SIGINT, SIGTERM and SIGHUP from now on: the first sets the flag, the second ends this
    /// process at once, and the kernel its children with it.
    ///
    /// Call it before there are other threads: those inherit that the signals are blocked, so that only the
    /// thread made here gets them. Started programs inherit it too, unless they are told otherwise.
    ///
    /// # Errors
    /// The system refused.
    pub(crate) fn on_signals() -> anyhow::Result<Arc<Self>> {
        let signals: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        signals.thread_block().context("cannot block signals")?;
        let stop = Arc::new(Self::default());
        let setter = Arc::clone(&stop);
        thread::Builder::new().name("signals".into()).spawn(move || {
            while signals.wait().is_ok() {
                if setter.is_set() {
                    std::process::exit(INTERRUPTED);
                }
                setter.set();
            }
        })?;
        Ok(stop)
    }

    /// Sets it.
    pub(crate) fn set(&self) {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Whether it is set.
    pub(crate) fn is_set(&self) -> bool {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for that long, or until it is set; whether it is set.
    pub(crate) fn wait(&self, pause: Duration) -> bool {
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(set, pause, |set| !*set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// What shells give for a program that SIGINT ended.
const INTERRUPTED: i32 = 130;
