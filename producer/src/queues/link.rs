//! A tool's link to a publisher: requests out, answers back by their number.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use longshore_protocol::messages::work::{
    Answer, FromPublisher, Request, RequestError, ToPublisher,
};
use longshore_protocol::{FrameWriter, Messages, PublisherInfo, Role, WireError};
use longshore_transport::{LinkReceiver, LinkSender};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::QueuesOptions;
use crate::link::open;
use crate::producer::new_session;

/// Most requests without an answer on one link.
const REQUESTS_MAX: usize = 1_024;

/// Why a publisher gave no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum RequestFailure {
    #[error("{0}")]
    Unreachable(String),
    #[error("the link ended: {0}")]
    LinkEnded(Arc<str>),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("{REQUESTS_MAX} requests wait for it already")]
    TooMany,
    #[error("{0}")]
    Refused(RequestError),
}

/// The place of one publisher's link: whoever comes while it is being made waits for it.
#[derive(Default)]
pub(super) struct LinkSlot(tokio::sync::Mutex<Option<Arc<ToolLink>>>);

impl LinkSlot {
    /// The link, and whether it was made for this call.
    pub(super) async fn link(
        &self,
        publisher: &PublisherInfo,
        options: &QueuesOptions,
    ) -> Result<(Arc<ToolLink>, bool), RequestFailure> {
        let mut slot = self.0.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| link.is_alive()) {
            return Ok((link.clone(), false));
        }
        // A session of its own for each link: links of one session replace each other.
        let session = new_session();
        let (addresses, name) = (&publisher.addresses, &options.name);
        let opened = open(publisher.id, addresses, Role::Tool, session, name, &options.link).await;
        let (sender, receiver, _) = opened.map_err(RequestFailure::Unreachable)?;
        let link = ToolLink::start(sender, receiver);
        *slot = Some(link.clone());
        Ok((link, true))
    }

    /// A dead link is not handed out again.
    pub(super) async fn forget(&self, dead: &Arc<ToolLink>) {
        let mut slot = self.0.lock().await;
        if slot.as_ref().is_some_and(|link| Arc::ptr_eq(link, dead)) {
            *slot = None;
        }
    }
}

pub(super) struct ToolLink {
    sender: LinkSender,
    waiting: Arc<Mutex<Waiting>>,
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
        Arc::new(ToolLink { sender, waiting, _stop: stop.drop_guard() })
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
        let (answer, told) = oneshot::channel();
        let id = {
            let mut waiting = self.waiting.lock();
            if let Some(why) = &waiting.ended {
                return Err(RequestFailure::LinkEnded(why.clone()));
            }
            if waiting.answers.len() >= REQUESTS_MAX {
                return Err(RequestFailure::TooMany);
            }
            waiting.next_id += 1;
            let id = waiting.next_id;
            waiting.answers.insert(id, answer);
            id
        };
        let _remove = Forget { waiting: &self.waiting, id };
        let mut out = FrameWriter::new();
        ToPublisher::Request { id, request: request.clone() }.encode(&mut out);
        if let Err(error) = self.sender.send(out.finish()) {
            return Err(RequestFailure::LinkEnded(error.to_string().into()));
        }
        match tokio::time::timeout(limit, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(RequestFailure::LinkEnded("its reader ended".into())),
            Err(_) => Err(RequestFailure::TimedOut(limit)),
        }
    }
}

/// Takes back a question that nobody waits for any more.
struct Forget<'a> {
    waiting: &'a Mutex<Waiting>,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.waiting.lock().answers.remove(&self.id);
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
