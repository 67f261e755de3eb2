//! A tool's link to a publisher: requests out, answers back by their number.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use longshore_protocol::limits::{AWAITS_MAX, REQUESTS_OPEN_MAX};
use longshore_protocol::messages::work::{
    Answer, FromPublisher, Request, RequestError, ToPublisher,
};
use longshore_protocol::{FrameWriter, JobId, Messages, PublisherInfo, Role, WireError};
use longshore_transport::{LinkReceiver, LinkSender};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::QueuesOptions;
use crate::link::open;
use crate::producer::new_session;

/// Why a publisher gave no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum RequestFailure {
    #[error("{0}")]
    Unreachable(String),
    #[error("the link ended: {0}")]
    LinkEnded(Arc<str>),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("{0}")]
    Refused(RequestError),
}

/// The place of one publisher's link: whoever comes while it is being made waits for it, and shares
/// what becomes of it.
#[derive(Default)]
pub(super) struct LinkSlot(tokio::sync::Mutex<Place>);

#[derive(Default)]
struct Place {
    link: Option<Arc<ToolLink>>,
    /// When a link could not be made last, and why.
    failed: Option<(Instant, RequestFailure)>,
}

impl LinkSlot {
    /// The link. Cancel safe.
    pub(super) async fn link(
        &self,
        publisher: &PublisherInfo,
        options: &QueuesOptions,
    ) -> Result<Arc<ToolLink>, RequestFailure> {
        let came = Instant::now();
        let mut place = self.0.lock().await;
        if let Some(link) = place.link.as_ref().filter(|link| link.is_alive()) {
            return Ok(link.clone());
        }
        // Ten thousand that wait for one publisher make one attempt, not ten thousand after each
        // other.
        if let Some((at, failure)) = &place.failed
            && *at >= came
        {
            return Err(failure.clone());
        }
        // A session of its own for each link: links of one session replace each other.
        let session = new_session();
        let (addresses, name) = (&publisher.addresses, &options.name);
        match open(publisher.id, addresses, Role::Tool, session, name, &options.link).await {
            Ok((sender, receiver, _)) => {
                let link = ToolLink::start(sender, receiver);
                *place = Place { link: Some(link.clone()), failed: None };
                Ok(link)
            }
            Err(why) => {
                let failure = RequestFailure::Unreachable(why);
                *place = Place { link: None, failed: Some((Instant::now(), failure.clone())) };
                Err(failure)
            }
        }
    }
}

pub(super) struct ToolLink {
    sender: LinkSender,
    waiting: Arc<Mutex<Waiting>>,
    /// Questions that may be open: as many as a publisher lets one link have. More wait here.
    questions: Semaphore,
    /// Ends of jobs that may be waited for at once.
    ends: Semaphore,
    /// Ends the reading task with the link's last user.
    _stop: DropGuard,
}

#[derive(Default)]
struct Waiting {
    next_id: u64,
    answers: HashMap<u64, oneshot::Sender<Result<Answer, RequestFailure>>>,
    /// Why the link has ended.
    ended: Option<Arc<str>>,
}

impl ToolLink {
    fn start(sender: LinkSender, receiver: LinkReceiver) -> Arc<ToolLink> {
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let stop = CancellationToken::new();
        tokio::spawn(read(receiver, waiting.clone(), stop.clone()));
        Arc::new(ToolLink {
            sender,
            waiting,
            questions: Semaphore::new(REQUESTS_OPEN_MAX),
            ends: Semaphore::new(AWAITS_MAX),
            _stop: stop.drop_guard(),
        })
    }

    fn is_alive(&self) -> bool {
        self.waiting.lock().ended.is_none()
    }

    /// Asks, and waits for the answer. Cancel safe.
    pub(super) async fn ask(
        &self,
        request: &Request,
        limit: Duration,
    ) -> Result<Answer, RequestFailure> {
        let time_up = super::ask::deadline(limit);
        let answer = timeout_at(time_up, self.ask_of(&self.questions, request, false)).await;
        answer.unwrap_or(Err(RequestFailure::TimedOut(limit)))
    }

    /// Waits for the end of a job for as long as the link lives; the publisher is told once nobody
    /// waits any more. Cancel safe.
    pub(super) async fn ask_end(&self, id: JobId) -> Result<Answer, RequestFailure> {
        self.ask_of(&self.ends, &Request::Await { id }, true).await
    }

    async fn ask_of(
        &self,
        places: &Semaphore,
        request: &Request,
        forgettable: bool,
    ) -> Result<Answer, RequestFailure> {
        // Never closed.
        let _place = places.acquire().await;
        let (answer, told) = oneshot::channel();
        let id = {
            let mut waiting = self.waiting.lock();
            if let Some(why) = &waiting.ended {
                return Err(RequestFailure::LinkEnded(why.clone()));
            }
            waiting.next_id += 1;
            let id = waiting.next_id;
            waiting.answers.insert(id, answer);
            id
        };
        let _remove = TakeBack { link: self, id, forgettable };
        let mut out = FrameWriter::new();
        ToPublisher::Request { id, request: request.clone() }.encode(&mut out);
        if let Err(error) = self.sender.send(out.finish()) {
            return Err(RequestFailure::LinkEnded(error.to_string().into()));
        }
        match told.await {
            Ok(answer) => answer,
            Err(_) => Err(RequestFailure::LinkEnded("its reader ended".into())),
        }
    }
}

/// Takes back a question that nobody waits for any more.
struct TakeBack<'a> {
    link: &'a ToolLink,
    id: u64,
    /// The publisher would keep it for long.
    forgettable: bool,
}

impl Drop for TakeBack<'_> {
    fn drop(&mut self) {
        let open = self.link.waiting.lock().answers.remove(&self.id).is_some();
        if open && self.forgettable {
            let mut out = FrameWriter::new();
            ToPublisher::Forget(self.id).encode(&mut out);
            // A link that takes no more is about to end, and everything that was asked on it with
            // it.
            let _ = self.link.sender.send(out.finish());
        }
    }
}

async fn read(mut receiver: LinkReceiver, waiting: Arc<Mutex<Waiting>>, stop: CancellationToken) {
    let mut goodbye = None;
    let why: Arc<str> = loop {
        let body = tokio::select! {
            () = stop.cancelled() => break "closed here".into(),
            body = receiver.recv() => match body {
                Ok(body) => body,
                Err(end) => break goodbye.unwrap_or_else(|| end.to_string()).into(),
            },
        };
        match hand_out(body, &waiting) {
            Ok(Some(reason)) => goodbye = Some(reason),
            Ok(None) => {}
            Err(error) => break format!("its message does not decode: {error}").into(),
        }
    };
    let mut waiting = waiting.lock();
    for (_, answer) in waiting.answers.drain() {
        // Who no longer waits needs no answer.
        let _ = answer.send(Err(RequestFailure::LinkEnded(why.clone())));
    }
    waiting.ended = Some(why);
}

/// Hands out the answers of a frame; gives back the reason of a goodbye.
fn hand_out(body: bytes::Bytes, waiting: &Mutex<Waiting>) -> Result<Option<String>, WireError> {
    let mut goodbye = None;
    for message in Messages::new(body) {
        let (tag, body) = message?;
        match FromPublisher::decode(tag, body)? {
            Some(FromPublisher::Answer { id, answer }) => {
                if let Some(asker) = waiting.lock().answers.remove(&id) {
                    let _ = asker.send(answer.map_err(RequestFailure::Refused));
                }
            }
            Some(FromPublisher::Goodbye { reason }) => goodbye = Some(reason),
            _ => {}
        }
    }
    Ok(goodbye)
}
