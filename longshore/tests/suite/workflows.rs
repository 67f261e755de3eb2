//! Workflows: steps in order, outputs as inputs, fan-out and join, callbacks, retry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longshore::Path;
use longshore::prelude::*;
use longshore::protocol::messages::work::BlockedBy;
use longshore::testing::TestSystem;
use longshore::{Action, JobId, JobState, ParentsError, Queues, State};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/movies/probe", output = u64)]
struct Probe {
    movie: u64,
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/movies/encode", output = String, max_attempts = 1)]
struct Encode {
    part: u64,
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/movies/captions", output = String)]
struct Captions;

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/movies/concat", output = String, keep_result)]
struct Concat;

impl After<Probe> for Encode {}
impl After<Probe> for Captions {}
impl After<Encode> for Concat {}
impl After<Concat> for Publish {}
impl After<Captions> for Publish {}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/movies/publish", output = String, keep_result)]
struct Publish;

async fn probe(Payload(probe): Payload<Probe>) -> anyhow::Result<u64> {
    Ok(probe.movie * 100)
}

async fn encode(
    Payload(encode): Payload<Encode>,
    probe: Parents<Probe>,
    State(fails): State<Arc<AtomicBool>>,
) -> anyhow::Result<String> {
    anyhow::ensure!(encode.part != 2 || !fails.load(Ordering::Relaxed), "no such codec");
    Ok(format!("{}/{}", probe.output().await?, encode.part))
}

async fn captions(_: Payload<Captions>, probe: Parents<Probe>) -> anyhow::Result<String> {
    Ok(format!("captions of {}", probe.output().await?))
}

async fn concat(_: Payload<Concat>, parts: Parents<Encode>) -> anyhow::Result<String> {
    Ok(parts.outputs().await?.join(" "))
}

async fn publish(
    _: Payload<Publish>,
    movie: Parents<Concat>,
    captions: Parents<Captions>,
    context: JobContext,
) -> anyhow::Result<String> {
    assert_eq!(context.parents().len(), 2);
    Ok(format!("{} with {}", movie.output().await?, captions.output().await?))
}

/// Runs all that can run.
async fn run(system: &TestSystem, fails: bool) -> anyhow::Result<()> {
    let worker = system
        .worker()
        .state(Arc::new(AtomicBool::new(fails)))
        .handle(probe)
        .handle(encode)
        .handle(captions)
        .handle(concat)
        .handle(publish);
    system.drain(worker, |jobs| jobs.run()).await?;
    Ok(())
}

async fn state(queues: &Queues, job: JobId) -> anyhow::Result<JobState> {
    Ok(queues.job(job).await?.job.state)
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_of_steps_are_inputs_of_the_next_ones() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let movie = Workflow::new("/movies".parse()?, "movie 7");
    let probed = movie.step(Probe { movie: 7 });
    let encoded = probed.fan_out(0..11, |part| Encode { part }).join(Concat);
    let published = encoded.and(probed.then(Captions)).then(Publish);
    let done = new_job("/movies/done".parse()?, "done");
    let done_id = done.id;
    movie.on_success(done);
    let receipt = movie.enqueue(&system.producer()).await?;
    assert_eq!(receipt.job.id, movie.id());
    assert!(movie.enqueue(&system.producer()).await?.existing, "again, it is the same");
    run(&system, false).await?;
    let queues = system.queues();
    let found = queues.job(published.id()).await?.job;
    let parts: Vec<String> = (0..11).map(|part| format!("700/{part}")).collect();
    let expected = format!("\"{} with captions of 700\"", parts.join(" "));
    assert_eq!(found.result.as_deref(), Some(expected.as_bytes()));
    assert_eq!(state(&queues, movie.id()).await?, JobState::Completed);
    assert_eq!(state(&queues, done_id).await?, JobState::Ready);
    system.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_with_a_death_waits_is_retried_and_completes() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let movie = Workflow::new("/movies".parse()?, "movie 7");
    let probed = movie.step(Probe { movie: 7 });
    let encoded = probed.fan_out(0..4, |part| Encode { part }).join(Concat);
    let alarm = new_job("/movies/alarm".parse()?, "look");
    let alarm_id = alarm.id;
    movie.on_first_death(alarm);
    movie.enqueue(&system.producer()).await?;
    run(&system, true).await?;
    let queues = system.queues();
    assert_eq!(state(&queues, alarm_id).await?, JobState::Ready);
    assert_eq!(state(&queues, encoded.id()).await?, JobState::Blocked);
    let members = queues.job(movie.id()).await?.job.batch.unwrap_or_default();
    // The probe has completed; the fan-out is dead, and its join waits for a retry.
    assert_eq!((members.completed, members.dead, members.open), (1, 1, 1));
    let fan_out = queues.job(encoded.id()).await?.job;
    assert!(
        matches!(fan_out.blocked, Some(BlockedBy::Parent { state: JobState::Dead, .. })),
        "{fan_out:?}"
    );
    let retried = queues.act_on(Action::Revive, &[movie.id().into()], false).await?;
    assert!(retried.is_done(), "{retried:?}");
    run(&system, false).await?;
    assert_eq!(state(&queues, movie.id()).await?, JobState::Completed);
    system.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_cancels_what_has_not_ended() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let movie = Workflow::new("/movies".parse()?, "movie 7").deadline(Duration::from_secs(60));
    let published = movie.step(Probe { movie: 7 }).then(Captions);
    movie.enqueue(&system.producer()).await?;
    system.advance(Duration::from_secs(3_600)).await?;
    let queues = system.queues();
    assert_eq!(state(&queues, movie.id()).await?, JobState::Expired);
    assert_eq!(state(&queues, published.id()).await?, JobState::Cancelled);
    system.stop().await;
    Ok(())
}

/// What a handler cannot read of its parents is an error that says so.
#[tokio::test(flavor = "multi_thread")]
async fn parents_that_are_gone_or_others_are_refused() -> anyhow::Result<()> {
    async fn look(job: Job<String>, context: JobContext) -> Result<(), JobFailure> {
        let Some(parent) = context.parents().first() else {
            let other: JobId = job.payload.parse().map_err(JobFailure::bury)?;
            let refused = context.parent_jobs(other).await;
            let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
            return Err(JobFailure::bury(refused));
        };
        match context.parent_jobs(parent.job).await {
            Err(ParentsError::Forgotten(job)) if job == parent.job => Err(JobFailure::bury("gone")),
            other => Err(JobFailure::bury(format!("{other:?}"))),
        }
    }
    let system = TestSystem::start().await?;
    let mut first = new_job("/first".parse()?, "");
    first.options.keep_ms = Some(1_000);
    let second = new_job("/second".parse()?, "").after(first.id);
    let third = new_job("/second".parse()?, second.id.to_string());
    let ids = [second.id, third.id];
    let worker = system.worker().durable_subscribe("/first");
    system.producer().enqueue_atomic([first, second, third]).await?;
    async fn complete(_: Job<String>, _: JobContext) -> Result<(), JobFailure> {
        Ok(())
    }
    system.drain(worker, |jobs| jobs.run(complete)).await?;
    system.advance(Duration::from_secs(60)).await?;
    let worker = system.worker().durable_subscribe("/second");
    let dead = system.drain(worker, |jobs| jobs.run(look)).await?.dead;
    let why = |id: JobId| {
        let found = dead.iter().find(|job| job.id == id)?;
        found.error.as_ref().map(|error| error.message.clone())
    };
    assert_eq!(why(ids[0]).as_deref(), Some("gone"));
    assert!(why(ids[1]).is_some_and(|why| why.contains("Forbidden")), "{dead:?}");
    system.stop().await;
    Ok(())
}

/// For parents that are too large for one read: each job is on one page, the parent first.
#[tokio::test(flavor = "multi_thread")]
async fn a_parent_is_read_page_by_page() -> anyhow::Result<()> {
    async fn by_pages(_: Payload<Concat>, context: JobContext) -> anyhow::Result<String> {
        let parent = context.parents().last().ok_or_else(|| anyhow::anyhow!("no parent"))?.job;
        let (mut jobs, mut pages, mut next) = (Vec::new(), 0, Some(0));
        while let Some(cursor) = next {
            let page = context.parent_page(parent, cursor).await?;
            jobs.extend(page.jobs);
            (pages, next) = (pages + 1, page.next);
        }
        anyhow::ensure!(jobs[0].id == parent && jobs[0].is_batch, "{:?} is first", jobs[0]);
        jobs.sort_unstable_by_key(|job| job.id);
        anyhow::ensure!(jobs == context.parent_jobs(parent).await?, "the pages have all of it");
        Ok(format!("{} jobs on {pages} pages", jobs.len()))
    }
    let system = TestSystem::start().await?;
    let movie = Workflow::new("/movies".parse()?, "movie 7");
    let parts = movie.step(Probe { movie: 7 }).fan_out(0..250, |part| Encode { part });
    let joined = parts.join(Concat);
    movie.enqueue(&system.producer()).await?;
    let worker = system.worker().state(Arc::new(AtomicBool::new(false)));
    let worker = worker.handle(probe).handle(encode).handle(by_pages);
    system.drain(worker, |jobs| jobs.run()).await?;
    let found = system.queues().job(joined.id()).await?.job;
    let result = found.result.as_deref().map(String::from_utf8_lossy);
    assert_eq!(result.as_deref(), Some("\"251 jobs on 3 pages\""));
    system.stop().await;
    Ok(())
}

/// A fan-out of nothing is over at once; its join still follows what is before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_join_of_nothing_follows_the_step_before() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let movie = Workflow::new("/movies".parse()?, "movie 7");
    let probed = movie.step(Probe { movie: 7 });
    let joined = probed.fan_out(0..0, |part| Encode { part }).join(Concat);
    movie.enqueue(&system.producer()).await?;
    let queues = system.queues();
    assert_eq!(state(&queues, joined.id()).await?, JobState::Blocked);
    run(&system, false).await?;
    let found = queues.job(joined.id()).await?.job;
    assert_eq!(found.result.as_deref(), Some(&b"\"\""[..]));
    system.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_two_workflows_are_refused() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let (one, other) =
        (Workflow::new("/movies".parse()?, "one"), Workflow::new("/movies".parse()?, "other"));
    let concat = other.step(Probe { movie: 2 }).fan_out(0..9, |part| Encode { part }).join(Concat);
    one.step(Probe { movie: 1 }).then(Captions).and(concat).then(Publish);
    let refused = one.enqueue(&system.producer()).await;
    assert!(refused.is_err_and(|why| why.to_string().contains("two workflows")));
    system.stop().await;
    Ok(())
}

/// The second workflow's callback would be taken for the first one's, and never run.
#[tokio::test(flavor = "multi_thread")]
async fn callbacks_that_may_be_other_jobs_are_refused() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let cleanup = || new_job(Path::new("/movies").expect("a path"), "x").idempotency_key("cleanup");
    let flows: [fn(&Workflow, NewJob); 3] = [
        |flow, job| _ = flow.on_end(job),
        |flow, job| _ = flow.on_first_death(job),
        |flow, job| _ = flow.step(Probe { movie: 1 }).on_death(job),
    ];
    for add in flows {
        let movie = Workflow::new("/movies".parse()?, "movie 7");
        add(&movie, cleanup());
        let refused = movie.enqueue(&system.producer()).await;
        assert!(refused.is_err_and(|why| why.to_string().contains("might take its place")));
    }
    system.stop().await;
    Ok(())
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/sums", output = u64, keep_result)]
struct Sum(u64);

impl After<Sum> for Sum {}

/// A step and its fan-out may be of one kind: a join has the outputs of the fan-out alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_join_reads_the_outputs_of_its_fan_out_alone() -> anyhow::Result<()> {
    async fn sum(Payload(Sum(own)): Payload<Sum>, parts: Parents<Sum>) -> anyhow::Result<u64> {
        Ok(own + parts.outputs().await?.into_iter().sum::<u64>())
    }
    let system = TestSystem::start().await?;
    let flow = Workflow::new("/sums".parse()?, "250 of 7");
    // More members than a page has: each has the 1 of the step before and its own 6.
    let total = flow.step(Sum(1)).fan_out(0..250, |_| Sum(6)).join(Sum(0));
    flow.enqueue(&system.producer()).await?;
    system.drain(system.worker().handle(sum), |jobs| jobs.run()).await?;
    let found = system.queues().job(total.id()).await?.job;
    assert_eq!(found.result.as_deref(), Some(&b"1750"[..]));
    system.stop().await;
    Ok(())
}
