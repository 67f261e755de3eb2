//! The task that follows one publisher: dials, opens the feed, lists, reads, and retries.

use std::sync::Arc;

use longshore_protocol::messages::work::{
    Answer, Filter, FromPublisher, JobsQuery, Request, RequestError, ToPublisher,
};
use longshore_protocol::{FrameWriter, Glob, Messages, PublisherInfo, Role};
use longshore_transport::{LinkReceiver, LinkSender};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::cursor::{FeedCursor, PageResult};
use super::items::{FeedItem, FeedLoss, FeedUpdate};
use crate::attach::open;
use crate::ids::new_session_id;
use crate::queues::requester::Requester;
use crate::queues::retry::RetryBackoff;

/// Most frames of events to read between two pages.
const FRAMES_BETWEEN_PAGES: usize = 64;

/// Why following stopped.
enum FollowEnd {
    /// The link ended, or cannot be used.
    LinkLost(String),
    /// The feed was dropped.
    ReaderGone,
}

pub(super) struct Follower {
    pub(super) requester: Arc<Requester>,
    pub(super) pattern: Glob,
    pub(super) publisher: watch::Receiver<PublisherInfo>,
    pub(super) cursor: FeedCursor,
    pub(super) items: mpsc::Sender<FeedItem>,
}

impl Follower {
    /// Follows the publisher until the feed is dropped.
    pub(super) async fn run(mut self) {
        let mut backoff = RetryBackoff::default();
        let mut away_reported = false;
        loop {
            let publisher = self.publisher.borrow_and_update().clone();
            let (began, mut worked) = (Instant::now(), false);
            match self.follow(&publisher, &mut worked).await {
                FollowEnd::ReaderGone => return,
                FollowEnd::LinkLost(why) => {
                    if worked {
                        backoff.reset_if_lasted(began);
                        away_reported = false;
                    }
                    // Reported once per outage.
                    if !away_reported
                        && self.emit(&publisher, FeedUpdate::Away { why }).await.is_err()
                    {
                        return;
                    }
                    away_reported = true;
                }
            }
            tokio::select! {
                () = sleep(backoff.next()) => {}
                changed = self.publisher.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Serves one link until it ends. The feed has its own link: a slow reader delays no other
    /// feed, and back-pressure reaches the publisher through the socket.
    async fn follow(&mut self, publisher: &PublisherInfo, worked: &mut bool) -> FollowEnd {
        let options = &self.requester.options;
        let opened =
            open(publisher, Role::Tool, new_session_id(), &options.name, &options.link).await;
        let (sender, mut receiver, _) = match opened {
            Ok(opened) => opened,
            Err(why) => return FollowEnd::LinkLost(why),
        };
        let mut number = 0;
        let end = loop {
            number += 1;
            if let Err(end) = self.open_feed(publisher, &sender, &mut receiver, number).await {
                break end;
            }
            *worked = self.cursor.after().is_some();
            if let Err(end) = self.read(publisher, &mut receiver, number).await {
                break end;
            }
        };
        sender.close("the feed has ended");
        end
    }

    /// Requests the feed. On a loss, reports it, and the caller requests the feed again.
    async fn open_feed(
        &mut self,
        publisher: &PublisherInfo,
        sender: &LinkSender,
        receiver: &mut LinkReceiver,
        number: u64,
    ) -> Result<(), FollowEnd> {
        let request = Request::Feed { pattern: self.pattern.clone(), after: self.cursor.after() };
        let mut out = FrameWriter::new();
        ToPublisher::Request { id: number, request }.encode(&mut out);
        sender.send(out.finish()).map_err(|error| FollowEnd::LinkLost(error.to_string()))?;
        let limit = self.requester.options.request_timeout;
        let mut events = Vec::new();
        let answer = loop {
            let frame = timeout(limit, next_frame(receiver)).await;
            let frame =
                frame.map_err(|_| FollowEnd::LinkLost(format!("no answer within {limit:?}")))??;
            let mut answer = None;
            for message in frame {
                match message {
                    FromPublisher::Answer { id, answer: received } if id == number => {
                        answer = Some(received)
                    }
                    FromPublisher::Goodbye { reason } => return Err(FollowEnd::LinkLost(reason)),
                    // Events may arrive in the same frame as the answer.
                    other => events.push(other),
                }
            }
            if let Some(answer) = answer {
                break answer;
            }
        };
        match answer {
            Ok(Answer::Feed(at)) => {
                let snapshot = self.cursor.opened(at);
                self.emit(publisher, FeedUpdate::Follows { at }).await?;
                if snapshot {
                    self.emit(publisher, FeedUpdate::SnapshotBegins).await?;
                }
                for message in events {
                    self.handle(publisher, message, number).await?;
                }
                Ok(())
            }
            Ok(_) => Err(FollowEnd::LinkLost("unexpected answer".into())),
            Err(RequestError::TooOld) => self.report_loss(publisher, FeedLoss::TooOld).await,
            Err(RequestError::Rewound) => self.report_loss(publisher, FeedLoss::Rewound).await,
            Err(error) => Err(FollowEnd::LinkLost(error.to_string())),
        }
    }

    /// Reads pages and events. Returns `Ok` if the feed is to be opened again on the same link.
    async fn read(
        &mut self,
        publisher: &PublisherInfo,
        receiver: &mut LinkReceiver,
        number: u64,
    ) -> Result<(), FollowEnd> {
        loop {
            if self.cursor.after().is_none() {
                return Ok(());
            }
            let Some(cursor) = self.cursor.next_page() else {
                let frame = tokio::select! {
                    frame = next_frame(receiver) => frame?,
                    () = self.items.closed() => return Err(FollowEnd::ReaderGone),
                };
                self.handle_frame(publisher, frame, number).await?;
                continue;
            };
            self.list(publisher, cursor).await?;
            for _ in 0..FRAMES_BETWEEN_PAGES {
                let frame = tokio::select! {
                    biased;
                    frame = next_frame(receiver) => frame?,
                    () = std::future::ready(()) => break,
                };
                self.handle_frame(publisher, frame, number).await?;
            }
        }
    }

    /// Requests a page, over the shared request link, and emits it.
    async fn list(&mut self, publisher: &PublisherInfo, cursor: u64) -> Result<(), FollowEnd> {
        let query = JobsQuery { cursor, ..JobsQuery::of(Filter::of(self.pattern.clone())) };
        let page = match self.requester.request(publisher, &Request::Jobs(query)).await {
            Ok(Answer::Jobs(page)) => page,
            Ok(_) => return Err(FollowEnd::LinkLost("unexpected answer".into())),
            Err(failure) => return Err(FollowEnd::LinkLost(failure.to_string())),
        };
        let Ok(listed) = self.cursor.page(&page) else {
            return Err(FollowEnd::LinkLost(
                "the publisher's listing is older than its events".into(),
            ));
        };
        if !page.jobs.is_empty() {
            self.emit(publisher, FeedUpdate::Jobs(page.jobs)).await?;
        }
        if let (PageResult::Last, Some(at)) = (listed, self.cursor.after()) {
            self.emit(publisher, FeedUpdate::SnapshotEnds { at }).await?;
        }
        Ok(())
    }

    async fn handle_frame(
        &mut self,
        publisher: &PublisherInfo,
        frame: Vec<FromPublisher>,
        number: u64,
    ) -> Result<(), FollowEnd> {
        for message in frame {
            self.handle(publisher, message, number).await?;
        }
        Ok(())
    }

    async fn handle(
        &mut self,
        publisher: &PublisherInfo,
        message: FromPublisher,
        number: u64,
    ) -> Result<(), FollowEnd> {
        match message {
            FromPublisher::Feed(mut events) if events.id == number => {
                self.cursor.events(&mut events);
                self.emit(publisher, FeedUpdate::Changes(events)).await
            }
            FromPublisher::FeedEnded { id, .. } if id == number => {
                self.report_loss(publisher, FeedLoss::TooOld).await
            }
            FromPublisher::Goodbye { reason } => Err(FollowEnd::LinkLost(reason)),
            _ => Ok(()),
        }
    }

    async fn report_loss(
        &mut self,
        publisher: &PublisherInfo,
        why: FeedLoss,
    ) -> Result<(), FollowEnd> {
        self.cursor.lost(why);
        self.emit(publisher, FeedUpdate::Lost(why)).await
    }

    async fn emit(&self, publisher: &PublisherInfo, update: FeedUpdate) -> Result<(), FollowEnd> {
        let item = FeedItem { publisher: publisher.clone(), update };
        self.items.send(item).await.map_err(|_| FollowEnd::ReaderGone)
    }
}

/// The messages of the next frame. Cancel safe.
async fn next_frame(receiver: &mut LinkReceiver) -> Result<Vec<FromPublisher>, FollowEnd> {
    let body = receiver.recv().await.map_err(|end| FollowEnd::LinkLost(end.to_string()))?;
    let wrong = |error| FollowEnd::LinkLost(format!("its message does not decode: {error}"));
    let mut messages = Vec::new();
    for message in Messages::new(body) {
        let (tag, body) = message.map_err(wrong)?;
        messages.extend(FromPublisher::decode(tag, body).map_err(wrong)?);
    }
    Ok(messages)
}
