//! A publisher of many paths and no jobs, in a separate process. At the command `register` it
//! registers them all, and reports the time until the replica has acknowledged them.

use std::time::Instant;

use anyhow::bail;
use longshore::protocol::{Epoch, PublisherId, PublisherInfo};
use longshore::{CheckedTerms, Path, WriteClient};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::producer::next_command;
use crate::arguments::BenchRegistrar;
use crate::commands::Context;

/// Paths per parent.
pub(super) const PARENT_PATHS: u64 = 1_000;

/// The path with this number: 30 bytes, up to ten million paths.
pub(super) fn path(number: u64) -> anyhow::Result<Path> {
    Ok(Path::new(&format!("/bench/{:05}/job-{number:013}", number / PARENT_PATHS))?)
}

/// The parent with this number.
pub(super) fn parent(number: u64) -> anyhow::Result<Path> {
    Ok(Path::new(&format!("/bench/{number:05}"))?)
}

pub(crate) async fn run(arguments: BenchRegistrar, mut context: Context) -> anyhow::Result<()> {
    let publisher = PublisherInfo {
        id: PublisherId(rand::random()),
        epoch: Epoch(1),
        name: "bench".to_owned(),
        addresses: vec![([127, 0, 0, 1], 1).into()],
        tls_name: None,
        later: Default::default(),
    };
    let paths: Vec<Path> = (0..arguments.paths).map(path).collect::<anyhow::Result<_>>()?;
    let client = WriteClient::connect(context.cluster(), publisher);
    // Connect before the time is measured.
    let terms = CheckedTerms::default();
    client.publish(paths[0].clone(), &terms);
    client.flushed(1).await;
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    context.output.json(&json!({ "ready": "registrar" }))?;
    while let Ok(command) = next_command(&mut input).await {
        if command != "register" {
            bail!("unknown command '{command}'");
        }
        let began = Instant::now();
        client.publish_all(paths.iter().map(|path| (path.clone(), terms.clone())));
        client.flushed(1).await;
        context.output.json(&json!({ "seconds": began.elapsed().as_secs_f64() }))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_thirty_bytes_and_lie_below_their_parents() {
        for number in [0, 999, 1_000, 9_999_999] {
            let path = path(number).unwrap();
            assert_eq!(path.as_str().len(), 30, "{path}");
            assert_eq!(path.parent(), Some(parent(number / PARENT_PATHS).unwrap()));
        }
    }
}
