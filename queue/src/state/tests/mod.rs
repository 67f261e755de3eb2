//! The state against a naive model, and what the model does not cover: fairness, cost, memory,
//! malformed snapshots.

mod batch_model;
mod batches;
mod fairness;
mod free_handlers;
mod graph;
mod hashing;
mod limits;
mod model;
mod scenario;
mod schedules;
mod snapshots;
mod step_counts;
mod unmodelled;
