//! `longshore journal stat`.

use std::path::PathBuf;

use anyhow::Context as _;
use longshore::journal::{self, JournalStat, SegmentKind};
use serde_json::{Value, json};

use super::super::Context;
use super::{bytes, warn};
use crate::output::{Table, counted, grouped};

pub(super) async fn run(dir: PathBuf, mut context: Context) -> anyhow::Result<()> {
    let reading = tokio::task::spawn_blocking(move || journal::stat(&dir));
    let stat = reading.await.context("the read was aborted")??;
    if context.output.is_json() {
        context.output.json_pretty(&stat_json(&stat))?;
        return Ok(());
    }
    if let Some(holder) = &stat.holder {
        warn(
            &context.output,
            &format!("in use by {holder}: the numbers may change while they are read"),
        );
    }
    let watermark =
        stat.commit_watermark.map_or_else(|| "none: it is missing or damaged".to_owned(), grouped);
    let mut lines = vec![
        format!("format     {}", stat.format),
        format!("journal    {}", stat.journal),
        format!("publisher  {}", stat.publisher),
        format!("committed  {watermark}"),
        format!(
            "disk       {}, of which {} of ballast",
            bytes(stat.bytes()),
            bytes(stat.ballast_bytes)
        ),
    ];
    if stat.lost.0 > 0 {
        let (files, lost) = stat.lost;
        lines.push(format!("lost/      {}, {}", counted(files, "file"), bytes(lost)));
    }
    context.output.lines(lines.join("\n"))?;
    if !stat.snapshots.is_empty() {
        let mut table = Table::new(&["snapshot", "epoch", "bytes", "header"]);
        for snapshot in &stat.snapshots {
            let epoch = snapshot.epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string());
            table.row([
                grouped(snapshot.index),
                epoch,
                grouped(snapshot.bytes),
                header(snapshot.epoch.is_some()).to_owned(),
            ]);
        }
        context.output.line("")?;
        context.output.table(&table)?;
    }
    let mut table = Table::new(&["segment", "kind", "first", "last", "bytes", "header"]);
    let index = |index: Option<u64>| index.map_or_else(|| "-".to_owned(), grouped);
    for segment in &stat.segments {
        table.row([
            segment.sequence.to_string(),
            kind(segment.kind).to_owned(),
            index(segment.first_index),
            index(segment.last_index),
            grouped(segment.bytes),
            header(segment.is_good).to_owned(),
        ]);
    }
    if !table.is_empty() {
        context.output.line("")?;
        context.output.table(&table)?;
    }
    Ok(())
}

fn kind(kind: SegmentKind) -> &'static str {
    match kind {
        SegmentKind::Log => "log",
        SegmentKind::Unused => "unused",
        SegmentKind::Compacted => "compacted",
    }
}

fn header(is_good: bool) -> &'static str {
    if is_good { "good" } else { "bad" }
}

fn stat_json(stat: &JournalStat) -> Value {
    let snapshots = stat.snapshots.iter().map(|snapshot| {
        json!({
            "index": snapshot.index, "bytes": snapshot.bytes, "epoch": snapshot.epoch,
            "good_header": snapshot.epoch.is_some(),
        })
    });
    let segments = stat.segments.iter().map(|segment| {
        json!({
            "sequence": segment.sequence, "kind": kind(segment.kind), "bytes": segment.bytes,
            "good_header": segment.is_good, "first_index": segment.first_index,
            "last_index": segment.last_index,
        })
    });
    json!({
        "format": stat.format, "journal": stat.journal.to_string(),
        "publisher": stat.publisher.to_string(), "commit_watermark": stat.commit_watermark,
        "in_use_by": stat.holder,
        "bytes": stat.bytes(), "ballast_bytes": stat.ballast_bytes,
        "lost_files": stat.lost.0, "lost_bytes": stat.lost.1,
        "snapshots": snapshots.collect::<Vec<_>>(), "segments": segments.collect::<Vec<_>>(),
    })
}
