//! A test moves the clock: the publisher lives through all of that time at once.

use longshore_queue::{Poisoned, Released, next_stop};
use tokio::sync::mpsc;

use super::Owner;
use crate::test_clock::Move;

impl Owner {
    /// Goes from one thing that is due to the next, up to the end of the move. No time passes while
    /// a command is on its way to the disk: it would seem to hang.
    pub(super) async fn walk(
        &mut self,
        moved: Move,
        released: &mut Released,
    ) -> Result<(), Poisoned> {
        self.take_what_waits()?;
        self.release_all(released).await?;
        let mut now = self.clock.now();
        let to_ms = now.mono_ms.saturating_add(moved.by_ms);
        // Those who hold leases live by the machine's clock: until now they have renewed them.
        self.store.leases_anew(now);
        loop {
            let appended = self.store.appended();
            let next_ms = self.store.turn(now)?;
            let acted = self.store.appended() > appended;
            let Some(stop) = next_stop(now.mono_ms, to_ms, next_ms, acted) else { break };
            self.clock.move_by(stop - now.mono_ms);
            now = self.clock.now();
        }
        self.release_all(released).await?;
        // Whoever asked may have gone.
        let _ = moved.done.send(());
        Ok(())
    }

    /// Waits until all that was taken is durable, and its answers are on their way.
    pub(super) async fn release_all(&mut self, released: &mut Released) -> Result<(), Poisoned> {
        while !self.store.is_released() {
            self.store.released(released).await?;
            self.route(released)?;
        }
        Ok(())
    }
}

/// The next move, where the clock is a test's.
pub(super) async fn next_move(moves: &mut Option<mpsc::Receiver<Move>>) -> Move {
    if let Some(moves) = moves
        && let Some(moved) = moves.recv().await
    {
        return moved;
    }
    std::future::pending().await
}
