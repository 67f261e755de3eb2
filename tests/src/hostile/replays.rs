//! Bytes, numbers and tokens that were valid once.

use std::net::SocketAddr;

use longshore::protocol::messages::work::{Request, Tokens};
use longshore::protocol::{BatchRefusal, CheckpointOutcome, JobId, Role, SettleOutcome};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::jobs::job;
use super::peer::{self, Peer, session};
use super::subscriptions::glob;
use super::{Attacker, GROUND, Outcome, PATIENCE, Surprise, expect};

/// Records the bytes of a whole connection, which enqueues a job, and sends them again.
pub(super) async fn old_connections(attacker: &Attacker) -> Outcome {
    let path = format!("{GROUND}/replayed-connection");
    let server = attacker.target.publisher;
    let (proxy, recorded) = record(server).await?;
    let mut target = attacker.target.clone();
    target.publisher = proxy;
    let (scale, tls, began) = (attacker.scale, attacker.tls.clone(), attacker.began);
    let recording = Attacker { target, scale, tls, began };
    let mut link = Peer::attach(&recording, Role::Producer).await?;
    link.enqueue(1, &[&path]).await?;
    drop(link);
    let bytes = recorded.await.map_err(|_| Surprise("no record".to_owned()))??;
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        let mut stream = peer::tcp(server).await?;
        // The server ends it as soon as the keys do not fit.
        let _ = stream.write_all(&bytes).await;
        let closed = peer::closes(&mut stream, PATIENCE).await;
        expect(closed, || "a replayed connection is open".to_owned())?;
    }
    expect_jobs(attacker, &path, 1).await?;
    Ok(rounds as u64)
}

/// Sends numbers of batches again, on the same link and on new links of the session.
pub(super) async fn old_batches(attacker: &Attacker) -> Outcome {
    let path = format!("{GROUND}/replayed-batches");
    let (session, secret) = (session(), &attacker.target.mallory);
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        let mut link = Peer::dial_as(attacker, Role::Producer, secret, session).await?;
        let attached = link.attached(Tokens::default()).await?;
        let next = if rounds == 0 { 1 } else { 2 };
        expect(attached.next_batch == next, || format!("batch {} is next", attached.next_batch))?;
        for _ in 0..3 {
            // Other jobs under the number of one that was answered.
            link.enqueue(1, &[&path]).await?;
        }
        let refusal = link.enqueued(3, &[job(&path, JobId(rand::random()))?]).await?;
        let is_gap = refusal == Err(BatchRefusal::SequenceGap);
        expect(is_gap, || format!("a gap is {refusal:?}"))?;
        rounds += 1;
    }
    expect_jobs(attacker, &path, 1).await?;
    Ok(rounds as u64 * 4)
}

/// Uses tokens of leases that have ended.
pub(super) async fn stale_tokens(attacker: &Attacker) -> Outcome {
    let path = format!("{GROUND}/stale-tokens");
    let mut link = Peer::attach(attacker, Role::Worker).await?;
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        let number = rounds as u64;
        link.enqueue(number, &[&path]).await?;
        let token = link.take_job(rounds as u32, &path).await?;
        let settles = (2 * number - 1, 2 * number);
        let outcomes = link.complete(settles.0, &[token]).await?;
        expect(outcomes == [SettleOutcome::Accepted], || format!("a settle is {outcomes:?}"))?;
        let outcomes = link.complete(settles.1, &[token]).await?;
        expect(outcomes == [SettleOutcome::StaleToken], || format!("a second is {outcomes:?}"))?;
        let stale = link.renew(&[token]).await?;
        expect(stale == [token], || format!("a stale token is renewed: {stale:?}"))?;
        let outcome = link.checkpoint(token).await?;
        expect(outcome == CheckpointOutcome::StaleToken, || format!("it is {outcome:?}"))?;
        let read = link.request(number, Request::Checkpoints { token }).await?;
        expect(read.is_err(), || format!("checkpoints of a stale token: {read:?}"))?;
    }
    Ok(rounds as u64 * 4)
}

/// An error unless Mallory's queue has so many jobs.
async fn expect_jobs(attacker: &Attacker, path: &str, jobs: u64) -> Result<(), Surprise> {
    let mut link = Peer::attach(attacker, Role::Tool).await?;
    let found = link.jobs(glob(path)?).await?;
    expect(found == jobs, || format!("{path} has {found} jobs, not {jobs}"))
}

type Recorded = tokio::task::JoinHandle<std::io::Result<Vec<u8>>>;

/// Passes one connection on to a server, and records what the client sends.
async fn record(server: SocketAddr) -> std::io::Result<(SocketAddr, Recorded)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let recording = tokio::spawn(async move {
        let (client, _) = listener.accept().await?;
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = TcpStream::connect(server).await?.into_split();
        let back =
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        let (mut recorded, mut buffer) = (Vec::new(), vec![0; 16 * 1024]);
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            recorded.extend_from_slice(&buffer[..read]);
            to_server.write_all(&buffer[..read]).await?;
        }
        back.abort();
        Ok(recorded)
    });
    Ok((at, recording))
}
