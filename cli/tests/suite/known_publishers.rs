//! Replicas' knowledge of publishers across restarts, and of missing publishers.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

use crate::common;

use std::time::{Duration, Instant};

use common::harness::{Harness, info_of};
use common::{BackgroundCommand, Service, longshore, run};
use longshore::{NewSchedule, Path, Producer, new_job};
use rustix::process::Signal;

/// With this timing no publisher is hidden and no replica completes its warm-up by time alone.
const SLOW: &str =
    "[timing]\nwriter_ttl = \"10m\"\nretry_wait_min = \"50ms\"\nretry_wait_max = \"300ms\"\n";
/// Far shorter than that timing, and enough on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Enqueues jobs at one publisher directly.
async fn enqueue_at(harness: &Harness, publisher: usize, queue: &str, jobs: usize) {
    let publisher = info_of(&harness.publishers[publisher].service);
    let producer = Producer::to_publishers(vec![publisher]);
    let jobs = (0..jobs).map(|_| new_job(Path::new(queue).unwrap(), &b"x"[..]));
    let receipts = producer.enqueue_all(jobs).await;
    assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()), "{receipts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_queue_is_accepted_soon_after_the_replica_restarts() {
    let mut harness = Harness::with_configuration(1, 2, None, SLOW).await;
    // A replica stores its knowledge within half a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    harness.replicas[0].kill();
    harness.replicas[0].restart();
    let began = Instant::now();
    harness.run(&["enqueue", "/jobs/new", "x"]).code(0);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let status = harness.status().await.remove(0).unwrap();
    assert!(!status.warming, "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_no_publisher_names_is_reported() {
    let harness = Harness::start_with(1, 1, None).await;
    harness.run(&["enqueue", "/jobs/a", "x"]).code(0);
    assert!(!harness.run(&["check"]).code(0).stdout.contains("does not know"));
    let new = Service::start(longshore(&[
        "resolver",
        "run",
        "--json",
        "--fresh",
        "--listen",
        "127.0.0.1:0",
        "--name",
        "new",
    ]));
    let new = new.text("address");
    let at_new = |arguments: &[&str]| harness.run(&[arguments, &["--resolver", new]].concat());
    let empty = format!("replica {new} knows no publisher, and so finds nothing");
    for command in [
        &["stat"][..],
        &["jobs"],
        &["directory", "ls"],
        &["cancel", "/**", "--yes"],
        &["dead", "ls"],
    ] {
        at_new(command).stderr_has(&[&empty, "add it to --resolver, or `resolvers`"]);
    }
    at_new(&["check"]).code(1);

    let both = [harness.cluster().replicas[0].as_str(), new].join(",");
    let both = |arguments: &[&str]| harness.run(&[arguments, &["--resolver", &both]].concat());
    let check = both(&["check"]).code(0).stdout;
    let line = check.lines().find(|line| line.contains("does not know")).unwrap();
    let name = format!("replica {new}: it does not know publisher publisher-1 (");
    assert!(line.starts_with("WARNING") && line.contains(&name), "{check}");
    assert!(both(&["stat"]).code(0).stdout.contains("/jobs/a"), "the other replica knows it");
}

#[test]
fn an_act_that_changes_nothing_fails_while_publishers_may_be_unknown() {
    let warming = ["resolver", "run", "--json", "--listen", "127.0.0.1:0"];
    let warming = Service::start(longshore(&warming));
    let file = tempfile::NamedTempFile::new().unwrap();
    let file = file.path().to_str().unwrap();
    for command in [
        &["cron", "pause", "nightly"][..],
        &["cron", "add", "--file", file, "--prune", "shop-"],
        &["limit", "set", "smtp", "/mail", "--concurrency", "1"],
        &["limit", "rm", "smtp"],
    ] {
        let at_it = [command, &["--resolver", warming.text("address")]].concat();
        run(longshore(&at_it), b"").code(1).stderr_has(&["still warming up"]);
    }
}

