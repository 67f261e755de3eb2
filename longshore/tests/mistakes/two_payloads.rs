use longshore::prelude::*;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/mail")]
struct Mail;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/report")]
struct Report;

async fn send(_: Payload<Mail>, _: Payload<Report>) -> Result<(), JobFailure> {
    Ok(())
}

fn main() {
    let _ = Worker::connect("localhost").handle(send);
    //~^ a handler is `async fn(Payload<Kind>, …) -> Result<Kind::Output, E>`
}
