//! Tortures two handlers: `cargo run --package longshore-examples --example torture`. One charges
//! twice if its worker dies at the wrong moment. In your program this is a `#[test]`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use longshore::State;
use longshore::prelude::*;
use longshore::testing::{Outcome, Torture, TortureError, TortureReport};
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/charge")]
struct Charge {
    cents: u64,
}

/// The bank as tests have it: its charges by key.
#[derive(Clone, Default)]
struct Bank(Arc<Mutex<BTreeMap<String, u64>>>);

impl Bank {
    /// A real bank is a network away: the request may be lost, or its answer.
    async fn charge(&self, key: String, cents: u64) {
        yield_now().await;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, cents);
        yield_now().await;
    }
}

async fn careless(job: Payload<Charge>, bank: State<Bank>, ctx: JobContext) -> anyhow::Result<()> {
    bank.0.charge(format!("attempt {}", ctx.attempt()), job.0.cents).await;
    Ok(())
}

async fn careful(job: Payload<Charge>, bank: State<Bank>, ctx: JobContext) -> anyhow::Result<()> {
    bank.0.charge(ctx.id().to_string(), job.0.cents).await;
    Ok(())
}

fn charged_once(bank: &Bank, _: &Outcome) -> Result<(), String> {
    let times = bank.0.lock().unwrap_or_else(PoisonError::into_inner).len();
    if times == 1 { Ok(()) } else { Err(format!("charged {times} times")) }
}

/// The reports of both.
pub(crate) fn charges() -> [Result<TortureReport, TortureError>; 2] {
    let torture = || Torture::new(Bank::default).job(Charge { cents: 500 }).invariant(charged_once);
    [torture().handle(careless).run(), torture().handle(careful).run()]
}

fn main() {
    charges().into_iter().for_each(|report| println!("{report:#?}\n"));
}
