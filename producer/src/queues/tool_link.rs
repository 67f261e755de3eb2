//! A link for requests to a publisher; answers are matched by number.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use longshore_protocol::limits::{COMPLETION_WAITS_MAX, REQUESTS_OPEN_MAX};
use longshore_protocol::messages::work::{
    Answer, FromPublisher, Request, RequestError, ToPublisher,
};
use longshore_protocol::{FrameWriter, JobId, Messages, PublisherInfo, Role, WireError};
use longshore_transport::{LinkReceiver, LinkSender};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::options::QueuesBuilder;
use super::retry::deadline_after;
use crate::attach::open;
use crate::ids::new_session_id;

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
    #[error("unexpected answer")]
    Unexpected,
    /// An action that takes several requests, with what was confirmed before.
    #[error("{0}")]
    Partial(String),
}

/// The shared link to one publisher. Callers that arrive while it is being made wait for it, and
/// share the result.
#[derive(Default)]
pub(super) struct LinkSlot(tokio::sync::Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    link: Option<Arc<ToolLink>>,
    /// The time and error of the last failed attempt.
    failed: Option<(Instant, RequestFailure)>,
}

impl LinkSlot {
    /// Returns the link, or makes one. Cancel safe.
    pub(super) async fn link(
        &self,
        publisher: &PublisherInfo,
        options: &QueuesBuilder,
    ) -> Result<Arc<ToolLink>, RequestFailure> {
        let requested_at = Instant::now();
        let mut slot = self.0.lock().await;
        if let Some(link) = slot.link.as_ref().filter(|link| link.is_alive()) {
            return Ok(link.clone());
        }
        // Ten thousand waiters of one publisher make one attempt, not ten thousand in turn.
        if let Some((at, failure)) = &slot.failed
            && *at >= requested_at
        {
            return Err(failure.clone());
        }
        // Each link has its own session: links of one session replace each other.
        let session = new_session_id();
        match open(publisher, Role::Tool, session, &options.name, &options.link).await {
            Ok((sender, receiver, _)) => {
                let link = ToolLink::start(sender, receiver);
                *slot = SlotState { link: Some(link.clone()), failed: None };
                Ok(link)
            }
            Err(why) => {
                let failure = RequestFailure::Unreachable(why);
                *slot = SlotState { link: None, failed: Some((Instant::now(), failure.clone())) };
                Err(failure)
            }
        }
    }
}

pub(super) struct ToolLink {
    sender: LinkSender,
    pending: Arc<Mutex<PendingRequests>>,
    /// Limits open requests to the publisher's limit per link. Further ones wait here.
    request_permits: Semaphore,
    /// Limits open waits for ends of jobs.
    await_permits: Semaphore,
    /// Ends the reading task with the last user of the link.
    _stop: DropGuard,
}

#[derive(Default)]
struct PendingRequests {
    next_id: u64,
    answers: HashMap<u64, oneshot::Sender<Result<Answer, RequestFailure>>>,
    /// Why the link ended.
    ended: Option<Arc<str>>,
}

impl ToolLink {
    fn start(sender: LinkSender, receiver: LinkReceiver) -> Arc<ToolLink> {
        let pending = Arc::new(Mutex::new(PendingRequests::default()));
        let stop = CancellationToken::new();
        tokio::spawn(read(receiver, pending.clone(), stop.clone()));
        Arc::new(ToolLink {
            sender,
            pending,
            request_permits: Semaphore::new(REQUESTS_OPEN_MAX),
            await_permits: Semaphore::new(COMPLETION_WAITS_MAX),
            _stop: stop.drop_guard(),
        })
    }

    fn is_alive(&self) -> bool {
        self.pending.lock().ended.is_none()
    }

    /// Sends a request and waits for the answer. Cancel safe.
    pub(super) async fn request(
        &self,
        request: &Request,
        limit: Duration,
    ) -> Result<Answer, RequestFailure> {
        let deadline = deadline_after(limit);
        let answer =
            timeout_at(deadline, self.send_request(&self.request_permits, request, false)).await;
        answer.unwrap_or(Err(RequestFailure::TimedOut(limit)))
    }

    /// Waits for the end of a job while the link lives. Dropping the future notifies the publisher.
    /// Cancel safe.
    pub(super) async fn await_end(&self, id: JobId) -> Result<Answer, RequestFailure> {
        self.send_request(&self.await_permits, &Request::Await { id }, true).await
    }

    async fn send_request(
        &self,
        permits: &Semaphore,
        request: &Request,
        forgettable: bool,
    ) -> Result<Answer, RequestFailure> {
        // The semaphore is never closed.
        let _permit = permits.acquire().await;
        let (answer, received) = oneshot::channel();
        let id = {
            let mut pending = self.pending.lock();
            if let Some(why) = &pending.ended {
                return Err(RequestFailure::LinkEnded(why.clone()));
            }
            pending.next_id += 1;
            let id = pending.next_id;
            pending.answers.insert(id, answer);
            id
        };
        let _remove = ForgetOnDrop { link: self, id, forgettable };
        let mut out = FrameWriter::new();
        ToPublisher::Request { id, request: request.clone() }.encode(&mut out);
        if let Err(error) = self.sender.send(out.finish()) {
            return Err(RequestFailure::LinkEnded(error.to_string().into()));
        }
        match received.await {
            Ok(answer) => answer,
            Err(_) => Err(RequestFailure::LinkEnded("its reader ended".into())),
        }
    }
}

/// Removes a request when its caller stops waiting.
struct ForgetOnDrop<'a> {
    link: &'a ToolLink,
    id: u64,
    /// The publisher would keep the request open for long.
    forgettable: bool,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        let open = self.link.pending.lock().answers.remove(&self.id).is_some();
        if open && self.forgettable {
            let mut out = FrameWriter::new();
            ToPublisher::Forget(self.id).encode(&mut out);
            // A link that cannot send is about to end, and its requests end with it.
            let _ = self.link.sender.send(out.finish());
        }
    }
}

async fn read(
    mut receiver: LinkReceiver,
    pending: Arc<Mutex<PendingRequests>>,
    stop: CancellationToken,
) {
    let mut goodbye = None;
    let why: Arc<str> = loop {
        let body = tokio::select! {
            () = stop.cancelled() => break "closed here".into(),
            body = receiver.recv() => match body {
                Ok(body) => body,
                Err(end) => break goodbye.unwrap_or_else(|| end.to_string()).into(),
            },
        };
        match dispatch(body, &pending) {
            Ok(Some(reason)) => goodbye = Some(reason),
            Ok(None) => {}
            Err(error) => break format!("its message does not decode: {error}").into(),
        }
    };
    let mut pending = pending.lock();
    for (_, answer) in pending.answers.drain() {
        // The caller may have stopped waiting.
        let _ = answer.send(Err(RequestFailure::LinkEnded(why.clone())));
    }
    pending.ended = Some(why);
}

/// Passes the answers of a frame to their callers. Returns the reason of a `Goodbye`.
fn dispatch(
    body: bytes::Bytes,
    pending: &Mutex<PendingRequests>,
) -> Result<Option<String>, WireError> {
    let mut goodbye = None;
    for message in Messages::new(body) {
        let (tag, body) = message?;
        match FromPublisher::decode(tag, body)? {
            Some(FromPublisher::Answer { id, answer }) => {
                if let Some(caller) = pending.lock().answers.remove(&id) {
                    let _ = caller.send(answer.map_err(RequestFailure::Refused));
                }
            }
            Some(FromPublisher::Goodbye { reason }) => goodbye = Some(reason),
            _ => {}
        }
    }
    Ok(goodbye)
}
