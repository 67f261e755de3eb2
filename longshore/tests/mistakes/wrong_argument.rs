use longshore::prelude::*;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/mail")]
struct Mail;

struct Pool;

async fn send(_: Payload<Mail>, _: Pool) -> Result<(), JobFailure> {
    Ok(())
}

fn main() {
    let _ = Worker::connect("localhost").handle(send);
    //~^ the other arguments are up to six of `longshore::State<T>`, `JobContext`
}
