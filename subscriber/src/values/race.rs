//! Trying one publisher after another without waiting for each to fail.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

/// How long a publisher has to answer before the next is tried beside it. Ten times a slow round
/// trip within a continent.
pub(crate) const RACE_DELAY: Duration = Duration::from_millis(250);

/// Starts the first of `candidates`, the next once it has not answered for [`RACE_DELAY`] or at
/// once if it fails, and so on. The first that succeeds wins; what the others were doing is
/// dropped. Those that were under way, and were neither refused nor first, go back to the end of
/// `candidates`. Fails when all have, with every reason, in the order in which they came.
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
                    // A future is done once.
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

    /// What a candidate does: how long it takes, and whether it then succeeds.
    type Plan = (&'static str, u64, bool);

    /// A word when its try is dropped before its end.
    struct LogOnDrop<'a>(&'static str, &'a RefCell<Vec<String>>, Instant);

    impl Drop for LogOnDrop<'_> {
        fn drop(&mut self) {
            let line = format!("{} ends at {}", self.0, self.2.elapsed().as_millis());
            self.1.borrow_mut().push(line);
        }
    }

    /// Who won, who is left, and what happened when.
    async fn run(
        plans: &[Plan],
    ) -> (Result<&'static str, Vec<&'static str>>, Vec<&'static str>, Vec<String>) {
        let log = RefCell::new(Vec::new());
        let begun = Instant::now();
        let mut candidates: VecDeque<Plan> = plans.iter().copied().collect();
        let outcome = race(&mut candidates, |(name, millis, succeeds)| {
            log.borrow_mut().push(format!("{name} at {}", begun.elapsed().as_millis()));
            let dropped = LogOnDrop(name, &log, begun);
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
    async fn one_that_answers_in_time_is_the_only_one_tried() {
        let (won, left, log) = run(&[("a", 249, true), ("b", 0, true)]).await;
        assert_eq!((won, left), (Ok("a"), vec!["b"]));
        assert_eq!(log, ["a at 0", "a ends at 249"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_is_raced_after_a_quarter_of_a_second_and_the_loser_is_dropped() {
        let (won, left, log) = run(&[("hangs", 99_999, true), ("b", 10, true)]).await;
        assert_eq!((won, left), (Ok("b"), vec!["hangs"]));
        assert_eq!(log, ["hangs at 0", "b at 250", "b ends at 260", "hangs ends at 260"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_slower_one_may_still_win() {
        let (won, left, _) = run(&[("a", 300, true), ("b", 99_999, true), ("c", 0, true)]).await;
        assert_eq!((won, left), (Ok("a"), vec!["c", "b"]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_is_tried_at_once_after_a_failure() {
        let (won, left, log) = run(&[("a", 5, false), ("b", 5, false), ("c", 5, true)]).await;
        assert_eq!((won, left), (Ok("c"), vec![]));
        assert_eq!(log[..4], ["a at 0", "a ends at 5", "b at 5", "b ends at 10"]);
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_fail_every_reason_is_told() {
        let (won, left, _) = run(&[("a", 600, false), ("b", 5, false), ("c", 5, false)]).await;
        assert_eq!((won, left), (Err(vec!["b", "c", "a"]), vec![]));
        assert_eq!(run(&[]).await.0, Err(vec![]));
    }
}
