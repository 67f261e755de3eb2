//! Subscriptions that are being made together at one publisher, and who waits for what becomes of them.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::sub::{Lost, Sub};

/// Counts down as they are answered, and gathers those that came to nothing.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    state: Mutex<State>,
    news: Notify,
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
        let news = refused.is_some() || state.open == 0;
        state.refused.extend(refused);
        if news {
            self.news.notify_one();
        }
    }

    /// Waits until some came to nothing, or all are answered. For one who waits. Cancel safe.
    pub(crate) async fn news(&self) {
        while !self.state.lock().has_news() {
            self.news.notified().await;
        }
    }

    /// Those that came to nothing since this was asked last, and whether others are still to be answered.
    pub(crate) fn take_refused(&self) -> (Lost, bool) {
        let mut state = self.state.lock();
        (std::mem::take(&mut state.refused), state.open > 0)
    }
}

impl State {
    fn has_news(&self) -> bool {
        self.open == 0 || !self.refused.is_empty()
    }
}