#[test]
fn an_act_fails_while_there_may_be_publishers_that_were_not_asked() {
    let warming = ["resolver", "run", "--json", "--listen", "127.0.0.1:0"];
    let warming = Service::start(longshore(&warming));
    let at_it = ["--resolver", warming.text("address")];
    let folder = tempfile::tempdir().unwrap();
    let publisher = ["publisher", "run", "--json", "--listen", "127.0.0.1:0", "--default", "/"];
    let mut publisher = longshore(&[&publisher[..], &at_it].concat());
    publisher.arg("--data").arg(folder.path().join("data"));
    let _publisher = Service::start(publisher);
    let act = |command: &[&str]| run(longshore(&[command, &at_it].concat()), b"");
    let paused = act(&["pause", "/**"]).code(1).stderr_has(&["still warming up"]);
    assert!(paused.stdout.starts_with("paused '/**'"), "{paused:?}");
    for command in [
        &["cancel", "/**", "--yes"][..],
        &["cancel", "/**", "--yes", "--json"],
        &["queue", "close", "/jobs/a"],
        &["queue", "set", "/jobs/a", "--max-attempts", "3"],
        &["limit", "set", "smtp", "/mail", "--concurrency", "1"],
        &["limit", "rm", "smtp"],
    ] {
        act(command).code(1).stderr_has(&["run it again"]);
    }
    act(&["pause", "/**", "--dry-run"]).code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_publishers_that_hang_do_not_keep_check_from_an_answer() {
    let harness = Harness::start_with(1, 5, None).await;
    for publisher in &harness.publishers {
        publisher.service.send(Signal::STOP);
    }
    let checked = harness.run(&["check", "--timeout", "12s"]).code(1).stdout;
    for n in 1..=5 {
        assert!(checked.contains(&format!("publisher publisher-{n}")), "{checked}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_publishers_path_moves_to_another_default() {
    let mut harness = Harness::with_configuration(1, 2, None, SLOW).await;
    enqueue_at(&harness, 0, "/jobs/made", 1).await;
    let published = || async {
        harness
            .run(&["directory", "resolve", "/jobs/made", "--json"])
            .json()
            .to_string()
            .contains("\"by_default\":false")
    };
    common::eventually("the queue is published", published).await;
    harness.publishers[0].kill();
    let began = Instant::now();
    harness.run(&["enqueue", "/jobs/made", "x"]).code(0);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_a_publisher_loses_no_job() {
    let mut harness = Harness::start_with(1, 2, None).await;
    enqueue_at(&harness, 1, "/jobs/mail", 20).await;
    harness.run(&["publisher", "drain", "nobody"]).code(1).stderr_has(&["no publisher nobody"]);
    let drained = harness.run(&["publisher", "drain", "publisher-2"]).code(0);
    let left = "accepts no new jobs; 20 jobs have not ended yet: 20 ready";
    let next = "stop it, then: longshore publisher forget publisher-2";
    assert!(drained.stdout.contains(left), "{}", drained.stdout);
    drained.stderr_has(&["drain publisher-2 --wait", next]);
    let status = harness.run(&["publisher", "status"]).code(0).stdout;
    assert!(status.contains(left) && status.contains(next), "{status}");

    // `--wait` ends if the drain is undone meanwhile.
    let mut waiting =
        BackgroundCommand::start(harness.command(&["publisher", "drain", "publisher-2", "--wait"]));
    assert!(waiting.line().contains("20 jobs have"));
    harness.run(&["publisher", "drain", "publisher-2", "--undo"]).code(0);
    waiting.ended().code(1).stderr_has(&["its drain was undone meanwhile"]);
    harness.run(&["publisher", "drain", "publisher-2"]).code(0);

    // New jobs go to the other publisher, for existing and new queues.
    for queue in ["/jobs/mail", "/jobs/new"] {
        for _ in 0..4 {
            harness.run(&["enqueue", queue, "x"]).code(0);
        }
    }
    let left = harness.run(&["publisher", "drain", "publisher-2", "--json"]).code(0).json();
    assert_eq!((&left["open"], &left["jobs"]["ready"]), (&20.into(), &20.into()), "{left}");
    let check = harness.run(&["check"]).code(0).stdout;
    assert!(check.contains("publisher publisher-2: it is drained"), "{check}");

    // The drain survives a restart.
    harness.publishers[1].kill();
    harness.publishers[1].restart();
    harness.wait_until_registered().await;
    harness.run(&["enqueue", "/jobs/mail", "x"]).code(0);

    let wait =
        BackgroundCommand::start(harness.command(&["publisher", "drain", "publisher-2", "--wait"]));
    harness.run(&["work", "/jobs/**", "--until-empty", "--", "true"]).code(0);
    let ended = wait.ended().code(0).stderr_has(&["still has 20 ended jobs"]);
    assert!(ended.stdout.contains("is empty: stop it"), "{}", ended.stdout);
    let status = harness.run(&["publisher", "status", "--json"]).code(0).json();
    assert_eq!(status["publishers"][1]["left"]["retained"], 20, "{status}");

    harness.run(&["publisher", "drain", "publisher-2", "--undo"]).code(0);
    let check = harness.run(&["check"]).code(0).stdout;
    assert!(!check.contains("drained"), "{check}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_names_the_schedules_that_its_publisher_still_owns() {
    let harness = Harness::start_with(1, 1, None).await;
    let job = new_job(Path::new("/jobs/report").unwrap(), &b"x"[..]);
    let nightly = NewSchedule::cron("nightly", "30 3 * * *", job);
    harness.direct_queues(0).put_schedule(&nightly).await.unwrap();
    let drain = |option: &[&str]| {
        harness.run(&[&["publisher", "drain", "publisher-1"], option].concat()).code(0)
    };
    drain(&["--dry-run"]).stderr_has(&["its 1 schedule would not fire"]);
    assert_eq!(drain(&["--dry-run", "--json"]).json()["schedules"], 1);
    let drained = drain(&["--wait"]).stdout;
    assert!(drained.contains("has no open job, but 1 schedule, which does not fire"), "{drained}");
    let remedy = "remove it (longshore cron rm NAME), then add it at another publisher";
    assert!(drained.contains(remedy), "{drained}");
    assert_eq!(drain(&["--json"]).json()["jobs"]["schedules"], 1);
    let status = harness.run(&["publisher", "status"]).code(0).stdout;
    assert!(status.contains("no job left to run, but 1 schedule"), "{status}");

    harness.run(&["cron", "rm", "nightly"]).code(0);
    let drained = drain(&["--wait"]).stdout;
    assert!(drained.contains("publisher-1 is empty: stop it"), "{drained}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_publisher_is_reported_until_forgotten() {
    let mut harness = Harness::start_with(2, 2, None).await;
    enqueue_at(&harness, 1, "/jobs/lost", 2).await;
    harness.publishers[1].kill();
    let hidden = || async {
        let status = harness.status().await;
        status.iter().all(|status| status.as_ref().is_some_and(|status| status.publishers < 4))
            && harness.run(&["stat"]).stderr.contains("missing for")
    };
    common::eventually("its silence exceeds the limit", hidden).await;

    let is_reported = |harness: &Harness| {
        let check = harness.run(&["check"]).code(1).stdout;
        let line = check.lines().find(|line| line.contains("publisher-2")).unwrap();
        assert!(line.contains("CRITICAL") && line.contains("publisher forget"), "{check}");
        let stat = harness.run(&["stat", "--json"]).code(1).json();
        assert_eq!(stat["complete"], false, "{stat}");
        assert_eq!(stat["missing"][0]["name"], "publisher-2", "{stat}");
    };
    is_reported(&harness);
    let mut work = BackgroundCommand::start(harness.command(&[
        "work",
        "/jobs/**",
        "--until-empty",
        "--",
        "true",
    ]));
    work.wait_for_stderr("publisher publisher-2 does not answer");

    // A restart of all replicas does not change that.
    for replica in &mut harness.replicas {
        replica.kill();
        replica.restart();
    }
    let complete = || async {
        harness
            .status()
            .await
            .iter()
            .all(|status| status.as_ref().is_some_and(|status| !status.warming))
    };
    common::eventually("the replicas are complete", complete).await;
    is_reported(&harness);

    harness
        .run(&["publisher", "forget", "publisher-1", "--yes"])
        .code(1)
        .stderr_has(&["registered"]);
    harness
        .run(&["publisher", "forget", "nobody", "--yes"])
        .code(1)
        .stderr_has(&["no replica that answers knows"]);
    let forget =
        |more: &[&str]| harness.run(&[&["publisher", "forget", "publisher-2"], more].concat());
    forget(&[]).code(2).stderr_has(&["no terminal to ask on", "--yes"]);
    let plan = forget(&["--dry-run"]).code(0).stdout;
    assert!(
        plan.contains("would be forgotten at") && plan.contains("how many is unknown"),
        "{plan}"
    );
    let one_more = harness.cluster().replicas.join(",") + ",127.0.0.1:1";
    let partial = forget(&["--dry-run", "--resolver", &one_more]).code(1);
    assert!(partial.stdout.contains("would be forgotten at"), "{partial:?}");
    partial.stderr_has(&["replica 127.0.0.1:1: "]);
    assert_eq!(forget(&["--dry-run", "--json"]).code(0).json()["name"], "publisher-2");
    harness.run(&["check"]).code(1);
    assert_eq!(forget(&["--yes", "--json"]).code(0).json()["failed"], serde_json::json!([]));
    harness.run(&["check"]).code(0);
    let stat = harness.run(&["stat", "--json"]).code(0).json();
    assert_eq!(stat["complete"], true, "{stat}");
    work.ended().code(0);

    harness.publishers[1].restart();
    harness.wait_until_registered().await;
    let stat = harness.run(&["stat", "/jobs/lost", "--json"]).code(0).json();
    assert_eq!(stat["queues"][0]["ready"], 2, "{stat}");
}
