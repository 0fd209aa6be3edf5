//! Behaviour tests, one module for each module of the daemon.

mod steer;
