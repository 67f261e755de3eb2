//! Schedules of publishers that are killed and restarted while they come due, and of deploys.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, its helpers too")]

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common;

use common::harness::{Harness, jobs_of};
use common::{System, eventually, long};
use longshore::{JobId, Missed, NewSchedule, Overlap, new_job};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const SECOND_MS: u64 = 1_000;

/// How many publishers are killed at other moments at the same time.
const PUBLISHERS: usize = 3;

/// The job of each occurrence, by its time; none has two.
async fn occurrences(harness: &Harness, publisher: usize, queue: &str) -> BTreeMap<u64, JobId> {
    let mut found = BTreeMap::new();
    for job in jobs_of(&harness.direct_queues(publisher), queue).await {
        let before = found.insert(job.enqueued_at, job.id);
        assert_eq!(before, None, "the occurrence at {} has two jobs", job.enqueued_at);
    }
    found
}

/// K8: a cron occurrence comes due, and the publisher is killed before, at and after it. 12
/// restarts, or `LONGSHORE_LONG=1` for 102.
#[tokio::test(flavor = "multi_thread")]
async fn each_occurrence_has_one_job_over_publishers_killed_at_any_moment() {
    let mut harness = Harness::start_with(1, PUBLISHERS, None).await;
    let job = |queue: &str| new_job(queue.parse().unwrap(), "tick");
    let all = NewSchedule::cron("all", "* * * * * *", job("/all"))
        .missed(Missed::All)
        .overlap(Overlap::Allow);
    let latest = NewSchedule::cron("latest", "* * * * * *", job("/latest")).overlap(Overlap::Allow);
    for publisher in 0..PUBLISHERS {
        for schedule in [&all, &latest] {
            harness.direct_queues(publisher).put_schedule(schedule).await.unwrap();
        }
    }
    let mut random = StdRng::seed_from_u64(8);
    for _ in 0..if long() { 34 } else { 4 } {
        for publisher in &mut harness.publishers {
            tokio::time::sleep(Duration::from_millis(random.random_range(70..430))).await;
            publisher.kill();
        }
        for publisher in &mut harness.publishers {
            tokio::time::sleep(Duration::from_millis(random.random_range(0..500))).await;
            publisher.restart();
        }
    }
    for publisher in 0..PUBLISHERS {
        each_occurrence_has_one_job(&harness, publisher).await;
    }
}

async fn each_occurrence_has_one_job(harness: &Harness, publisher: usize) {
    let made = occurrences(harness, publisher, "/all").await.len();
    eventually("the next occurrence", || async {
        occurrences(harness, publisher, "/all").await.len() > made + 1
    })
    .await;
    let queues = harness.direct_queues(publisher);
    let known = queues.schedule("latest").await.unwrap().answers.remove(0).answer;
    let next = known.next.unwrap().due_at;
    let all: Vec<u64> = occurrences(harness, publisher, "/all").await.into_keys().collect();
    assert!(all.windows(2).all(|two| two[1] == two[0] + SECOND_MS), "none is left out: {all:?}");
    let latest = occurrences(harness, publisher, "/latest").await;
    let mut latest: Vec<u64> = latest.into_keys().collect();
    latest.retain(|at| *at < next);
    assert!(latest.iter().all(|at| all.contains(at)), "{latest:?} has others than {all:?}");
    assert_eq!(known.made, latest.len() as u64);
    let first = (known.created_at / SECOND_MS + 1) * SECOND_MS;
    let due = (next - first) / SECOND_MS;
    assert_eq!(known.made + known.missed, due, "each has a job, or is counted");
}

/// The template is read from the journal, long after it was written.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_schedule_runs_after_a_restart_with_its_payload_and_id() {
    let mut harness = Harness::start().await;
    let queues = harness.direct_queues(0);
    let mut job = new_job("/jobs/report".parse().unwrap(), "yesterday".repeat(10_000));
    job.options.keep_result = true;
    let schedule = NewSchedule::cron("nightly", "0 3 * * *", job);
    queues.put_schedule(&schedule).await.unwrap();
    harness.kill_publisher();
    harness.restart_publisher();
    let queues = harness.direct_queues(0);
    let known = queues.schedule("nightly").await.unwrap().answers.remove(0);
    let job = queues.run_schedule(&known).await.unwrap();
    let worked = harness.run(&[
        "work",
        "/jobs/report",
        "--until-empty",
        "--",
        "sh",
        "-c",
        "wc -c; echo $LONGSHORE_JOB_ID",
    ]);
    worked.code(0);
    let ended = queues.job(job).await.unwrap().job;
    let result = String::from_utf8(ended.result.unwrap_or_default().to_vec()).unwrap();
    let expected = format!("90000\n{}\n", job.id);
    assert_eq!(result, expected);
    assert_eq!(ended.schedule.as_deref(), Some("nightly"));
    assert_eq!(ended.payload.map(|payload| payload.len()), Some(90_000));
}

/// A job of an older deploy that is late removes nothing that a newer one has added.
#[test]
fn a_deploy_that_finds_a_newer_one_prunes_nothing() {
    let system = System::up();
    let declare = |version: u64, names: &[&str]| -> String {
        let one = |name: &&str| {
            format!("[schedule.{name}]\npath = \"/{name}\"\nevery = \"1h\"\npayload = \"\"\n")
        };
        let file = system.folder.path().join(format!("v{version}.toml"));
        let schedules: String = names.iter().map(one).collect();
        std::fs::write(&file, format!("version = {version}\n{schedules}")).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (older, newer) = (declare(7, &["shop-a"]), declare(8, &["shop-a", "shop-b"]));
    let add = |file: &str| {
        let added = system.run(&["cron", "add", "--file", file, "--prune", "shop-"]).code(0);
        added.stdout
    };
    add(&newer);
    let late = add(&older);
    assert!(late.contains("nothing with shop- was pruned: a newer deploy was here"), "{late}");
    let listed = || system.run(&["cron", "ls"]).code(0).stdout;
    assert!(listed().contains("shop-b"), "{}", listed());
    assert!(add(&declare(9, &["shop-a"])).contains("shop-b  removed"));
    assert!(!listed().contains("shop-b"), "{}", listed());
    // The last schedule of a service goes with an empty file, unless an old deploy has that.
    assert!(add(&declare(8, &[])).contains("nothing with shop- was pruned"));
    assert!(add(&declare(10, &[])).contains("shop-a  removed"));
}

#[test]
fn adding_a_schedule_tells_whether_it_will_run() {
    let system = System::up();
    let add = |more: &[&str]| {
        let command = ["cron", "add", "poll", "/poll", "--every", "1h"];
        system.run(&[&command, more].concat())
    };
    assert!(add(&[]).code(0).stdout.contains("poll  added"));
    system.run(&["cron", "pause", "poll"]).code(0);
    for more in [&[][..], &["--jitter", "5s"], &["--dry-run"]] {
        let told = add(more).code(0).stdout;
        assert!(told.contains("it is paused: longshore cron resume poll"), "{told}");
    }
    // A dry run refuses what would be refused.
    for more in [&["--missed", "all"][..], &["--missed", "all", "--dry-run"]] {
        let refused = add(more).code(1).stderr;
        assert!(refused.contains("only if these may overlap"), "{refused}");
    }
}
