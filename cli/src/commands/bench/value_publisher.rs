//! A publisher of live values in a separate process, driven by commands on standard input. It
//! answers each command with one line when it is done:
//!
//! | Command | Effect |
//! |---|---|
//! | `burst SECONDS` | updates every value per commit, at full speed, without conflation |
//! | `steady N RATE BATCH` | N commits of BATCH updates at RATE a second; each has its send time |
//! | `flush N MS` | N updates of every value, each flushed with that timeout |

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::{Bytes, BytesMut};
use longshore::Path;
use longshore::values::{Batch, Published, Value, ValuePublisher, Values};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinHandle;

use super::monotonic_ns;
use super::producer::{next_command, send_times};
use crate::arguments::BenchValuesProcess;
use crate::commands::Context;

/// Bytes of updates committed between two flushes. Two such parts are in flight and a link's queue
/// has 4 MiB, so an update always fits.
const FLUSH_BYTES: usize = 1024 * 1024;
/// Bytes counted per update in addition to its value.
const UPDATE_BYTES: usize = 8;
/// The longest wait for the registration of the values.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn run(arguments: BenchValuesProcess, mut context: Context) -> anyhow::Result<()> {
    let publisher = ValuePublisher::builder().tls(context.tls.acceptor()?);
    let publisher = publisher.connect(context.cluster()).await?;
    let values = publisher.values();
    let first = value(0, arguments.size);
    let paths = (0..arguments.paths).map(|n| value_path(&arguments.path, n));
    let paths = paths.collect::<anyhow::Result<Vec<_>>>()?;
    let published = values.publish_all(paths.into_iter().map(|path| (path, first.clone())))?;
    let registered = tokio::time::timeout(REGISTRATION_TIMEOUT, publisher.ready()).await;
    registered.context("the replica did not acknowledge the values")?;

    let mut load = ValueLoad { batch: values.batch(), values, published, size: arguments.size };
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    context.output.json(&json!({ "ready": "values" }))?;
    while let Ok(command) = next_command(&mut input).await {
        let report = load.execute(&command).await.with_context(|| format!("at '{command}'"))?;
        context.output.json(&report)?;
    }
    Ok(())
}

/// The path of the value with this number.
pub(super) fn value_path(parent: &Path, number: u32) -> anyhow::Result<Path> {
    Ok(Path::new(&format!("{parent}/{number}"))?)
}

/// A value of this size that encodes a number.
fn value(number: u64, size: u32) -> Value {
    if size <= 8 {
        return Value::U64(number);
    }
    let mut bytes = BytesMut::zeroed(size as usize);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Value::Bytes(bytes.freeze())
}

/// The number that a value encodes.
pub(super) fn number_of(value: &Value) -> Option<u64> {
    match value {
        Value::U64(number) => Some(*number),
        Value::Bytes(bytes) => bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)),
        _ => None,
    }
}

struct ValueLoad {
    values: Values,
    published: Vec<Published>,
    batch: Batch,
    size: u32,
}

impl ValueLoad {
    async fn execute(&mut self, command: &str) -> anyhow::Result<serde_json::Value> {
        let words: Vec<&str> = command.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().with_context(|| format!("'{text}'"));
        match words[..] {
            ["burst", seconds] => self.burst(Duration::from_secs(number(seconds)?)).await,
            ["steady", commits, rate, batch] => {
                self.steady(number(commits)?, number(rate)?, number(batch)?).await
            }
            ["flush", commits, ms] => {
                self.flush(number(commits)?, Duration::from_millis(number(ms)?)).await
            }
            _ => bail!("unknown command"),
        }
    }

    /// Commits updates at full speed; each flush overlaps with the next commits.
    async fn burst(&mut self, lasts: Duration) -> anyhow::Result<serde_json::Value> {
        let round_bytes = self.published.len() * (self.size as usize + UPDATE_BYTES);
        let rounds = (FLUSH_BYTES / round_bytes).max(1);
        let payload = Bytes::from(vec![b'x'; self.size as usize]);
        let (began, began_ns) = (Instant::now(), monotonic_ns());
        let mut flushing: Option<JoinHandle<_>> = None;
        let mut updates = 0u64;
        while began.elapsed() < lasts {
            for _ in 0..rounds {
                for one in &self.published {
                    updates += 1;
                    if self.size <= 8 {
                        self.batch.update(one, updates)?;
                    } else {
                        self.batch.update(one, payload.clone())?;
                    }
                }
                self.batch.commit();
            }
            let values = self.values.clone();
            let next = tokio::spawn(async move { values.flush(None).await });
            if let Some(before) = flushing.replace(next) {
                before.await?;
            }
        }
        if let Some(last) = flushing {
            last.await?;
        }
        let ended_ns = monotonic_ns();
        Ok(json!({ "updates": updates, "began_ns": began_ns, "ended_ns": ended_ns }))
    }

    /// Makes each commit at its scheduled time.
    async fn steady(
        &mut self,
        commits: u64,
        rate: u64,
        batch: u64,
    ) -> anyhow::Result<serde_json::Value> {
        let mut times = send_times(commits, rate);
        let mut turns = self.published.iter().cycle();
        let (mut updates, mut began_ns) = (0u64, None);
        while let Some(at) = times.recv().await {
            began_ns.get_or_insert(at);
            let value = value(at, self.size);
            for one in turns.by_ref().take(usize::try_from(batch)?) {
                self.batch.update(one, value.clone())?;
                updates += 1;
            }
            self.batch.commit();
        }
        Ok(json!({ "updates": updates, "began_ns": began_ns, "ended_ns": monotonic_ns() }))
    }

    /// Measures the longest flush. The time includes its commit, so it begins before the first
    /// refused byte, provided the flush before left none waiting.
    async fn flush(
        &mut self,
        commits: u64,
        timeout: Duration,
    ) -> anyhow::Result<serde_json::Value> {
        let (mut disconnected, mut longest) = (Vec::new(), Duration::ZERO);
        for n in 0..commits {
            let began = Instant::now();
            let value = value(n, self.size);
            for one in &self.published {
                self.batch.update(one, value.clone())?;
            }
            self.batch.commit();
            disconnected.extend(self.values.flush(Some(timeout)).await.disconnected);
            longest = longest.max(began.elapsed());
        }
        let updates = commits * self.published.len() as u64;
        let longest_ms = longest.as_secs_f64() * 1e3;
        Ok(json!({ "updates": updates, "disconnected": disconnected, "longest_ms": longest_ms }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_requested_size_and_encode_their_number() {
        assert_eq!(value(7, 8), Value::U64(7));
        let Value::Bytes(bytes) = value(u64::MAX - 1, 256) else { panic!("bytes") };
        assert_eq!(bytes.len(), 256);
        assert_eq!(number_of(&Value::Bytes(bytes)), Some(u64::MAX - 1));
        assert_eq!(number_of(&Value::U64(3)), Some(3));
        assert_eq!(number_of(&Value::Null), None);
    }
}
