//! A publisher that is not the home of a path, by its own declarations.

use longshore_access::{AccessControl, Policy};
use longshore_protocol::{EnqueueOutcome, Homes, JobId, JobKeys, NewJob, Path, Refusal, Role};
use longshore_publisher::{OpenError, Publisher, PublisherOptions};

use crate::client::*;

const CREATED: EnqueueOutcome = EnqueueOutcome::Created;
const NOT_HOME: EnqueueOutcome = EnqueueOutcome::Refused(Refusal::NotHome);

fn homes(declared: &[(&str, &str)]) -> Homes {
    let each = |(pattern, name): &(&str, &str)| (pattern.parse().unwrap(), vec![(*name).into()]);
    Homes::new(declared.iter().map(each)).unwrap()
}

fn options(dir: &tempfile::TempDir, declared: &[(&str, &str)]) -> PublisherOptions {
    let mut options = PublisherOptions::new(dir.path());
    (options.name, options.homes) = ("pa".into(), homes(declared));
    options
}

fn keyed(path: &str, n: u8, key: &str) -> NewJob {
    let job = NewJob::new(Path::new(path).unwrap(), JobId([n; 16]), "same");
    let idempotency = longshore_protocol::Idempotency { key: key.into(), for_ms: None };
    let keys = JobKeys { idempotency: Some(idempotency), ..JobKeys::default() };
    NewJob { keys: Some(Box::new(keys)), ..job }
}

fn plain(path: &str, n: u8) -> NewJob {
    NewJob { keys: None, ..keyed(path, n, "") }
}

async fn enqueue<const N: usize>(client: &mut Client, jobs: [NewJob; N]) -> Vec<EnqueueOutcome> {
    client.enqueue(jobs).await.outcome.unwrap().iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_new_jobs_with_a_key_are_refused_away_from_their_home() {
    let dir = tempfile::tempdir().unwrap();
    let running = running(options(&dir, &[("/shop", "pb"), ("/own", "pa")])).await;
    let mut client = Client::attach(&running, Role::Producer, 1).await;
    assert_eq!(enqueue(&mut client, [keyed("/shop/orders", 1, "k")]).await, [NOT_HOME]);
    let mixed = [
        keyed("/shop/orders", 1, "k"),
        plain("/shop/orders", 2),
        keyed("/own", 3, "k"),
        keyed("/other", 4, "k"),
        keyed("/shop", 5, "k"),
    ];
    let outcomes = [NOT_HOME, CREATED, CREATED, CREATED, NOT_HOME];
    assert_eq!(enqueue(&mut client, mixed).await, outcomes);
    // It exists here, so it is no new one.
    assert_eq!(
        enqueue(&mut client, [keyed("/shop/orders", 2, "k"), keyed("/shop/orders", 6, "k")]).await,
        [EnqueueOutcome::Existing, NOT_HOME]
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_home_does_not_change_while_the_old_one_has_keys() {
    let dir = tempfile::tempdir().unwrap();
    let before = running(options(&dir, &[("/shop", "pa")])).await;
    let mut client = Client::attach(&before, Role::Producer, 1).await;
    let jobs = [keyed("/shop/a", 1, "k"), keyed("/shop/a", 2, "l"), keyed("/shop/b", 3, "k")];
    let jobs = jobs.map(|job| job.order_key("ann"));
    assert_eq!(enqueue(&mut client, jobs).await, [CREATED; 3]);
    before.stop().await;
    let refused = Publisher::open(options(&dir, &[("/shop", "pb")])).await.map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::KeysOfAnotherHome { keys: 3, jobs: 3, .. }), "{refused}");
    let text = refused.to_string();
    let start = "pb is declared as the home of /shop/a, and this publisher, pa, has 3 keys with an \
                 end, 3 open jobs with other keys and 0 schedules of it and of 1 more paths with \
                 other homes; the keys end by 20";
    let end = "Z: declare pa until the keys and jobs have ended and the schedules are removed";
    assert!(text.starts_with(start) && text.ends_with(end), "{text}");
    // Another path may have another home, and its own home keeps answering.
    let after = running(options(&dir, &[("/shop", "pa"), ("/else", "pb")])).await;
    let mut client = Client::attach(&after, Role::Producer, 2).await;
    assert_eq!(
        enqueue(&mut client, [keyed("/shop/a", 9, "k")]).await,
        [EnqueueOutcome::ExistingKey(JobId([1; 16]))]
    );
    after.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn known_keys_are_answered_over_a_quota_and_away_from_their_home() {
    let dir = tempfile::tempdir().unwrap();
    let who = "who = [\"anonymous\"]\n";
    let all = format!("[[allow]]\n{who}do = [\"*\"]\npaths = [\"/**\"]\n");
    let quota = format!("{all}[[quota]]\n{who}paths = [\"/**\"]\nwaiting_jobs = 1\n");
    let access_control = AccessControl::new(Some(Policy::parse(&quota).unwrap()), None);
    let running = running(PublisherOptions { access_control, ..options(&dir, &[]) }).await;
    let mut client = Client::attach(&running, Role::Producer, 1).await;
    assert_eq!(enqueue(&mut client, [keyed("/a", 1, "k")]).await, [CREATED]);
    let existing = EnqueueOutcome::ExistingKey(JobId([1; 16]));
    assert_eq!(enqueue(&mut client, [keyed("/a", 2, "k")]).await, [existing]);
    let over = EnqueueOutcome::Refused(Refusal::OverQuota);
    let mixed = [keyed("/a", 2, "k"), keyed("/a", 3, "l"), plain("/a", 4), plain("/a", 1)];
    let outcomes = [existing, over, over, EnqueueOutcome::Existing];
    assert_eq!(enqueue(&mut client, mixed).await, outcomes);
    running.stop().await;
}
