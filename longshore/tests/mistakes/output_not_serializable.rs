use longshore::prelude::*;

struct MessageId(u64);

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
//~^ required for `JsonCodec` to implement `longshore::Codec<MessageId>`
#[job(path = "/mail", output = MessageId)]
struct Mail;

fn main() {}
