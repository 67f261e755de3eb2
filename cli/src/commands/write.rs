//! `longshore value write`: writes to a live value, and prints its publisher's answer.

use longshore::Subscriber;
use serde_json::json;

use super::{Context, value_text};
use crate::arguments::Write;

pub(crate) async fn run(arguments: Write, mut context: Context) -> anyhow::Result<()> {
    let subscriber = Subscriber::connect(context.cluster());
    let value = value_text::parse(&arguments.value);
    let answer = subscriber.write(arguments.path.clone(), value, arguments.within).await?;
    if context.output.is_json() {
        context.output.json(&json!({
            "path": arguments.path.as_str(), "answer": value_text::to_json(&answer),
        }))?;
    } else {
        context.output.line(match answer {
            longshore::Value::Null => format!("{} accepted it", arguments.path),
            answer => answer.to_string(),
        })?;
    }
    Ok(())
}
