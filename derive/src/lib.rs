//! `#[derive(JobKind)]`: a kind of job from a payload's type and its attributes.

mod attributes;
mod generate;
mod time;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `JobKind` for a payload's type. Paths, durations and back-offs are checked at compile
/// time. The options are those of enqueued jobs: workers do not need them, and a change does not
/// affect jobs that are already in a queue.
///
/// | Attribute | Meaning |
/// |---|---|
/// | `path = "/jobs/mail/welcome"` | the queue of its jobs; required. A segment `{field}` is filled from that field of the payload |
/// | `output = Type` | what its handler returns; `()` unless given |
/// | `codec = Type` | how payload and output are written; `longshore::JsonCodec` unless given |
/// | `max_attempts = 5` | attempts before the dead letters, 1 to 65,535 |
/// | `timeout = "30s"` | how long one attempt may run; `"0s"` for no limit |
/// | `lease = "30s"` | how soon a dead worker is noticed, 1 s to 12 h |
/// | `backoff = "exponential:2s..10m"` | the wait after a failed attempt; also `fixed:5s`, `linear:5s..10m`, `list:1s,5s,1m`, `quartic`, `hangfire` |
/// | `priority = 5` | higher first |
/// | `keep = "7d"` | how long the job is retained once it has ended |
/// | `keep_result` | the output is retained with it |
/// | `unique = "end"` | one job of a payload at a time: until it ends, `"start"`, or for a duration |
/// | `on_conflict = "replace"` | what becomes of a second one: `keep` (the first; the default), `replace`, `refuse` |
/// | `idempotency_key = "{field}"` | a second job with that key is the first one |
/// | `order_key = "{field}"` | jobs with that key run one at a time, in order |
/// | `limit_key = "{field}"`, `cost = 3` | the key of its limits, and its units of them |
/// | `fair_key = "{field}"`, `fair_weight = 5` | tenants take turns, by their weights |
/// | `crate = path` | where the crate `longshore` is, if it goes by another name |
///
/// Keys are texts of 1 to 80 bytes once their fields are filled in, as in
/// `order_key = "{tenant}/{account}"`. Durations are whole numbers with a unit: `250ms`, `30s`,
/// `5m`, `12h`, `7d`. A kind may have type parameters, if its codec encodes them; it owns its
/// payload, so it has no lifetimes. For `unique` and `idempotency_key` equal payloads have to
/// encode to equal bytes: use a `BTreeMap`, as a `HashMap` is written in another order each time.
#[proc_macro_derive(JobKind, attributes(job))]
pub fn job_kind(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    generate::job_kind(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
