//! Enqueues ten jobs. Start a system first: `longshore up`.

use longshore::prelude::*;

#[derive(serde::Serialize)]
struct Welcome {
    to: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let producer = Producer::connect("127.0.0.1", ProducerOptions::default());
    let path = Path::new("/jobs/mail/welcome")?;
    for n in 1..=10 {
        let welcome = Welcome { to: format!("user-{n}@example.com") };
        let job = new_job(path.clone(), serde_json::to_vec(&welcome)?);
        let receipt = producer.enqueue(job).await?;
        println!("{receipt} is on disk");
    }
    Ok(())
}
