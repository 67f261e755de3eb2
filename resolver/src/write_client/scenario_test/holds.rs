//! How long a step keeps others waiting: a publisher's owner, that makes a queue, among them.

use std::collections::BTreeMap;

use longshore_protocol::messages::resolver::Digest;

use super::*;
use crate::write_client::shared::Shared;

/// A client of one replica that answers at once, with a million paths, and how long each kind of
/// step has taken.
struct Measured {
    shared: Shared,
    core: WriteCore,
    inputs: VecDeque<(&'static str, Input)>,
    unanswered: VecDeque<(u64, u64)>,
    written: u64,
    compared: usize,
    took: BTreeMap<&'static str, Vec<Duration>>,
}

impl Measured {
    fn want(&mut self, from: usize, to: usize) {
        let path = |n| key(&format!("/jobs/mail/welcome/{n:011}"));
        let terms = PublicationTerms::default();
        for from in (from..to).step_by(512) {
            let keys: Vec<_> =
                (from..to.min(from + 512)).map(|n| (path(n), Some(terms.clone()))).collect();
            let begun = Instant::now();
            self.shared.want(keys);
            self.took.entry("want 512").or_default().push(begun.elapsed());
        }
    }

    fn step(&mut self, what: &'static str, input: Input) {
        let begun = Instant::now();
        let actions = self.shared.step(0, &mut self.core, input);
        self.took.entry(what).or_default().push(begun.elapsed());
        for action in actions {
            match action {
                Action::Announce { request: id, wanted } => {
                    // It holds something else, in every bucket.
                    let held = vec![Digest { count: 1, sum: 1 }; wanted.len()];
                    let answer = Announced { id, held, writer_ttl_ms: 120_000 };
                    self.inputs
                        .push_back(("announced", Input::Told(FromReplica::Announced(answer))));
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

/// A measure, of wall time: a busy machine adds its own.
#[test]
#[ignore = "a measure of a million paths, for a release build and a machine that is idle"]
fn hardly_a_step_takes_a_millisecond_at_a_million_paths() {
    let mut measured = Measured {
        shared: Shared::new(&["replica:1".to_owned()]),
        core: WriteCore::new(Instant::now(), ResolverTiming::default(), 1),
        inputs: VecDeque::from([("tick", Input::Tick), ("linked", Input::Linked)]),
        unanswered: VecDeque::new(),
        written: 0,
        compared: 0,
        took: BTreeMap::new(),
    };
    // The first half is there when the replica is reached, the rest comes while it is compared.
    measured.want(0, 500_000);
    let mut rest = true;
    while let Some((what, input)) = measured.inputs.pop_front() {
        measured.step(what, input);
        if measured.compared == 2 && std::mem::take(&mut rest) {
            measured.want(500_000, 1_000_000);
        }
        if measured.core.has_more() {
            measured.inputs.push_back(("write", Input::Tick));
        } else if let Some((id, done)) = measured.unanswered.pop_front() {
            let answer = Written { id, last: true, done, refused: Vec::new() };
            measured.inputs.push_back(("written", Input::Told(FromReplica::Written(answer))));
        }
    }
    assert!(measured.core.is_whole());
    assert!(measured.written >= 1_000_000);
    println!("{} paths written", measured.written);
    for (what, took) in &mut measured.took {
        took.sort_unstable();
        let (len, of) = (took.len(), |percent| took[(took.len() - 1) * percent / 100]);
        println!("{what:>10}: {len} times, {:?}, p99 {:?}, at most {:?}", of(50), of(99), of(100));
        assert!(of(50) < Duration::from_millis(1), "{what}");
    }
}
