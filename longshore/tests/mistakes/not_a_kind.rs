use longshore::prelude::*;

#[derive(serde::Serialize, serde::Deserialize)]
struct Mail;

async fn send(_: Payload<Mail>) -> Result<(), JobFailure> {
    Ok(())
}

fn main() {
    let _ = Worker::connect("localhost").handle(send);
    //~^ `Kind` has `#[derive(JobKind)]`
}
