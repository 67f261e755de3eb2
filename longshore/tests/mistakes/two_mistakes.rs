use longshore::JobKind;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/mail", max_attempts = 0, backoff = "sometimes")]
//~^ 1 to 65535 attempts are possible
//~^ 'sometimes' is no back-off: write exponential:2s..10m, fixed:5s
struct Mail;

fn main() {}
