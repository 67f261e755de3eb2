//! `longshore directory watch`: prints matching paths, then streams their changes.

use longshore::PathEvent;
use serde_json::{Value, json};

use super::{Context, ls, warn_if_incomplete};
use crate::arguments::Watch;
use crate::signals::StopSignal;
use crate::time::{show_timestamp, wall_ms};

pub(crate) async fn run(arguments: Watch, mut context: Context) -> anyhow::Result<()> {
    let stop = StopSignal::listen()?;
    let mut watch = context.read_client().watch_paths(arguments.patterns);
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 {
        let event = tokio::select! {
            event = watch.next() => event?,
            () = stop.requested() => return stop.ended(arguments.count.is_some()),
        };
        left -= u64::from(matches!(event, PathEvent::Now(_) | PathEvent::Gone(_)));
        let at = show_timestamp(wall_ms());
        if context.output.is_json() {
            let mut value = json(&event);
            value["at"] = Value::from(at);
            context.output.json(&value)?;
            continue;
        }
        match event {
            PathEvent::Now(listed) => {
                context.output.line(format!("{at}  {}  {}", listed.path, ls::what_is(&listed)))?;
            }
            PathEvent::Gone(path) => context.output.line(format!("{at}  {path}  gone"))?,
            PathEvent::SnapshotBegins { replica } => report!("following replica {replica}"),
            PathEvent::Whole { complete } => warn_if_incomplete(complete),
            PathEvent::Refused { replica, reason } => {
                report!("replica {replica} refuses the watch: {reason}; trying another");
            }
        }
    }
    Ok(())
}

fn json(event: &PathEvent) -> Value {
    match event {
        PathEvent::Now(listed) => {
            let mut value = ls::json(listed);
            value["event"] = Value::from("now");
            value
        }
        PathEvent::Gone(path) => json!({ "event": "gone", "path": path.as_str() }),
        PathEvent::SnapshotBegins { replica } => {
            json!({ "event": "snapshot_begins", "replica": replica })
        }
        PathEvent::Whole { complete } => json!({ "event": "whole", "complete": complete }),
        PathEvent::Refused { replica, reason } => {
            json!({ "event": "refused", "replica": replica, "reason": reason })
        }
    }
}
