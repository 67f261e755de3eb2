//! One link to one publisher, from dialling to its end. It moves bytes and time between the socket
//! and the desk.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::limits::PROGRESSES_MAX;
use longshore_protocol::messages::work::{
    Attach, Attached, Checkpoint, Credit, FromPublisher, Request, SettleBatchBuilder, Sources,
    Subscribe, ToPublisher, Tokens,
};
use longshore_protocol::{
    FrameWriter, Handshake, Messages, PublisherId, PublisherInfo, Role, SessionId, WireError,
};
use longshore_transport::{
    DialError, LastAddress, LinkEnd, LinkOptions, LinkReceiver, LinkSender, SendError, SlowDisk,
    dial_publisher,
};
use tokio::sync::Notify;

use crate::checkpoints::ToSend;
use crate::desk::{Connect, Desk, Flooded, Outgoing, PlaceId};

/// The number of the one subscription that a worker's link has.
const SUBSCRIPTION: u32 = 1;
/// While more bytes than this wait in the send queue, ends of jobs wait at the desk.
const SEND_QUEUE_BYTES: usize = 16 * 1024 * 1024;
/// A frame is closed once it has this many bytes.
const FRAME_BYTES: usize = 1024 * 1024;
/// The longest that a publisher may take to make an attachment durable.
const ATTACH_WAIT_MAX: Duration = Duration::from_secs(15);

/// What every link of a worker has in common.
#[derive(Debug)]
pub(crate) struct LinkPlan {
    pub(crate) name: String,
    pub(crate) session: SessionId,
    pub(crate) options: LinkOptions,
    pub(crate) sources: Sources,
}

/// Why there is no link, or no longer.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("no link: {0}")]
    Dial(DialError),
    #[error("the publisher took over {0:?} to attach the link")]
    AttachTimeout(Duration),
    #[error("{0}")]
    End(#[from] LinkEnd),
    #[error("{0}")]
    Send(#[from] SendError),
    #[error("the publisher's bytes do not decode: {0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Flooded(#[from] Flooded),
    #[error("the subscription was refused: {0}")]
    Refused(String),
    #[error("the publisher said goodbye: {0}")]
    Goodbye(String),
    #[error("the publisher answered before it was attached")]
    Order,
}

/// One try: dials the publisher, attaches, subscribes, and then serves the link until it ends.
/// However it ends, the desk is told.
pub(crate) async fn run(desk: Arc<Desk>, plan: Arc<LinkPlan>, connect: Connect) {
    let (place, info) = (connect.place, &connect.info);
    let lost = match dial(&plan, info, &connect.last).await {
        Ok((sender, receiver)) => {
            let (publisher, disk) = (info.id, SlowDisk::default());
            let (desk, plan) = (&*desk, &*plan);
            Session { desk, plan, place, publisher, sender, receiver, disk }.serve().await
        }
        Err(lost) => lost,
    };
    desk.link_lost(place, lost.to_string());
}

async fn dial(
    plan: &LinkPlan,
    info: &PublisherInfo,
    last: &LastAddress,
) -> Result<(LinkSender, LinkReceiver), Lost> {
    let handshake =
        Handshake::new(Role::Worker, plan.session, plan.name.clone(), plan.options.timing);
    let dialled = dial_publisher(info.id, &info.addresses, last, &handshake, &plan.options);
    Ok(dialled.await.map_err(Lost::Dial)?.split())
}

struct Session<'a> {
    desk: &'a Desk,
    plan: &'a LinkPlan,
    place: PlaceId,
    publisher: PublisherId,
    sender: LinkSender,
    receiver: LinkReceiver,
    disk: SlowDisk,
}

