//! `longshore value publish`: publishes a live value while the program runs.

use longshore::ValuePublisher;
use longshore::protocol::limits::VALUE_BYTES_MAX;
use longshore::values::{Published, ValueOptions, Writes};
use serde_json::json;
use tokio::sync::mpsc;

use super::enqueue::source::{Item, Source, read};
use super::{Context, value_text, warn_if_unprinted};
use crate::arguments::Publish;
use crate::signals::StopSignal;

type Lines = mpsc::Receiver<std::io::Result<Vec<Item>>>;

pub(crate) async fn run(arguments: Publish, mut context: Context) -> anyhow::Result<()> {
    let stop = StopSignal::listen()?;
    let from_lines = arguments.lines || arguments.value.as_deref() == Some("-");
    let mut lines = from_lines.then(|| read(Source::Lines, None));
    let mut rest = Vec::new();
    let first = match &mut lines {
        None => value_text::parse(arguments.value.as_deref().unwrap_or_default()),
        Some(lines) => {
            // The first line is the first value.
            let batch = tokio::select! {
                batch = lines.recv() => batch,
                () = stop.requested() => return stop.ended(true),
            };
            let mut batch = batch.transpose()?.unwrap_or_default().into_iter();
            let Some(first) = batch.next() else {
                anyhow::bail!("standard input has no line, so there is no value to publish")
            };
            rest.extend(batch);
            value_of(first)?
        }
    };

    let publisher = ValuePublisher::builder()
        .name(format!("publish-{}", std::process::id()))
        .listen(arguments.listen)
        .advertise(arguments.advertise)
        .tls(context.acceptor(arguments.listen)?)
        .access_control(context.rules.control.clone())
        .audit(context.audit.clone())
        .insecure(arguments.insecure)
        .connect(context.cluster())
        .await?;
    let values = publisher.values();
    let options = ValueOptions { priority: arguments.priority, ..ValueOptions::default() };
    let published = values.publish_with(arguments.path.clone(), first, options)?;
    let mut writes = if arguments.writable { published.writes() } else { None };
    tokio::select! {
        () = publisher.ready() => {}
        () = stop.requested() => return stop.ended(true),
    }
    let address = publisher.local_address();
    warn_if_unprinted(if context.output.is_json() {
        context.output.json(&json!({
            "ready": "publish", "path": arguments.path.as_str(), "address": address.to_string(),
            "publisher": publisher.id().to_string(),
        }))
    } else {
        context.output.line(format!(
            "{} is published at {address} until this program is stopped",
            arguments.path
        ))
    });
    set_all(rest, &published)?;
    loop {
        tokio::select! {
            () = stop.requested() => break,
            batch = next_lines(&mut lines) => match batch.transpose()? {
                Some(batch) => set_all(batch, &published)?,
                // The last line remains the value.
                None => lines = None,
            },
            written = next_write(&mut writes) => match written {
                Some(write) => {
                    let value = write.value().clone();
                    match published.set(value) {
                        Ok(()) => write.accept(),
                        Err(why) => write.refuse(&why.to_string()),
                    }
                }
                None => writes = None,
            },
        }
    }
    drop(published);
    publisher.stop().await;
    Ok(())
}

fn set_all(items: Vec<Item>, published: &Published) -> anyhow::Result<()> {
    for item in items {
        published.set(value_of(item)?)?;
    }
    Ok(())
}

/// Parses a line as a value.
fn value_of(Item { number, payload }: Item) -> anyhow::Result<longshore::Value> {
    let line = payload.map_err(|why| anyhow::anyhow!("line {number}: {why}"))?;
    anyhow::ensure!(
        line.len() <= VALUE_BYTES_MAX,
        "line {number} has {} bytes; a value has at most {VALUE_BYTES_MAX}",
        line.len()
    );
    let text =
        std::str::from_utf8(&line).map_err(|_| anyhow::anyhow!("line {number} is not UTF-8"))?;
    Ok(value_text::parse(text))
}

/// The next lines; pending forever if there are no more.
async fn next_lines(lines: &mut Option<Lines>) -> Option<std::io::Result<Vec<Item>>> {
    match lines {
        Some(lines) => lines.recv().await,
        None => std::future::pending().await,
    }
}

/// The next write; pending forever if none is accepted.
async fn next_write(writes: &mut Option<Writes>) -> Option<longshore::values::Write> {
    match writes {
        Some(writes) => writes.next().await,
        None => std::future::pending().await,
    }
}
