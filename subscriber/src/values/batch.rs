//! Subscriptions that are being made together at one publisher, and who waits for what becomes of them.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::sub::{Lost, Sub};

/// Counts down as they are answered, and gathers those that came to nothing.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    state: Mutex<State>,
    answered: Notify,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    refused: Lost,
}

impl Batch {
    /// One more is asked for.
    pub(crate) fn ask(&self) {
        self.state.lock().open += 1;
    }

    /// One stands, or is not wanted any more.
    pub(crate) fn done(&self) {
        self.answer(None);
    }

    /// One was refused, or its link was lost.
    pub(crate) fn refuse(&self, sub: Arc<Sub>, reason: Arc<str>) {
        self.answer(Some((sub, reason)));
    }

    fn answer(&self, refused: Option<(Arc<Sub>, Arc<str>)>) {
        let mut state = self.state.lock();
        state.open = state.open.saturating_sub(1);
        state.refused.extend(refused);
        if state.open == 0 {
            self.answered.notify_one();
        }
    }

    /// Waits until all are answered. Cancel safe.
    pub(crate) async fn answered(&self) {
        while self.state.lock().open > 0 {
            self.answered.notified().await;
        }
    }

    /// Those that came to nothing so far.
    pub(crate) fn take_refused(&self) -> Lost {
        std::mem::take(&mut self.state.lock().refused)
    }
}
