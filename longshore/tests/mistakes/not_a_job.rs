use longshore::prelude::*;

#[derive(serde::Serialize)]
struct Mail;

fn main() {
    let _ = Producer::connect("localhost").enqueue(Mail);
    //~^ a job is a value of a type with `#[derive(JobKind)]`, or a `NewJob` of `new_job`
}
