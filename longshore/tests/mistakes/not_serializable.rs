use longshore::JobKind;

#[derive(JobKind)]
//~^ required for `JsonCodec` to implement `longshore::Codec<Mail>`
#[job(path = "/mail")]
struct Mail;

fn main() {}
