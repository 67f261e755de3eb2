//! How long a step blocks others, such as the owner task that creates a queue.

use std::collections::BTreeMap;

use longshore_protocol::messages::resolver::Digest;

use super::*;
use crate::write_client::shared::Shared;

/// A client of one replica that answers at once, with a million paths, and the durations of each
/// kind of step.
struct Measured {
    shared: Shared,
    core: WriteCore,
    events: VecDeque<(&'static str, Event)>,
    unanswered: VecDeque<(u64, u64)>,
    written: u64,
    compared: usize,
    took: BTreeMap<&'static str, Vec<Duration>>,
}

impl Measured {
    fn set_desired(&mut self, from: usize, to: usize) {
        let path = |n| key(&format!("/jobs/mail/welcome/{n:011}"));
        let terms = PublicationTerms::default();
        for from in (from..to).step_by(512) {
            let keys: Vec<_> =
                (from..to.min(from + 512)).map(|n| (path(n), Some(terms.clone()))).collect();
            let begun = Instant::now();
            self.shared.set_desired(keys);
            self.took.entry("want 512").or_default().push(begun.elapsed());
        }
    }

    fn step(&mut self, what: &'static str, event: Event) {
        let begun = Instant::now();
        let actions = self.shared.step(0, &mut self.core, event);
        self.took.entry(what).or_default().push(begun.elapsed());
        for action in actions {
            match action {
                Action::Announce { request: id, desired } => {
                    // The replica differs in every bucket.
                    let held = vec![Digest { count: 1, sum: 1 }; desired.len()];
                    let answer = Announced { id, held, writer_ttl_ms: 120_000 };
                    self.events
                        .push_back(("announced", Event::Received(FromReplica::Announced(answer))));
                    self.compared += 1;
                }
                Action::Write { request: id, groups } => {
                    let paths = groups.iter().map(|group| group.paths.len() as u64).sum();
                    self.written += paths;
                    self.unanswered.push_back((id, paths));
                }
                _ => {}
            }
        }
    }
}

/// A measurement of wall time: a busy machine adds its own.
#[test]
#[ignore = "a measure of a million paths, for a release build and a machine that is idle"]
fn steps_take_less_than_a_millisecond_with_a_million_paths() {
    let mut measured = Measured {
        shared: Shared::new(&["replica:1".to_owned()]),
        core: WriteCore::new(Instant::now(), ResolverTiming::default(), 1),
        events: VecDeque::from([("tick", Event::Tick), ("linked", Event::Linked)]),
        unanswered: VecDeque::new(),
        written: 0,
        compared: 0,
        took: BTreeMap::new(),
    };
    // The first half exists when the replica is connected, the rest comes during the comparison.
    measured.set_desired(0, 500_000);
    let mut rest = true;
    while let Some((what, event)) = measured.events.pop_front() {
        measured.step(what, event);
        if measured.compared == 2 && std::mem::take(&mut rest) {
            measured.set_desired(500_000, 1_000_000);
        }
        if measured.core.has_more() {
            measured.events.push_back(("write", Event::Tick));
        } else if let Some((id, done)) = measured.unanswered.pop_front() {
            let answer = Written { id, last: true, done, refused: Vec::new() };
            measured.events.push_back(("written", Event::Received(FromReplica::Written(answer))));
        }
    }
    assert!(measured.core.is_up_to_date());
    assert!(measured.written >= 1_000_000);
    println!("{} paths written", measured.written);
    for (what, took) in &mut measured.took {
        took.sort_unstable();
        let (len, of) = (took.len(), |percent| took[(took.len() - 1) * percent / 100]);
        println!("{what:>10}: {len} times, {:?}, p99 {:?}, at most {:?}", of(50), of(99), of(100));
        assert!(of(50) < Duration::from_millis(1), "{what}");
    }
}
