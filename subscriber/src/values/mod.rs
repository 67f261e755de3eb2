//! Live values, the subscriber's side.

mod choice;
mod race;
mod retries;
