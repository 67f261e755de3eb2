//! The state against a naive model, and what the model does not show: fairness, cost, memory,
//! snapshots of any bytes.

mod beyond_the_model;
mod fairness;
mod hashing;
mod model;
mod scenario;
mod snapshots;
mod stepping;
