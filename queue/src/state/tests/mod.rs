//! Stories about jobs, told against the state in virtual time. Every command of every story is also encoded and decoded,
//! and followed by a full scan.

mod acting;
mod batches;
mod checkpoints;
mod crashes;
mod dead_letters;
mod dispatching;
mod draining;
mod events;
mod expiry;
mod handouts;
mod hashing;
mod history;
mod keeping;
mod leases;
mod model;
mod pausing;
mod prepared;
mod replacing;
mod retries;
mod ruling;
mod snapshots;
mod sources;
mod stepping;
mod story;
mod time;
mod wrong_states;
