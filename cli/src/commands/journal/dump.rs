//! `longshore journal dump`: a JSON object on each line.

use std::path::Path;

use longshore::journal::{CompactedPart, Dump, DumpOptions, Dumped};
use serde_json::{Value, json};

use super::super::Context;
use super::command::command_json;
use crate::output::bytes_json;
use crate::time::show_timestamp;

pub(super) fn run(
    path: &Path,
    from: u64,
    to: u64,
    payloads: bool,
    mut context: Context,
) -> anyhow::Result<()> {
    let mut dump = Dump::open(path, DumpOptions { from, to })?;
    while let Some(dumped) = dump.next()? {
        context.output.json_row(&dumped_json(&dumped, payloads))?;
    }
    context.output.flush()?;
    Ok(())
}

fn dumped_json(dumped: &Dumped, payloads: bool) -> Value {
    match dumped {
        Dumped::Snapshot { file, index, bytes, epoch } => {
            let mut line = json!({
                "type": "snapshot", "file": name(file), "index": index, "bytes": bytes,
            });
            match epoch {
                Ok(epoch) => line["epoch"] = json!(epoch),
                Err((offset, why)) => line["damaged"] = json!({ "offset": offset, "why": why }),
            }
            line
        }
        Dumped::Record { file, offset, bytes, index, now, kind, begins_commit, command } => {
            let mut line = json!({
                "type": "record", "index": index, "file": name(file), "offset": offset,
                "bytes": bytes, "mono_ms": now.mono_ms, "wall_ms": now.wall_ms,
                "at": show_timestamp(now.wall_ms), "kind": kind, "begins_commit": begins_commit,
            });
            match &**command {
                Ok(command) => {
                    let (name, fields) = command_json(command, payloads);
                    (line["command"], line["fields"]) = (json!(name), fields);
                }
                Err(error) => line["undecodable"] = json!(error.to_string()),
            }
            line
        }
        Dumped::Compacted { file, offset, bytes, index, now, parts } => {
            let parts = parts.as_ref().map(|parts| {
                parts.iter().map(|part| part_json(part, payloads)).collect::<Vec<_>>()
            });
            json!({
                "type": "compacted", "index": index, "file": name(file), "offset": offset,
                "bytes": bytes, "mono_ms": now.mono_ms, "wall_ms": now.wall_ms,
                "at": show_timestamp(now.wall_ms), "parts": parts,
            })
        }
        Dumped::Damage { file, offset, bytes, why } => json!({
            "type": "damage", "file": name(file), "offset": offset, "bytes": bytes, "why": why,
        }),
    }
}

fn part_json(part: &CompactedPart, payloads: bool) -> Value {
    let mut line = json!({ "at": part.at, "length": part.length, "damaged": part.bytes.is_none() });
    if let (true, Some(bytes)) = (payloads, &part.bytes) {
        line["content"] = bytes_json(bytes);
    }
    line
}

fn name(file: &Path) -> String {
    file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
