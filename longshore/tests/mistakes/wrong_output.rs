use longshore::prelude::*;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/mail", output = u64)]
struct Mail;

async fn send(_: Payload<Mail>) -> Result<(), JobFailure> {
    Ok(())
}

fn main() {
    let _ = Worker::connect("localhost").handle(send);
    //~^ its `Output` is `()`, or `#[job(output = …)]`
}
