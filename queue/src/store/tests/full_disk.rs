//! A disk that fills up, and later has room again.

use longshore_protocol::messages::work::Checkpoint;
use longshore_protocol::{CheckpointOutcome, EnqueueOutcome, JobState, Refusal, SettleOutcome};

use super::*;
use crate::journal::files::Files;

const MIB: u64 = 1024 * 1024;
/// Bytes that the end of one lease may take, as the budget counts them.
const LEASE_BYTES: u64 = 2 * (4 * 1024 + 512);
/// How long the housekeeper may take to detect room: it measures once a second.
const DETECTED_WITHIN: Duration = Duration::from_secs(20);

fn receipts(released: &Released) -> Vec<EnqueueOutcome> {
    let answers = released.replies.iter().filter_map(|(_, reply)| match reply {
        Reply::Enqueued(answer) => answer.outcome.as_ref().ok(),
        _ => None,
    });
    answers.flat_map(|outcomes| outcomes.iter()).collect()
}

fn settled(released: &Released) -> Vec<SettleOutcome> {
    let answers = released.replies.iter().filter_map(|(_, reply)| match reply {
        Reply::Settled(answer) => Some(answer.outcomes.iter()),
        _ => None,
    });
    answers.flatten().collect()
}

fn large(store: &mut Store, now: Now, sequence: u64) {
    let mut batch = BatchBuilder::new();
    let id = JobId::new_v7(sequence, [9; 10]);
    batch.push(&NewJob::new("/jobs/a".parse().unwrap(), id, Bytes::from(vec![7; 200_000])));
    let batch = batch.seal(false).to_batch(sequence).unwrap();
    store.submit(now, Command::Enqueue { link: PRODUCER, batch }).unwrap();
}

fn settle(store: &mut Store, now: Now, sequence: u64, token: Token, result: usize) {
    let mut batch = SettleBatchBuilder::new();
    batch.push(token, &NewSettle::Complete { result: Some(Bytes::from(vec![1; result])) });
    let batch = SettleBatch::decode(batch.seal(sequence)).unwrap();
    store.submit(now, Command::Settle { link: WORKER, batch }).unwrap();
}

