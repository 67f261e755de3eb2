//! Enqueues ten jobs. Start a system first: `longshore up`.

use longshore::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/mail/welcome", max_attempts = 5, timeout = "30s")]
struct Welcome {
    to: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let producer = Producer::connect("127.0.0.1");
    for n in 1..=10 {
        let to = format!("user-{n}@example.com");
        let receipt = producer.enqueue(Welcome { to }).await?;
        println!("{receipt} is on disk");
    }
    Ok(())
}
