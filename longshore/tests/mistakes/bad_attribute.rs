use longshore::JobKind;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/mail", retries = 3)]
//~^ not an attribute of a job kind; there are path, output, codec, max_attempts
struct Mail;

fn main() {}