/// Runs turns until the condition holds.
async fn until(store: &mut Store, now: Now, is_there: impl Fn(&Store) -> bool) -> Released {
    let mut released = Released::default();
    let began = std::time::Instant::now();
    loop {
        store.advance(now).unwrap();
        store.flush();
        while store.committed() < store.appended() {
            store.released(&mut released).await.unwrap();
        }
        if is_there(store) {
            return released;
        }
        assert!(began.elapsed() < DETECTED_WITHIN, "{:?}", store.metrics(now));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn full_disk_refuses_enqueues_and_recovers_unaided() {
    let disk = SimulatedDisk::default();
    disk.set_capacity(Some(16 * MIB));
    let mut store = open(&disk, 1_000);
    let now = at(1_000);
    link(&mut store, now, PRODUCER, 1, Role::Producer);
    worker(&mut store, now, WORKER, 2, 4);
    let (mut accepted, mut tokens) = (0, Vec::new());
    let mut sequence = 0;
    loop {
        sequence += 1;
        assert!(sequence < 200, "the disk fills up eventually");
        large(&mut store, now, sequence);
        let released = all(&mut store).await;
        tokens.extend(released.assignments.iter().map(|one| one.token));
        match receipts(&released)[..] {
            [EnqueueOutcome::Created] => accepted += 1,
            [EnqueueOutcome::Refused(Refusal::NoSpace)] => break,
            ref other => panic!("{other:?}"),
        }
    }
    // 16 MiB less 2 for the ballast, 2 for small commands, two segments, and the unusable rests of
    // segments.
    assert!((36..=55).contains(&accepted), "{accepted} jobs of 200 kB");
    until(&mut store, now, |store| store.space().level.is_short()).await;
    let metrics = store.metrics(now);
    assert_eq!(metrics.level, SpaceLevel::NoEnqueues);
    assert!(metrics.ballast_bytes >= 2 * MIB, "whole: {metrics:?}");
    assert_eq!(store.state().totals().jobs, accepted);

    // A resent batch gets the answer it had; so does one that was refused.
    large(&mut store, now, sequence);
    large(&mut store, now, 1);
    let (refused, created) = (EnqueueOutcome::Refused(Refusal::NoSpace), EnqueueOutcome::Created);
    assert_eq!(receipts(&all(&mut store).await), [refused, created]);

    // Small results are accepted, large ones are refused for now.
    settle(&mut store, now, 1, tokens[0], 4_096);
    settle(&mut store, now, 2, tokens[1], 5_000);
    let outcomes = settled(&all(&mut store).await);
    assert_eq!(outcomes, [SettleOutcome::Accepted, SettleOutcome::NoSpace]);
    assert!(store.state().holds(tokens[1], WORKER), "its lease runs on");

    // Another program leaves room for the ends of a few leases: no more are delivered.
    let few = disk.create(FilePath::new("/few")).unwrap();
    few.allocate(store.budget().deliveries().saturating_sub(4) * LEASE_BYTES).unwrap();
    until(&mut store, now, |store| store.budget().deliveries() <= 16).await;
    let most = store.budget().deliveries() as usize;
    store.submit(now, Command::Credit { link: WORKER, subscription: 1, count: 30 }).unwrap();
    let delivered = all(&mut store).await.assignments.len();
    assert!((1..=most).contains(&delivered), "{delivered} jobs, room for {most}");

    // It takes the rest: now no job is delivered either.
    let ballast = disk.create(FilePath::new("/ballast")).unwrap();
    ballast.allocate(disk.free_bytes(FilePath::new("/")).unwrap()).unwrap();
    until(&mut store, now, |store| store.budget().deliveries() == 0).await;
    store.submit(now, Command::Credit { link: WORKER, subscription: 1, count: 1 }).unwrap();
    assert!(all(&mut store).await.assignments.is_empty());
    assert_eq!(store.metrics(now).level, SpaceLevel::NoDeliveries);
    // Settles without a lease take no room, and checkpoints are refused.
    let appended = store.appended();
    settle(&mut store, now, 3, Token(u64::MAX), 4_096);
    assert_eq!(settled(&all(&mut store).await), [SettleOutcome::StaleToken]);
    let body = Checkpoint::body_of(tokens[1], 1, &vec![0; 10].into());
    let checkpoint = Checkpoint::decode(body).unwrap();
    store.submit(now, Command::Checkpoint { link: WORKER, checkpoint }).unwrap();
    let refused = &all(&mut store).await.replies;
    let Reply::Checkpointed(refused) = &refused[0].1 else { panic!("{refused:?}") };
    assert_eq!((refused.outcome, store.appended()), (CheckpointOutcome::NoSpace, appended));
    settle(&mut store, now, 4, tokens[2], 100);
    assert_eq!(settled(&all(&mut store).await), [SettleOutcome::Accepted]);

    // The limits persist over a restart.
    drop(store);
    let mut store = open(&disk, 2_000);
    let now = at(2_000);
    assert_eq!(store.state().delivery_budget(), 0);
    assert_eq!(store.state().totals().jobs, accepted);

    // With room again the store recovers unaided.
    ballast.truncate(0).unwrap();
    disk.set_capacity(Some(24 * MIB));
    until(&mut store, now, |store| store.space().level == SpaceLevel::Open).await;
    link(&mut store, now, LinkId(1 << 32 | 9), 1, Role::Producer);
    let mut batch = BatchBuilder::new();
    let id = JobId([77; 16]);
    batch.push(&NewJob::new("/jobs/b".parse().unwrap(), id, Bytes::from(vec![7; 200_000])));
    let batch = batch.seal(false).to_batch(sequence + 1).unwrap();
    store.submit(now, Command::Enqueue { link: LinkId(1 << 32 | 9), batch }).unwrap();
    assert_eq!(receipts(&all(&mut store).await), [created]);
    assert_eq!(store.state().job_state(&id), Some(JobState::Ready));
}
