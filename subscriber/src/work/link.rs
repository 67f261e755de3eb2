//! The task of one link to one publisher, from the dial to the end. It moves messages between the
//! socket and the session.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::limits::PROGRESSES_MAX;
use longshore_protocol::messages::work::{
    Attach, Attached, Checkpoint, Credit, FromPublisher, SettleBatchBuilder, Subscribe,
    ToPublisher, Tokens,
};
use longshore_protocol::{
    FrameWriter, Handshake, Messages, PublisherId, PublisherInfo, Role, SessionId, WireError,
};
use longshore_transport::{
    DialError, LastAddress, LinkEnd, LinkOptions, LinkReceiver, LinkSender, SendError, SlowDisk,
    dial_publisher,
};
use tokio::sync::Notify;

use crate::work::session::{Connect, ExcessJobs, Outgoing, SlotId, WorkerSession};
use crate::work::state::checkpoints::CheckpointRequest;
use crate::work::state::subscriptions::number_of;

/// While the send queue is longer than this, settles stay in the session.
const SEND_QUEUE_BYTES: usize = 2 * 1024 * 1024;
/// A frame is sent once it has this many bytes.
const FRAME_BYTES: usize = 1024 * 1024;
/// The longest that a publisher may take to make an attachment durable.
const ATTACH_WAIT_MAX: Duration = Duration::from_secs(15);

/// The configuration that all links of a worker share.
#[derive(Debug)]
pub(crate) struct LinkConfig {
    pub(crate) name: String,
    pub(crate) session_id: SessionId,
    pub(crate) options: LinkOptions,
    pub(crate) subscriptions: Vec<Subscribe>,
}

/// Why a link could not be made, or ended.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("no link: {0}")]
    Dial(DialError),
    #[error("the publisher did not attach the link within {0:?}")]
    AttachTimeout(Duration),
    #[error("{0}")]
    End(#[from] LinkEnd),
    #[error("{0}")]
    Send(#[from] SendError),
    #[error("the publisher's bytes do not decode: {0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    ExcessJobs(#[from] ExcessJobs),
    #[error("the subscription was refused: {0}")]
    Refused(String),
    #[error("the publisher closed the link: {0}")]
    Goodbye(String),
    #[error("the publisher sent a message before it attached the link")]
    OutOfOrder,
}

/// Makes one attempt: dials the publisher, attaches, subscribes, and serves the link until it ends.
/// Reports every outcome to the session.
pub(crate) async fn run(session: Arc<WorkerSession>, config: Arc<LinkConfig>, connect: Connect) {
    let (slot_id, info) = (connect.slot_id, &connect.info);
    let error = match dial(&config, info, &connect.last).await {
        Ok((sender, receiver)) => {
            let (publisher, disk) = (info.id, SlowDisk::default());
            let (session, config) = (&*session, &*config);
            WorkerLink { session, config, slot_id, publisher, sender, receiver, disk }.serve().await
        }
        Err(error) => error,
    };
    session.link_lost(slot_id, error.to_string());
}

async fn dial(
    config: &LinkConfig,
    info: &PublisherInfo,
    last: &LastAddress,
) -> Result<(LinkSender, LinkReceiver), LinkError> {
    let handshake =
        Handshake::new(Role::Worker, config.session_id, config.name.clone(), config.options.timing);
    let dialled = dial_publisher(info, last, &handshake, &config.options);
    Ok(dialled.await.map_err(LinkError::Dial)?.split())
}

struct WorkerLink<'a> {
    session: &'a WorkerSession,
    config: &'a LinkConfig,
    slot_id: SlotId,
    publisher: PublisherId,
    sender: LinkSender,
    receiver: LinkReceiver,
    disk: SlowDisk,
}

