//! Schedules in the time of a test system: a year in a moment.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore::prelude::*;
use longshore::testing::TestSystem;
use longshore::{Filter, JobsQuery, NewSchedule, Overlap, ScheduleError, ScheduleOutcome};

const HOUR_MS: u64 = 3_600_000;
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The times of the jobs of a queue, in order.
async fn times(system: &TestSystem, queue: &str) -> anyhow::Result<Vec<u64>> {
    let filter = Filter::of(queue.parse()?);
    let query = JobsQuery::of(filter);
    let mut pages = system.queues().jobs(query).await?;
    let mut times = Vec::new();
    while let Some(page) = pages.next().await {
        times.extend(page.jobs.iter().map(|found| found.enqueued_at));
    }
    times.sort_unstable();
    Ok(times)
}

/// Over a year, with both nights on which the clocks of each zone change, half an hour at Lord
/// Howe: one job a day.
#[tokio::test(flavor = "multi_thread")]
async fn a_year_of_nights_has_one_job_each() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let queues = system.queues();
    // Each in the gap of its zone's spring night.
    let zones =
        [("Europe/Berlin", "30 2"), ("America/New_York", "30 2"), ("Australia/Lord_Howe", "15 2")];
    for (n, (zone, time)) in zones.iter().enumerate() {
        let job = new_job(format!("/night/{n}").parse()?, "night");
        let schedule = NewSchedule::cron(format!("n{n}"), format!("{time} * * *"), job)
            .zone(*zone)
            .overlap(Overlap::Allow);
        queues.put_schedule(&schedule).await?;
    }
    system.advance(365 * DAY).await?;
    for (n, (zone, _)) in zones.iter().enumerate() {
        let times = times(&system, &format!("/night/{n}")).await?;
        assert!((364..=366).contains(&times.len()), "{} nights in {zone}", times.len());
        let mut distances: BTreeMap<u64, usize> = BTreeMap::new();
        for two in times.windows(2) {
            *distances.entry((two[1] - two[0]) / (HOUR_MS / 2)).or_default() += 1;
        }
        // In half hours. The spring night is due at the end of the gap; the autumn night, and the
        // day after spring, have another length.
        let others: usize = distances.iter().filter(|(ms, _)| **ms != 48).map(|(_, n)| n).sum();
        assert!((1..=3).contains(&others), "{zone}: {distances:?}");
        assert!(distances.keys().all(|half_hours| (46..=50).contains(half_hours)), "{distances:?}");
        let known = queues.schedule(&format!("n{n}")).await?.answers.remove(0).answer;
        assert_eq!((known.made, known.missed), (times.len() as u64, 0), "{zone}");
    }
    system.stop().await;
    Ok(())
}

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/reports/{region}", output = String)]
struct Report {
    region: String,
}

async fn report(Payload(report): Payload<Report>, context: JobContext) -> anyhow::Result<String> {
    if context.attempt() == 1 {
        anyhow::bail!("try again");
    }
    let since = context.enqueued_at().duration_since(UNIX_EPOCH)?;
    Ok(format!("{} {}", report.region, since.as_millis()))
}

/// A handler finds the time of its occurrence in every attempt, and its own id.
#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_job_knows_its_occurrence_in_every_attempt() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let start = system.now() + Duration::from_secs(10);
    let mut job = longshore::IntoJob::into_job(Report { region: "eu".into() }, longshore::new_id)?;
    job.options.keep_result = true;
    let schedule = NewSchedule::every("reports", Duration::from_secs(60), job)
        .starts(start)
        .ends(start + Duration::from_secs(90));
    let queues = system.queues();
    assert_eq!(queues.put_schedule(&schedule).await?.answer, ScheduleOutcome::Added);
    assert_eq!(queues.put_schedule(&schedule).await?.answer, ScheduleOutcome::Unchanged);
    let first = start.duration_since(UNIX_EPOCH)?.as_millis() as u64;
    assert_eq!(queues.preview_schedule(&schedule, 1).await?, [first]);
    for n in 0..2u32 {
        system.advance(Duration::from_secs(if n == 0 { 11 } else { 60 })).await?;
        for _ in 0..2 {
            system.drain(system.worker().handle(report), |jobs| jobs.run()).await?;
            system.advance(Duration::from_secs(2)).await?;
        }
    }
    let known = queues.schedule("reports").await?.answers.remove(0).answer;
    assert_eq!((known.made, known.next), (2, None), "it has ended");
    assert_eq!(queues.put_schedule(&schedule).await?.answer, ScheduleOutcome::Unchanged);
    let shorter = schedule.clone().ends(start + Duration::from_secs(60));
    let refused = queues.put_schedule(&shorter).await;
    assert!(matches!(refused, Err(ScheduleError::Invalid(_))), "{refused:?}");
    let preview = queues.preview_schedule(&schedule, 10).await;
    assert_eq!(preview.ok(), Some(Vec::new()), "one that is over is no fault of a file's others");
    let preview = queues.preview_schedule(&shorter, 10).await;
    assert!(matches!(preview, Err(ScheduleError::Invalid(_))), "{preview:?}");
    // A process of the deploy before starts again while the new one runs.
    let newer = schedule.clone().ends(start + DAY).version(2);
    assert_eq!(queues.put_schedule(&newer).await?.answer, ScheduleOutcome::Changed);
    let older = queues.put_schedule(&schedule.clone().version(1)).await?.answer;
    assert_eq!(older, ScheduleOutcome::Older(2), "whatever has become of its own times");
    let last = known.last_job.ok_or_else(|| anyhow::anyhow!("it has run"))?;
    let found = queues.job(last).await?.job;
    let result = String::from_utf8(found.result.unwrap_or_default().to_vec())?;
    let at = |at: SystemTime| at.duration_since(UNIX_EPOCH).map(|since| since.as_millis());
    let expected = format!("\"eu {}\"", at(start + Duration::from_secs(60))?);
    assert_eq!((found.attempt, result), (2, expected));
    system.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_of_a_change_counts_from_when_the_schedule_was_added() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let queues = system.queues();
    let every = |minutes: u64| {
        let job = longshore::new_job("/poll".parse()?, "");
        anyhow::Ok(NewSchedule::every("poll", Duration::from_secs(60 * minutes), job))
    };
    queues.put_schedule(&every(5)?).await?;
    let added = queues.schedule("poll").await?.answers.remove(0).answer.created_at;
    system.advance(Duration::from_secs(7 * 60)).await?;
    let slower = every(10)?;
    let previewed = queues.preview_schedule(&slower, 1).await?;
    assert_eq!(previewed, [added + 600_000]);
    queues.put_schedule(&slower).await?;
    let next = queues.schedule("poll").await?.answers.remove(0).answer.next;
    assert_eq!(next.map(|next| next.due_at), Some(added + 600_000));
    system.stop().await;
    Ok(())
}
