use longshore::prelude::*;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/mail")]
struct Mail;

fn send(_: Payload<Mail>) -> Result<(), JobFailure> {
    Ok(())
}

fn main() {
    let _ = Worker::connect("localhost").handle(send);
    //~^ a function that is not async goes to `handle_blocking`
}
