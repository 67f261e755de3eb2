//! A test moves the clock: the publisher runs every timer of that period at once.

use longshore_queue::{Poisoned, Released, next_stop};
use tokio::sync::mpsc;

use super::Owner;
use crate::test_clock::ClockMove;

impl Owner {
    /// Goes from one timer to the next, up to the end of the move. No time passes while a command
    /// is on its way to the disk: it would seem to hang.
    pub(super) async fn move_clock(
        &mut self,
        clock_move: ClockMove,
        released: &mut Released,
    ) -> Result<(), Poisoned> {
        self.process_queued_events()?;
        self.release_all(released).await?;
        let mut now = self.clock.now();
        let to_ms = now.mono_ms.saturating_add(clock_move.by_ms);
        // Workers run on the machine's clock: they have renewed their leases until now.
        self.store.restart_leases(now);
        loop {
            let appended = self.store.appended();
            let next_ms = self.advance(now)?;
            let acted = self.store.appended() > appended;
            let Some(stop) = next_stop(now.mono_ms, to_ms, next_ms, acted) else { break };
            self.clock.move_by(stop - now.mono_ms);
            now = self.clock.now();
        }
        self.release_all(released).await?;
        // The test may have dropped its future.
        let _ = clock_move.done.send(());
        Ok(())
    }

    /// Waits until everything submitted is durable and its answers are routed.
    pub(super) async fn release_all(&mut self, released: &mut Released) -> Result<(), Poisoned> {
        while !self.store.is_released() {
            self.store.released(released).await?;
            self.route(released)?;
        }
        Ok(())
    }
}

/// The next move of a test's clock; never resolves for the machine's clock.
pub(super) async fn next_clock_move(moves: &mut Option<mpsc::Receiver<ClockMove>>) -> ClockMove {
    if let Some(moves) = moves
        && let Some(clock_move) = moves.recv().await
    {
        return clock_move;
    }
    std::future::pending().await
}
