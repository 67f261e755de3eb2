//! How many jobs have died, by queue, since that was last told. Pure, and nothing per job: the
//! queues count anyway.

use std::time::{Duration, Instant};

use longshore_protocol::Path;

/// Deaths are told at most so often: a bad release may kill a million jobs.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// Queues that are named at a time; what died in others is one number.
const QUEUES_NAMED_MAX: usize = 10;

/// What was told.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    /// By the queue's number.
    told: Vec<u64>,
    /// When that was, and the last command that it took in; none before the first look.
    looked: Option<(Instant, u64)>,
}

/// What has died since.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Died<'a> {
    /// Queues, and how many of each.
    pub(crate) named: Vec<(&'a Path, u64)>,
    /// How many of queues that are not named.
    pub(crate) others: u64,
    /// When to look again, whatever happens until then; none if nothing has to be looked at.
    pub(crate) again: Option<Instant>,
}

impl Deaths {
    /// Looks, unless it did a moment ago. `deaths` are all that there were ever, by queue in the
    /// order of their numbers, up to the command at `index`.
    pub(crate) fn look<'a>(
        &mut self,
        now: Instant,
        index: u64,
        deaths: impl Iterator<Item = (&'a Path, u64)>,
    ) -> Died<'a> {
        let mut died = Died::default();
        let Some((at, seen)) = self.looked else {
            // What died before this start was told before it.
            self.told.extend(deaths.map(|(_, ever)| ever));
            self.looked = Some((now, index));
            return died;
        };
        if seen == index {
            return died;
        }
        if now.saturating_duration_since(at) < TOLD_EVERY {
            died.again = Some(at + TOLD_EVERY);
            return died;
        }
        self.looked = Some((now, index));
        for (place, (path, ever)) in deaths.enumerate() {
            if place == self.told.len() {
                self.told.push(0);
            }
            match ever - std::mem::replace(&mut self.told[place], ever) {
                0 => {}
                jobs if died.named.len() < QUEUES_NAMED_MAX => died.named.push((path, jobs)),
                jobs => died.others += jobs,
            }
        }
        died
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deaths_are_told_by_queue_together_and_once() {
        let paths: Vec<Path> = (0..20).map(|n| Path::new(&format!("/jobs/{n}")).unwrap()).collect();
        let of = |ever: &[u64]| -> Vec<(&Path, u64)> { paths.iter().zip(ever.to_vec()).collect() };
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut deaths = Deaths::default();
        let mut look = |ms, index, ever: &[u64]| deaths.look(at(ms), index, of(ever).into_iter());
        assert_eq!(look(0, 1, &[7]), Died::default(), "those of the runs before");
        let later = Died { again: Some(at(1_000)), ..Died::default() };
        assert_eq!(look(10, 2, &[8, 1]), later, "not one by one");
        let died = look(1_000, 3, &[10, 2]);
        assert_eq!(died.named, [(&paths[0], 3), (&paths[1], 2)]);
        assert_eq!(look(5_000, 3, &[10, 2]), Died::default(), "nothing has happened");
        assert_eq!(look(5_000, 4, &[10, 2]), Died::default(), "nothing has died");
        let many = look(9_000, 5, &[20; 20]);
        assert_eq!((many.named.len(), many.others), (QUEUES_NAMED_MAX, 10 * 20));
    }
}
