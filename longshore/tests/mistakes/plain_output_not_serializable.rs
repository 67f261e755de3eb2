use longshore::prelude::*;

struct MessageId(u64);

fn main() {
    let worker = Worker::connect("localhost").durable_subscribe("/mail");
    let _ = worker.run(|_: Job<String>, _: JobContext| async { Ok(MessageId(7)) });
    //~^ or `longshore::Json` of a type with `serde::Serialize`
}
