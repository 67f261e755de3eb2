//! A handler that computes on the only thread of its worker's runtime. With `LONGSHORE_LONG=1` for
//! a minute; otherwise for three leases, which end unless they are renewed meanwhile.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore::embedded::RunningPublisher;
use longshore::{Job, JobContext, Path, PublisherOptions, new_job};
use longshore_tests::Resolver;
use tokio::sync::mpsc;

use crate::long::long;

const LEASE: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_spins_keeps_its_job_and_the_waiting_ones_run_elsewhere() {
    let spin = if long() { Duration::from_secs(60) } else { 3 * LEASE };
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let mut options = PublisherOptions::new(data.path());
    options.cluster = Some(resolver.cluster());
    let publisher = RunningPublisher::start(options).await.unwrap();
    let jobs = (0..3).map(|_| {
        let mut job = new_job(Path::new("/jobs/spin").unwrap(), Bytes::new());
        job.options.lease_ms = Some(LEASE.as_millis() as u32);
        job
    });
    assert!(publisher.producer().enqueue_all(jobs).await.iter().all(|job| job.outcome.is_ok()));

    let (began, mut begun) = mpsc::unbounded_channel();
    let spinning = resolver.worker().durable_subscribe("/jobs/**").concurrency(1).prefetch(2);
    let (stop, stats) = (spinning.shutdown_handle(), spinning.stats());
    let handler = move |_: Job<Bytes>, context: JobContext| {
        let _ = began.send(context.deliveries());
        let until = Instant::now() + spin;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        // No second job begins here.
        stop.drain();
        async { Ok(()) }
    };
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(spinning.run(handler)).unwrap()
    });
    assert_eq!(begun.recv().await, Some(1));
    assert_eq!(stats.now().jobs_held, 3);

    let other = resolver.worker().durable_subscribe("/jobs/**");
    let (other_handle, other_stats) = (other.shutdown_handle(), other.stats());
    let other = tokio::spawn(other.run(|_: Job<Bytes>, _| async { Ok(()) }));
    while other_stats.now().completed < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(stats.now().running, 1, "both ran while the first spins");
    let report = tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
    other_handle.drain();
    let other = other.await.unwrap().unwrap();
    assert_eq!((report.completed, report.released, report.leases_revoked), (1, 2, 0));
    assert_eq!((other.completed, other.stale_refused + report.stale_refused), (2, 0));
}
