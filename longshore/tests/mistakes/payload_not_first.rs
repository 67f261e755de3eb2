use longshore::prelude::*;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/mail")]
struct Mail;

async fn send(_: JobContext, _: Payload<Mail>) -> Result<(), JobFailure> {
    Ok(())
}

fn main() {
    let _ = Worker::connect("localhost").handle(send);
    //~^ a handler is `async fn(Payload<Kind>, …) -> Result<Kind::Output, E>`
}
