//! How long a step keeps others waiting.

use std::time::{Duration, Instant};

use longshore_protocol::ResolverTiming;
use longshore_protocol::messages::resolver::{Announced, Digest, FromReplica, Written};

use super::*;
use crate::write_client::core::Input;
use crate::write_client::shared::Shared;

/// A measure: run it alone, with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "a measure of a million paths, in a release build"]
fn no_step_holds_the_lock_for_longer_than_about_a_millisecond_at_a_million_paths() {
    let shared = Shared::new(&["replica:1".to_owned()]);
    let mut core = WriteCore::new(Instant::now(), ResolverTiming::default(), 1);
    let path = |n| key(&format!("/jobs/mail/welcome/{n:011}"));
    // Of which the first half is there when the replica is reached, and the rest comes then.
    let terms = PublicationTerms::default();
    let want = |from, to| shared.want((from..to).map(|n| (path(n), Some(terms.clone()))));
    want(0, 500_000);
    let mut longest: Vec<(&str, Duration)> = Vec::new();
    let mut written = 0;
    let mut open = std::collections::VecDeque::new();
    let mut step = |what: &'static str, core: &mut WriteCore, input: Input| {
        let begun = Instant::now();
        let actions = shared.step(0, core, input);
        let held = begun.elapsed();
        match longest.iter_mut().find(|(name, _)| *name == what) {
            Some((_, longest)) => *longest = held.max(*longest),
            None => longest.push((what, held)),
        }
        actions
    };
    let mut inputs =
        std::collections::VecDeque::from([("tick", Input::Tick), ("linked", Input::Linked)]);
    let mut more = true;
    while let Some((what, input)) = inputs.pop_front() {
        for action in step(what, &mut core, input) {
            match action {
                Action::Announce { request: id, wanted } => {
                    // It holds something else, in every bucket.
                    let held = vec![Digest { count: 1, sum: 1 }; wanted.len()];
                    let answer = Announced { id, held, writer_ttl_ms: 120_000 };
                    inputs.push_back(("announced", Input::Told(FromReplica::Announced(answer))));
                    if wanted.len() > 1 && std::mem::take(&mut more) {
                        want(500_000, 1_000_000);
                    }
                }
                Action::Write { request: id, groups } => {
                    let paths: usize = groups.iter().map(|group| group.paths.len()).sum();
                    written += paths;
                    open.push_back((id, paths as u64));
                }
                _ => {}
            }
        }
        if core.has_more() {
            inputs.push_back(("write", Input::Tick));
        } else if let Some((id, done)) = open.pop_front() {
            let answer = Written { id, last: true, done, refused: Vec::new() };
            inputs.push_back(("written", Input::Told(FromReplica::Written(answer))));
        }
    }
    assert!(core.is_whole());
    println!("{written} paths written; the longest steps: {longest:?}");
    assert!(written >= 1_000_000);
}
