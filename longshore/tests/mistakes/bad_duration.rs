use longshore::JobKind;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/mail", timeout = "30 seconds")]
//~^ '30 seconds' is no duration: write a whole number with a unit, such as 250ms
struct Mail;

fn main() {}
