//! The worker's state machines. They have no clock, no socket and no randomness of their own: time
//! is an argument, and the randomness has a seed.

pub(super) mod blocked;
pub(super) mod checkpoints;
pub(super) mod counts;
pub(super) mod credits;
pub(super) mod durable;
pub(super) mod leases;
pub(super) mod pause;
pub(super) mod progress;
pub(super) mod ready_jobs;
pub(super) mod reconnect_grace;
pub(super) mod run_length;
pub(super) mod settles;
pub(super) mod subscriptions;
