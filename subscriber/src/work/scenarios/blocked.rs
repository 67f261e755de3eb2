//! A worker whose handler blocks every thread of its runtime.

use std::mem::ManuallyDrop;
use std::sync::mpsc;

use parking_lot::Mutex;
use tokio::runtime::Builder;

use super::*;

/// Three renewals in each lease, so the handler blocks for longer than two leases.
const LEASE_MS: u32 = 900;

#[tokio::test]
async fn a_handler_that_blocks_its_runtime_keeps_its_job_and_gives_back_the_others() {
    let mut publisher = FakePublisher::start(1).await;
    // Dropping it would wait for the handler.
    let handlers = ManuallyDrop::new(
        Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(),
    );
    let (unblock, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let blocking = handler(move |_: Job<Bytes>, ctx: JobContext| {
        let _ = blocked.lock().recv();
        assert!(!ctx.is_cancelled());
        async { Ok(()) }
    });
    let worker = {
        let _runtime = handlers.enter();
        start_worker(Limits { prefetch: 1, ..ONE_AT_A_TIME }, &[&publisher], blocking)
    };
    let (mut link, _) = publisher.attach(1, &[]).await;
    link.granted(2).await;
    link.deliver_entries([(1, entry("a")), (2, entry("b"))], LEASE_MS);
    assert_eq!(link.started().await, [1]);
    let renew = async |link: &mut FakeLink| {
        let tokens = link.renewal().await;
        link.send(FromPublisher::Renewed { stale: Tokens(Vec::new()) });
        tokens
    };
    // Eight ticks pass before the worker takes its runtime for blocked.
    while renew(&mut link).await != [1] {}
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(2, Verdict::Release)]);
    link.accept(&batch);
    link.deliver_with_lease(3, LEASE_MS);
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(3, Verdict::Release)], "it takes no job meanwhile");
    link.accept(&batch);
    for _ in 0..3 {
        assert_eq!(renew(&mut link).await, [1]);
    }

    let credits = link.credits();
    unblock.send(()).unwrap();
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(1, Verdict::Complete(None))]);
    link.accept(&batch);
    link.granted(credits + 1).await;
    worker.handle.drain();
    assert_eq!(worker.report().await.completed, 1);
}
