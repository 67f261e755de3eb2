//! The task that follows one publisher: dials, opens the feed, lists, reads, and again.

use std::sync::Arc;

use longshore_protocol::limits::PAGE_JOBS_MAX;
use longshore_protocol::messages::work::{
    Answer, Filter, FromPublisher, JobsQuery, Request, RequestError, ToPublisher,
};
use longshore_protocol::{FrameWriter, Glob, Messages, PublisherInfo, Role};
use longshore_transport::{LinkReceiver, LinkSender};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::follow::{Follow, Listed};
use super::{FeedItem, FeedLoss, FeedNews};
use crate::link::open;
use crate::producer::new_session;
use crate::queues::Shared;
use crate::queues::ask::Again;

/// Frames of events that are read between two pages, if they are there.
const FRAMES_BETWEEN_PAGES: usize = 64;

/// Why a link was given up.
enum End {
    /// It ended, or cannot be used.
    Link(String),
    /// Nobody reads the feed any more.
    Unread,
}

pub(super) struct Keeper {
    pub(super) shared: Arc<Shared>,
    pub(super) pattern: Glob,
    pub(super) publisher: watch::Receiver<PublisherInfo>,
    pub(super) follow: Follow,
    pub(super) items: mpsc::Sender<FeedItem>,
}

impl Keeper {
    /// Follows the publisher for as long as anybody reads.
    pub(super) async fn run(mut self) {
        let mut again = Again::default();
        let mut told_away = false;
        loop {
            let publisher = self.publisher.borrow_and_update().clone();
            let (began, mut worked) = (Instant::now(), false);
            match self.follow(&publisher, &mut worked).await {
                End::Unread => return,
                End::Link(why) => {
                    if worked {
                        again.held(began);
                        told_away = false;
                    }
                    // Said once, however often it is tried.
                    if !told_away && self.tell(&publisher, FeedNews::Away { why }).await.is_err() {
                        return;
                    }
                    told_away = true;
                }
            }
            tokio::select! {
                () = sleep(again.next()) => {}
                changed = self.publisher.changed() => if changed.is_err() { return },
            }
        }
    }

    /// One link, from its beginning to its end. It is the feed's own: who reads slowly holds up
    /// nobody else, and the publisher learns of it by the socket.
    async fn follow(&mut self, publisher: &PublisherInfo, worked: &mut bool) -> End {
        let options = &self.shared.options;
        let (id, addresses) = (publisher.id, &publisher.addresses);
        let opened =
            open(id, addresses, Role::Tool, new_session(), &options.name, &options.link).await;
        let (sender, mut receiver, _) = match opened {
            Ok(opened) => opened,
            Err(why) => return End::Link(why),
        };
        let mut number = 0;
        let end = loop {
            number += 1;
            if let Err(end) = self.open_feed(publisher, &sender, &mut receiver, number).await {
                break end;
            }
            *worked = self.follow.after().is_some();
            if let Err(end) = self.read(publisher, &mut receiver, number).await {
                break end;
            }
        };
        sender.close("the feed has ended");
        end
    }

    /// Asks for the feed until it is open, or was lost and is open anew.
    async fn open_feed(
        &mut self,
        publisher: &PublisherInfo,
        sender: &LinkSender,
        receiver: &mut LinkReceiver,
        number: u64,
    ) -> Result<(), End> {
        let request = Request::Feed { pattern: self.pattern.clone(), after: self.follow.after() };
        let mut out = FrameWriter::new();
        ToPublisher::Request { id: number, request }.encode(&mut out);
        sender.send(out.finish()).map_err(|error| End::Link(error.to_string()))?;
        let limit = self.shared.options.request_timeout;
        let mut events = Vec::new();
        let answer = loop {
            let frame = timeout(limit, next_frame(receiver)).await;
            let frame = frame.map_err(|_| End::Link(format!("no answer within {limit:?}")))??;
            let mut answer = None;
            for message in frame {
                match message {
                    FromPublisher::Answer { id, answer: told } if id == number => {
                        answer = Some(told)
                    }
                    FromPublisher::Goodbye { reason } => return Err(End::Link(reason)),
                    // Events may come in the same frame as the answer.
                    other => events.push(other),
                }
            }
            if let Some(answer) = answer {
                break answer;
            }
        };
        match answer {
            Ok(Answer::Feed(at)) => {
                let snapshot = self.follow.opened(at);
                self.tell(publisher, FeedNews::Follows { at }).await?;
                if snapshot {
                    self.tell(publisher, FeedNews::SnapshotBegins).await?;
                }
                for message in events {
                    self.take(publisher, message, number).await?;
                }
                Ok(())
            }
            Ok(_) => Err(End::Link("it answered something else".into())),
            Err(RequestError::TooOld) => self.lose(publisher, FeedLoss::TooOld).await,
            Err(RequestError::Rewound) => self.lose(publisher, FeedLoss::Rewound).await,
            Err(error) => Err(End::Link(error.to_string())),
        }
    }

