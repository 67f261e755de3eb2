//! Layers around handlers.

mod concurrency;
mod observe;
mod timeout;

pub use concurrency::{ConcurrencyByKey, ConcurrencyByKeyService};
pub use observe::{AttemptEnd, Observe, ObserveService, on_error};
pub use timeout::{Timeout, TimeoutService};
