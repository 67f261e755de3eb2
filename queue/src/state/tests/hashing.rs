//! Ids chosen to collide in the index.

use std::collections::BTreeSet;

use longshore_protocol::{EnqueueOutcome, JobId, NewJob};

use super::scenario::*;
use crate::command::{Command, Secret, Start};
use crate::state::State;
use crate::state::rows::mix;

/// Jobs whose ids had one hash, `mix(mix(high) ^ low)`, while the index had no key.
fn crafted() -> Vec<NewJob> {
    let id = |high: u64| {
        let low = mix(high) ^ 0x5eed;
        JobId((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    };
    (1..=2_000).map(|high| NewJob { id: id(high), ..plain(1) }).collect()
}

fn keyed(secret: Secret) -> State {
    let mut scenario = StateScenario::empty();
    scenario.apply(Command::Start(Start { secret, ..StateScenario::begin().this_start() }));
    scenario.state
}

#[test]
fn ids_that_collide_without_the_key_do_not_collide_with_it() {
    let (mut scenario, jobs) = (StateScenario::begin(), crafted());
    let producer = scenario.link("producer");
    let outcomes = scenario.enqueue(producer, &jobs);
    assert!(outcomes.iter().all(|outcome| *outcome == EnqueueOutcome::Created));
    let hashes: BTreeSet<u64> =
        jobs.iter().map(|job| scenario.state.rows.hash_of(&job.id)).collect();
    assert_eq!(hashes.len(), jobs.len());
    // 2,000 ids in 256 parts are 8 a part; a line has room for 12. Ids with one hash would overflow
    // their line 255 times.
    let overflows = scenario.state.rows.most_overflows();
    assert!(overflows <= 12, "{overflows} ids had no room in one line");
}

/// Ids that differ in few bits, like counters, copied halves and hand-made ids.
#[test]
fn similar_ids_are_well_spread() {
    let like: [fn(u128) -> u128; 6] = [
        |n| n,
        |n| n << 64,
        |n| n << 64 | n,
        |n| n << 120,
        |n| u128::from(n as u64) << 64 | u128::from(!(n as u64)),
        |n| 1 << (n % 128) | 1 << (n / 128 + 64),
    ];
    for (which, like) in like.into_iter().enumerate() {
        for bytes in [1, 77, 255] {
            let mut scenario = StateScenario::empty();
            let secret = Secret([bytes; 16]);
            scenario.apply(Command::Start(Start { secret, ..StateScenario::begin().this_start() }));
            let producer = scenario.link("producer");
            let ids: BTreeSet<u128> = (1..=2_000).map(like).collect();
            let jobs: Vec<NewJob> =
                ids.iter().map(|id| NewJob { id: JobId(id.to_be_bytes()), ..plain(1) }).collect();
            for jobs in jobs.chunks(1_000) {
                scenario.enqueue(producer, jobs);
            }
            let overflows = scenario.state.rows.most_overflows();
            assert!(overflows <= 12, "{which} by {bytes}: {overflows} ids had no room in one line");
        }
    }
}

#[test]
fn first_secret_keys_the_index_forever() {
    let (a, b) = (Secret([1; 16]), Secret([2; 16]));
    let (of_a, of_b) = (keyed(a), keyed(b));
    let job = id(1);
    assert_ne!(of_a.rows.hash_of(&job), of_b.rows.hash_of(&job));
    let mut scenario = StateScenario::empty();
    (scenario.state, scenario.index) = (of_a, 1);
    let hash = scenario.state.rows.hash_of(&job);
    scenario.fill(1..=3);
    let start = Start { secret: b, ..scenario.this_start() };
    scenario.apply(Command::Start(start));
    let restored = State::restore(&scenario.state.snapshot_bytes()).unwrap();
    for state in [&scenario.state, &restored] {
        assert_eq!((state.secret(), state.rows.hash_of(&job)), (Some(a), hash));
        assert!(state.rows.find(&job).is_some());
    }
    assert_eq!(format!("{a:?}"), "Secret(…)", "no log line contains it");
}
