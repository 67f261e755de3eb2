//! Tries publishers one after another without waiting for each to fail.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

/// How long a candidate has to answer before the next one is tried in parallel. Ten times a slow
/// round trip within a continent.
pub(crate) const RACE_DELAY: Duration = Duration::from_millis(250);

/// Starts the first of `candidates`. Starts the next one after [`RACE_DELAY`] without an answer, or
/// at once after a failure. The first success wins; the other attempts are dropped, and their
/// candidates return to the end of `candidates` unless they failed. If all fail, returns every
/// reason, in the order of the failures.
pub(crate) async fn race<C: Clone, T, E, F>(
    candidates: &mut VecDeque<C>,
    mut start: impl FnMut(C) -> F,
) -> Result<(C, T), Vec<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut running = FuturesUnordered::new();
    let mut under_way: Vec<Option<C>> = Vec::new();
    let mut reasons = Vec::new();
    let mut next_at = Instant::now();
    loop {
        if next_at <= Instant::now() || running.is_empty() {
            match candidates.pop_front() {
                Some(candidate) => {
                    let (at, trying) = (under_way.len(), start(candidate.clone()));
                    under_way.push(Some(candidate));
                    running.push(async move { (at, trying.await) });
                    next_at = Instant::now() + RACE_DELAY;
                }
                None if running.is_empty() => return Err(reasons),
                None => {}
            }
        }
        tokio::select! {
            biased;
            Some((at, outcome)) = running.next() => {
                let candidate = under_way.get_mut(at).and_then(Option::take);
                match (outcome, candidate) {
                    (Ok(won), Some(candidate)) => {
                        candidates.extend(under_way.into_iter().flatten());
                        return Ok((candidate, won));
                    }
                    (Err(reason), _) => reasons.push(reason),
                    // A future completes once.
                    (Ok(_), None) => {}
                }
                next_at = Instant::now();
            }
            () = sleep_until(next_at), if !candidates.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// The behaviour of a candidate: its name, its duration, and whether it succeeds.
    type Plan = (&'static str, u64, bool);

    /// Logs when an attempt is dropped.
    struct LogOnDrop<'a>(&'static str, &'a RefCell<Vec<String>>, Instant);

    impl Drop for LogOnDrop<'_> {
        fn drop(&mut self) {
            let line = format!("{} ends at {}", self.0, self.2.elapsed().as_millis());
            self.1.borrow_mut().push(line);
        }
    }

    /// Returns the winner, the remaining candidates, and the log.
    async fn run(
        plans: &[Plan],
    ) -> (Result<&'static str, Vec<&'static str>>, Vec<&'static str>, Vec<String>) {
        let log = RefCell::new(Vec::new());
        let start = Instant::now();
        let mut candidates: VecDeque<Plan> = plans.iter().copied().collect();
        let outcome = race(&mut candidates, |(name, millis, succeeds)| {
            log.borrow_mut().push(format!("{name} at {}", start.elapsed().as_millis()));
            let dropped = LogOnDrop(name, &log, start);
            async move {
                let _dropped = dropped;
                tokio::time::sleep(Duration::from_millis(millis)).await;
                if succeeds { Ok(()) } else { Err(name) }
            }
        })
        .await;
        let outcome = outcome.map(|((name, ..), ())| name);
        (outcome, candidates.iter().map(|(name, ..)| *name).collect(), log.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn a_timely_answer_starts_no_other_candidate() {
        let (won, left, log) = run(&[("a", 249, true), ("b", 0, true)]).await;
        assert_eq!((won, left), (Ok("a"), vec!["b"]));
        assert_eq!(log, ["a at 0", "a ends at 249"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_candidate_is_raced_and_dropped() {
        let (won, left, log) = run(&[("hangs", 99_999, true), ("b", 10, true)]).await;
        assert_eq!((won, left), (Ok("b"), vec!["hangs"]));
        assert_eq!(log, ["hangs at 0", "b at 250", "b ends at 260", "hangs ends at 260"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_slower_candidate_may_still_win() {
        let (won, left, _) = run(&[("a", 300, true), ("b", 99_999, true), ("c", 0, true)]).await;
        assert_eq!((won, left), (Ok("a"), vec!["c", "b"]));
    }

    #[tokio::test(start_paused = true)]
    async fn next_candidate_starts_at_once_after_a_failure() {
        let (won, left, log) = run(&[("a", 5, false), ("b", 5, false), ("c", 5, true)]).await;
        assert_eq!((won, left), (Ok("c"), vec![]));
        assert_eq!(log[..4], ["a at 0", "a ends at 5", "b at 5", "b ends at 10"]);
    }

    #[tokio::test(start_paused = true)]
    async fn if_all_candidates_fail_every_reason_is_returned() {
        let (won, left, _) = run(&[("a", 600, false), ("b", 5, false), ("c", 5, false)]).await;
        assert_eq!((won, left), (Err(vec!["b", "c", "a"]), vec![]));
        assert_eq!(run(&[]).await.0, Err(vec![]));
    }
}