impl Session<'_> {
    async fn serve(mut self) -> Lost {
        match self.attach().await {
            Ok(()) => match self.run().await {
                Ok(never) => match never {},
                Err(lost) => lost,
            },
            Err(lost) => lost,
        }
    }

    async fn attach(&mut self) -> Result<(), Lost> {
        let resume = self.desk.resume(self.place);
        self.send(|out| ToPublisher::Attach(Attach { resume }).encode(out))?;
        let answer = tokio::time::timeout(ATTACH_WAIT_MAX, self.attached()).await;
        let (answer, rest) = answer.map_err(|_| Lost::AttachTimeout(ATTACH_WAIT_MAX))??;
        // Subscribed before the desk knows: the first credit is for a subscription that the
        // publisher has.
        let sources = self.plan.sources.clone();
        self.send(|out| {
            ToPublisher::Subscribe(Subscribe { subscription: SUBSCRIPTION, sources }).encode(out);
        })?;
        let started = self.desk.attached(self.place, self.sender.clone(), answer);
        if !started.tokens.0.is_empty() {
            self.send(|out| ToPublisher::Started(started).encode(out))?;
        }
        for message in rest {
            self.handle(message)?;
        }
        Ok(())
    }

    /// Waits for `Attached`; what else came in its frame follows it.
    async fn attached(&mut self) -> Result<(Attached, Vec<FromPublisher>), Lost> {
        loop {
            let mut messages = decode(self.receiver.recv().await?)?.into_iter();
            match messages.next() {
                Some(FromPublisher::Attached(answer)) => return Ok((answer, messages.collect())),
                Some(FromPublisher::Goodbye { reason }) => return Err(Lost::Goodbye(reason)),
                Some(_) => return Err(Lost::Order),
                None => {}
            }
        }
    }

    async fn run(&mut self) -> Result<std::convert::Infallible, Lost> {
        let wake: Arc<Notify> = self.desk.wake(self.place);
        loop {
            let room = self.sender.queued_bytes() < SEND_QUEUE_BYTES;
            let mut out = self.desk.outgoing(self.place, room);
            let (deadline, more) = (out.deadline.take(), out.more);
            self.send_all(out)?;
            let at = self.desk.started + deadline.unwrap_or(Duration::from_secs(3_600));
            tokio::select! {
                frame = self.receiver.recv() => {
                    let frame = frame?;
                    if let Some(age) = self.disk.heard(&frame) {
                        let publisher = self.publisher.prefix();
                        tracing::warn!(%publisher, ?age, "the publisher's disk is slow: nothing is acknowledged meanwhile");
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

    fn handle(&self, message: FromPublisher) -> Result<(), Lost> {
        let (desk, place) = (self.desk, self.place);
        match message {
            FromPublisher::Deliver(deliver) => desk.delivered(place, deliver)?,
            FromPublisher::Settled(settled) => desk.settled(place, &settled),
            FromPublisher::Returned(credit) => desk.returned(place, credit.count),
            FromPublisher::Waiting(waiting) => desk.waiting(place, waiting.jobs),
            FromPublisher::Renewed { stale } => desk.renewed(place, &stale.0),
            FromPublisher::Revoked { reason, tokens } => desk.revoked(place, reason, &tokens.0),
            FromPublisher::Checkpointed(answer) => desk.checkpointed(place, &answer),
            FromPublisher::Answer { id, answer } => desk.told(place, id, answer),
            FromPublisher::WorkerQuiet(asked) => desk.be_quiet(place, asked),
            FromPublisher::SubscribeRefused { reason, .. } => return Err(Lost::Refused(reason)),
            FromPublisher::Goodbye { reason } => return Err(Lost::Goodbye(reason)),
            FromPublisher::Attached(_) => return Err(Lost::Order),
            // Answers to what workers do not ask, and to messages that later versions of them may
            // send.
            FromPublisher::Enqueued(_)
            | FromPublisher::Unsupported { .. }
            | FromPublisher::Feed(_)
            | FromPublisher::FeedEnded { .. } => {}
        }
        Ok(())
    }

    /// The recall of a quiet worker and the end of the subscription come first: what is given back
    /// behind them would come again. Checkpoints before ends of jobs, as their leases end with
    /// these; and these before credits: a credit that follows them never raises what the publisher
    /// counts above the bound.
    fn send_all(&self, out: Outgoing) -> Result<(), Lost> {
        let mut frame = FrameWriter::new();
        let send_when_full = |frame: &mut FrameWriter| match frame.body_len() {
            0..FRAME_BYTES => Ok(()),
            _ => self.sender.send(std::mem::take(frame).finish()),
        };
        let credit = |count| Credit { subscription: SUBSCRIPTION, count };
        if out.recall > 0 && out.recall_first {
            ToPublisher::Recall(credit(out.recall)).encode(&mut frame);
        }
        if out.unsubscribe {
            ToPublisher::Unsubscribe(SUBSCRIPTION).encode(&mut frame);
        }
        for asked in out.asked {
            match asked {
                ToSend::Store(body) => Checkpoint::encode(&body, &mut frame),
                ToSend::Ask(id, token) => {
                    let request = Request::Checkpoints { token };
                    ToPublisher::Request { id, request }.encode(&mut frame);
                }
            }
            send_when_full(&mut frame)?;
        }
        for body in &out.settles {
            SettleBatchBuilder::encode(body, &mut frame);
            send_when_full(&mut frame)?;
        }
        if out.grant > 0 && !out.unsubscribe {
            ToPublisher::Credit(credit(out.grant)).encode(&mut frame);
        }
        // After the credit: used at once, or given back.
        if out.recall > 0 && !out.recall_first {
            ToPublisher::Recall(credit(out.recall)).encode(&mut frame);
        }
        if !out.renew.is_empty() {
            ToPublisher::Renew(Tokens(out.renew)).encode(&mut frame);
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

    fn send(&self, write: impl FnOnce(&mut FrameWriter)) -> Result<(), Lost> {
        let mut out = FrameWriter::new();
        write(&mut out);
        Ok(self.sender.send(out.finish())?)
    }
}

/// The messages of a frame, those of later versions left out.
fn decode(frame: Bytes) -> Result<Vec<FromPublisher>, WireError> {
    let mut messages = Vec::new();
    for message in Messages::new(frame) {
        let (tag, body) = message?;
        messages.extend(FromPublisher::decode(tag, body)?);
    }
    Ok(messages)
}