impl WorkerLink<'_> {
    async fn serve(mut self) -> LinkError {
        match self.attach().await {
            Ok(()) => match self.run().await {
                Ok(never) => match never {},
                Err(error) => error,
            },
            Err(error) => error,
        }
    }

    async fn attach(&mut self) -> Result<(), LinkError> {
        let resume = self.session.resume(self.slot_id);
        self.send(|out| ToPublisher::Attach(Attach { resume }).encode(out))?;
        let answer = tokio::time::timeout(ATTACH_WAIT_MAX, self.attached()).await;
        let (answer, rest) = answer.map_err(|_| LinkError::AttachTimeout(ATTACH_WAIT_MAX))??;
        // Subscribe before the session may grant: a credit needs a subscription at the publisher.
        self.send(|out| {
            for subscribe in &self.config.subscriptions {
                ToPublisher::Subscribe(subscribe.clone()).encode(out);
            }
        })?;
        let started = self.session.attached(self.slot_id, self.sender.clone(), answer);
        if !started.tokens.0.is_empty() {
            self.send(|out| ToPublisher::Started(started).encode(out))?;
        }
        for message in rest {
            self.handle(message)?;
        }
        Ok(())
    }

    /// Waits for `Attached`; returns the other messages of its frame with it.
    async fn attached(&mut self) -> Result<(Attached, Vec<FromPublisher>), LinkError> {
        loop {
            let mut messages = decode(self.receiver.recv().await?)?.into_iter();
            match messages.next() {
                Some(FromPublisher::Attached(answer)) => return Ok((answer, messages.collect())),
                Some(FromPublisher::Goodbye { reason }) => return Err(LinkError::Goodbye(reason)),
                Some(_) => return Err(LinkError::OutOfOrder),
                None => {}
            }
        }
    }

    async fn run(&mut self) -> Result<std::convert::Infallible, LinkError> {
        let wake: Arc<Notify> = self.session.wake(self.slot_id);
        loop {
            let room = self.sender.queued_bytes() < SEND_QUEUE_BYTES;
            let mut out = self.session.outgoing(self.slot_id, room);
            let (deadline, more, unsubscribe) = (out.deadline.take(), out.more, out.unsubscribe);
            self.send_all(out)?;
            if unsubscribe {
                self.session.unsubscribed(self.slot_id);
            }
            let at = self.session.started + deadline.unwrap_or(Duration::from_secs(3_600));
            tokio::select! {
                frame = self.receiver.recv() => {
                    let frame = frame?;
                    if let Some(age) = self.disk.on_frame(&frame) {
                        let publisher = self.publisher.prefix();
                        tracing::warn!(
                            %publisher, ?age,
                            "the publisher's disk is slow: it acknowledges nothing meanwhile"
                        );
                    }
                    for message in decode(frame)? {
                        self.handle(message)?;
                    }
                }
                () = wake.notified() => {}
                () = tokio::time::sleep_until(at), if deadline.is_some() => {}
                ready = self.sender.ready(SEND_QUEUE_BYTES), if more || !room => ready?,
            }
        }
    }

    fn handle(&self, message: FromPublisher) -> Result<(), LinkError> {
        let (session, slot_id) = (self.session, self.slot_id);
        match message {
            FromPublisher::Deliver(deliver) => session.delivered(slot_id, deliver)?,
            FromPublisher::Settled(settled) => session.settled(slot_id, &settled),
            FromPublisher::Returned(credit) => session.returned(slot_id, credit),
            FromPublisher::Waiting(waiting) => session.waiting(slot_id, waiting),
            FromPublisher::Renewed { stale } => session.renewed(slot_id, &stale.0),
            FromPublisher::Revoked { reason, tokens } => {
                session.revoked(slot_id, reason, &tokens.0)
            }
            FromPublisher::Checkpointed(answer) => session.checkpointed(slot_id, &answer),
            FromPublisher::Answer { id, answer } => session.query_answered(slot_id, id, answer),
            FromPublisher::WorkerQuiet(request) => session.quiet_requested(slot_id, request),
            FromPublisher::SubscribeRefused { reason, .. } => {
                return Err(LinkError::Refused(reason));
            }
            FromPublisher::Goodbye { reason } => return Err(LinkError::Goodbye(reason)),
            FromPublisher::Attached(_) => return Err(LinkError::OutOfOrder),
            // Answers to requests that workers do not send, and answers from later versions.
            FromPublisher::Enqueued(_)
            | FromPublisher::Unsupported { .. }
            | FromPublisher::Feed(_)
            | FromPublisher::FeedEnded { .. } => {}
        }
        Ok(())
    }

    /// A quiet worker's recall and the unsubscription go first: after a release, unused credits
    /// would bring the job again. Checkpoints go before settles, because a settle ends their lease.
    /// Settles go before credits, so that the publisher never counts more than the bound. Renewals
    /// go before settles, which may be long.
    fn send_all(&self, out: Outgoing) -> Result<(), LinkError> {
        let mut frame = FrameWriter::new();
        let send_when_full = |frame: &mut FrameWriter| match frame.body_len() {
            0..FRAME_BYTES => Ok(()),
            _ => self.sender.send(std::mem::take(frame).finish()),
        };
        let credit = |(index, count)| Credit { subscription: number_of(index), count };
        let recall = |frame: &mut FrameWriter| {
            out.recall.iter().for_each(|one| ToPublisher::Recall(credit(one)).encode(frame));
        };
        if out.recall_first {
            recall(&mut frame);
        }
        for one in self.config.subscriptions.iter().filter(|_| out.unsubscribe) {
            ToPublisher::Unsubscribe(one.subscription).encode(&mut frame);
        }
        for request in out.checkpoint_requests {
            match request {
                CheckpointRequest::Store(body) => Checkpoint::encode(&body, &mut frame),
                CheckpointRequest::Query(id, request) => {
                    ToPublisher::Request { id, request }.encode(&mut frame);
                }
            }
            send_when_full(&mut frame)?;
        }
        if !out.renew.is_empty() {
            ToPublisher::Renew(Tokens(out.renew)).encode(&mut frame);
        }
        for body in &out.settles {
            SettleBatchBuilder::encode(body, &mut frame);
            send_when_full(&mut frame)?;
        }
        for one in out.grant.iter().filter(|_| !out.unsubscribe) {
            ToPublisher::Credit(credit(one)).encode(&mut frame);
        }
        // After the credit: the publisher uses it at once, or returns it.
        if !out.recall_first {
            recall(&mut frame);
        }
        if let Some(quiet) = out.quiet {
            ToPublisher::Quieted(quiet).encode(&mut frame);
        }
        let mut progress = out.progress;
        while !progress.is_empty() {
            let rest = progress.split_off(progress.len().min(PROGRESSES_MAX));
            ToPublisher::Progress(progress).encode(&mut frame);
            send_when_full(&mut frame)?;
            progress = rest;
        }
        if !frame.is_empty() {
            self.sender.send(frame.finish())?;
        }
        Ok(())
    }

    fn send(&self, write: impl FnOnce(&mut FrameWriter)) -> Result<(), LinkError> {
        let mut out = FrameWriter::new();
        write(&mut out);
        Ok(self.sender.send(out.finish())?)
    }
}

/// Decodes a frame; skips messages of later versions.
fn decode(frame: Bytes) -> Result<Vec<FromPublisher>, WireError> {
    let mut messages = Vec::new();
    for message in Messages::new(frame) {
        let (tag, body) = message?;
        messages.extend(FromPublisher::decode(tag, body)?);
    }
    Ok(messages)
}
