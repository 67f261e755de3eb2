use longshore::prelude::*;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/mail")]
struct Mail;

async fn send(_: Payload<Mail>) -> Result<(), JobFailure> {
    Ok(())
}

fn main() {
    let _ = Worker::connect("localhost").handle_blocking(send);
    //~^ not async, with the arguments of other handlers; an async one goes to `handle`
}
