use longshore::State;
use longshore::prelude::*;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/mail")]
struct Mail;

#[derive(Clone)]
struct Pool;

async fn send(_: Payload<Mail>, _: State<Pool>) -> Result<(), JobFailure> {
    Ok(())
}

fn main() {
    let _ = Worker::connect("localhost").handle(send);
    //~^ cannot handle jobs
    //~^ `State<T>` needs `.state(…)` of the type `T` before its handler
}
