//! No attack: what half a busy core costs honest clients by itself, to compare the others with.

use std::hint::black_box;

use super::{Attacker, Outcome};

/// Steps between two looks at the clock.
const STEPS: u64 = 20_000;

/// Computes, and touches no server.
pub(super) async fn computing(attacker: &Attacker) -> Outcome {
    let mut steps = 0;
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        for step in 0..STEPS {
            steps += black_box(step) & 1;
        }
        tokio::task::yield_now().await;
    }
    Ok(steps)
}
