//! Jobs with unique keys.

use std::time::Duration;

use longshore_protocol::messages::work::{ActOutcome, Action, Filter, NewSettle, Selection};
use longshore_protocol::{EnqueueOutcome, Glob, JobError, JobState, NewJob, Refusal, Unique};

use super::scenario::{QUEUE, StoreScenario, from, id, job};
use ActOutcome::{Done, NotUnique};
use EnqueueOutcome::{Created, ExistingKey, Refused};

fn unique(n: u32, unique: Unique) -> NewJob {
    job(n).unique(unique)
}

fn by_key() -> Unique {
    Unique::by_key("report")
}

pub(super) async fn one_job_of_a_unique_key_is_there_until_it_ends(scenario: &mut StoreScenario) {
    let producer = scenario.producer().await;
    let jobs = [unique(1, by_key()), unique(2, by_key()), unique(3, by_key().refuse())];
    let outcomes = scenario.enqueue(producer, jobs).await;
    assert_eq!(outcomes, [Created, ExistingKey(id(1)), Refused(Refusal::NotUnique)]);
    let worker = scenario.worker("w", from("/jobs/**"), 100).await;
    let token = scenario.delivered_job(worker).token;
    scenario.end(worker, &[(token, NewSettle::Fail(JobError::default()))]).await;
    scenario.restart().await;
    let producer = scenario.producer().await;
    let again = scenario.enqueue(producer, [unique(2, by_key().replace())]).await;
    assert_eq!(again, [ExistingKey(id(1))], "it was delivered, and will be tried again");
    scenario.act(Action::Cancel, &[id(1)]).await;
    assert_eq!(scenario.enqueue(producer, [unique(2, by_key())]).await, [Created]);
}

pub(super) async fn the_latest_job_replaces_the_one_that_waits(scenario: &mut StoreScenario) {
    let producer = scenario.producer().await;
    let latest = |n| job(n).latest("report");
    assert_eq!(scenario.enqueue(producer, [latest(1)]).await, [Created]);
    let worker = scenario.worker("w", from("/jobs/**"), 100).await;
    let token = scenario.delivered_job(worker).token;
    let outcomes = scenario.enqueue(producer, [latest(2), latest(3), latest(4)]).await;
    assert_eq!(outcomes, [Created; 3], "the key lasts until the first starts");
    assert_eq!(scenario.state(id(2)).await, None);
    assert_eq!(scenario.state(id(3)).await, None);
    assert_eq!(scenario.job_view(id(4)).await.info.replaces, Some(id(3)));
    assert_eq!(scenario.state(id(4)).await, Some(JobState::Blocked), "one runs, one waits");
    scenario.end(worker, &[(token, NewSettle::Complete { result: None })]).await;
    assert_eq!(scenario.delivered_job(worker).id, id(4));
}

pub(super) async fn a_unique_key_for_a_period_outlives_its_job(scenario: &mut StoreScenario) {
    let producer = scenario.producer().await;
    let minute = || by_key().during(Duration::from_secs(60));
    assert_eq!(scenario.enqueue(producer, [unique(1, minute())]).await, [Created]);
    scenario.act(Action::Cancel, &[id(1)]).await;
    scenario.restart().await;
    scenario.advance(59_999).await;
    let producer = scenario.producer().await;
    let known = [ExistingKey(id(1))];
    assert_eq!(scenario.enqueue(producer, [unique(2, minute())]).await, known);
    scenario.advance(1).await;
    assert_eq!(scenario.enqueue(producer, [unique(2, minute())]).await, [Created]);
}

pub(super) async fn a_dead_job_has_no_unique_key_until_it_is_revived(scenario: &mut StoreScenario) {
    let producer = scenario.producer().await;
    scenario.enqueue(producer, [unique(1, by_key())]).await;
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    let token = scenario.delivered_job(worker).token;
    scenario.end(worker, &[(token, NewSettle::Bury(JobError::default()))]).await;
    assert_eq!(scenario.enqueue(producer, [unique(2, by_key())]).await, [Created]);
    assert_eq!(scenario.act(Action::Revive, &[id(1)]).await, [NotUnique(id(2))]);
    let dead = Filter::of(Glob::new(QUEUE).expect("a pattern"));
    let report = scenario.act_on(Action::Revive, Selection::Matching(dead), None).await;
    assert_eq!((report.done, report.refused, report.more), (0, 1, false));
    scenario.restart().await;
    let producer = scenario.producer().await;
    scenario.act(Action::Cancel, &[id(2)]).await;
    assert_eq!(scenario.act(Action::Revive, &[id(1)]).await, [Done]);
    let held = scenario.enqueue(producer, [unique(3, by_key())]).await;
    assert_eq!(held, [ExistingKey(id(1))], "revived, it holds its key again");
}

pub(super) async fn an_atomic_batch_has_a_unique_key_once(scenario: &mut StoreScenario) {
    let producer = scenario.producer().await;
    let jobs = [unique(1, by_key()), unique(2, by_key()), job(3)];
    let answer = scenario.enqueue_as(producer, 1, true, jobs).await;
    let outcomes: Vec<EnqueueOutcome> = answer.outcome.expect("an answer").iter().collect();
    let others = Refused(Refusal::BatchRefused);
    assert_eq!(outcomes, [others, Refused(Refusal::NotUnique), others]);
    let answer = scenario.enqueue_as(producer, 2, true, [unique(1, by_key()), job(3)]).await;
    assert_eq!(answer.outcome.map(|all| all.iter().collect::<Vec<_>>()), Ok(vec![Created; 2]));
}