    /// Pages as long as there are some, and events for ever. Ends well when the feed is to be
    /// opened again on the same link.
    async fn read(
        &mut self,
        publisher: &PublisherInfo,
        receiver: &mut LinkReceiver,
        number: u64,
    ) -> Result<(), End> {
        loop {
            if self.follow.after().is_none() {
                return Ok(());
            }
            let Some(cursor) = self.follow.wanted_page() else {
                let frame = tokio::select! {
                    frame = next_frame(receiver) => frame?,
                    () = self.items.closed() => return Err(End::Unread),
                };
                self.take_all(publisher, frame, number).await?;
                continue;
            };
            self.list(publisher, cursor).await?;
            for _ in 0..FRAMES_BETWEEN_PAGES {
                let frame = tokio::select! {
                    biased;
                    frame = next_frame(receiver) => frame?,
                    () = std::future::ready(()) => break,
                };
                self.take_all(publisher, frame, number).await?;
            }
        }
    }

    /// Asks for a page, over the link that questions share, and tells of it.
    async fn list(&mut self, publisher: &PublisherInfo, cursor: u64) -> Result<(), End> {
        let query = JobsQuery {
            filter: Filter::of(self.pattern.clone()),
            cursor,
            limit: PAGE_JOBS_MAX as u32,
            full: false,
        };
        let page = match self.shared.ask(publisher, &Request::Jobs(query)).await {
            Ok(Answer::Jobs(page)) => page,
            Ok(_) => return Err(End::Link("it answered something else".into())),
            Err(failure) => return Err(End::Link(failure.to_string())),
        };
        let Ok(listed) = self.follow.page(&page) else {
            return Err(End::Link("it shows less than it had told already".into()));
        };
        if !page.jobs.is_empty() {
            self.tell(publisher, FeedNews::Jobs(page.jobs)).await?;
        }
        if let (Listed::Whole, Some(at)) = (listed, self.follow.after()) {
            self.tell(publisher, FeedNews::SnapshotEnds { at }).await?;
        }
        Ok(())
    }

    async fn take_all(
        &mut self,
        publisher: &PublisherInfo,
        frame: Vec<FromPublisher>,
        number: u64,
    ) -> Result<(), End> {
        for message in frame {
            self.take(publisher, message, number).await?;
        }
        Ok(())
    }

    async fn take(
        &mut self,
        publisher: &PublisherInfo,
        message: FromPublisher,
        number: u64,
    ) -> Result<(), End> {
        match message {
            FromPublisher::Feed(mut events) if events.id == number => {
                self.follow.events(&mut events);
                self.tell(publisher, FeedNews::Changes(events)).await
            }
            FromPublisher::FeedEnded { id, .. } if id == number => {
                self.lose(publisher, FeedLoss::TooOld).await
            }
            FromPublisher::Goodbye { reason } => Err(End::Link(reason)),
            _ => Ok(()),
        }
    }

    async fn lose(&mut self, publisher: &PublisherInfo, why: FeedLoss) -> Result<(), End> {
        self.follow.lost(why);
        self.tell(publisher, FeedNews::Lost(why)).await
    }

    async fn tell(&self, publisher: &PublisherInfo, news: FeedNews) -> Result<(), End> {
        let item = FeedItem { publisher: publisher.clone(), news };
        self.items.send(item).await.map_err(|_| End::Unread)
    }
}

/// The messages of the next frame. Cancel safe.
async fn next_frame(receiver: &mut LinkReceiver) -> Result<Vec<FromPublisher>, End> {
    let body = receiver.recv().await.map_err(|end| End::Link(end.to_string()))?;
    let wrong = |error| End::Link(format!("its message does not decode: {error}"));
    let mut messages = Vec::new();
    for message in Messages::new(body) {
        let (tag, body) = message.map_err(wrong)?;
        messages.extend(FromPublisher::decode(tag, body).map_err(wrong)?);
    }
    Ok(messages)
}
