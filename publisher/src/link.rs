//! One link's task: reads frames, decodes their messages and sends them to the owner. It decides
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_access::Rights;
use longshore_protocol::messages::HEARTBEAT;
use longshore_protocol::messages::work::{
    Attach, Checkpointed, Enqueued, FromPublisher, RequestError, Settled, ToPublisher, Tokens, tag,
};
use longshore_protocol::{
    BatchRefusal, CheckpointOutcome, FrameWriter, LinkId, Messages, Reader, Runs, Token, WireError,
};
use longshore_queue::CACHE_COPY_BYTES_MAX;
use longshore_transport::{LinkEnd, LinkReceiver, LinkSender};
use tokio::sync::{Semaphore, mpsc, watch};
use tracing::{debug, info};

use crate::accept::LinkClient;
use crate::event::{EventSender, NewLink, OwnerEvent};
use crate::link_log;

/// The longest that a client may take to send `Attach`, as long as a handshake: until then it
/// occupies a connection slot and does nothing.
const ATTACH_WAIT: Duration = Duration::from_secs(10);

/// A frame's messages are decoded in parts: a part ends with this many bytes,
const PART_BYTES: usize = 32 * 1024;
/// or messages of this weight.
const PART_WEIGHT_MAX: usize = 256;
/// The weight of a message that may take the owner far longer than others: 4 in a part.
const SLOW_MESSAGE_WEIGHT: usize = 64;
/// Parts of one link that may wait for the owner, so that no link's messages are long before those
/// of others: one for the owner, and others being decoded meanwhile.
const PARTS_WAITING_MAX: usize = 4;

/// Serves a link until it ends.
pub(crate) async fn serve(
    link: LinkId,
    client: LinkClient,
    sender: LinkSender,
    mut receiver: LinkReceiver,
    events: EventSender,
) {
    let LinkClient { handshake, identity, mut rights, .. } = client;
    let attached = tokio::time::timeout(ATTACH_WAIT, attach(&mut receiver)).await;
    let attached = attached.unwrap_or_else(|_| Err(format!("no Attach within {ATTACH_WAIT:?}")));
    let attached = match attached {
        Ok(attached) => attached,
        Err(why) => {
            if let Some(left_out) = link_log::admit() {
                info!(link = link.0, worker = handshake.name, %why, left_out, "link refused");
            }
            return send_goodbye(&sender, why);
        }
    };
    let (resume, unread, bytes) = attached;
    let new_link = NewLink {
        link,
        sender: sender.clone(),
        role: handshake.role,
        session: handshake.session,
        name: handshake.name,
        identity,
        rights: rights.borrow_and_update().clone(),
        resume,
    };
    if events.send(OwnerEvent::LinkUp(new_link)).await.is_err() {
        return send_goodbye(&sender, stopped());
    }
    let why = read(link, (unread, bytes), &sender, (&mut receiver, &mut rights), &events).await;
    debug!(link = link.0, %why, "link ended");
    let _stopping = events.send(OwnerEvent::LinkDown { link }).await;
}

/// The first message has to be `Attach`; the rest of its frame is returned unread.
async fn attach(receiver: &mut LinkReceiver) -> Result<(Tokens, Messages, usize), String> {
    let body = receiver.recv().await.map_err(|end| end.to_string())?;
    let bytes = body.len();
    let mut messages = Messages::new(body);
    match messages.next() {
        Some(Ok((tag::ATTACH, body))) => {
            use longshore_protocol::Decode;
            let attach = Attach::decode(&mut Reader::new(body))
                .map_err(|error| format!("attach: {error}"))?;
            Ok((attach.resume, messages, bytes))
        }
        Some(Ok((tag, _))) => {
            Err(format!("the first message of a work link has tag {}, not {tag}", tag::ATTACH))
        }
        Some(Err(error)) => Err(error.to_string()),
        None => Err("the first frame is empty".to_owned()),
    }
}

/// Reads until the link ends; returns the reason.
async fn read(
    link: LinkId,
    first: (Messages, usize),
    sender: &LinkSender,
    (receiver, rights): (&mut LinkReceiver, &mut watch::Receiver<Arc<Rights>>),
    events: &EventSender,
) -> String {
    let turns = Arc::new(Semaphore::new(PARTS_WAITING_MAX));
    let mut next = first;
    loop {
        let (mut frame, frame_bytes) = next;
        let mut part = FramePart::default();
        while part.take(&mut frame) {
            // It is never closed.
            let Ok(turn) = turns.clone().acquire_owned().await else { return stopped() };
            // Reserve before decoding: decoded messages may take many times their bytes.
            let Ok(budget) = events.budget(part.bytes).await else { return stopped() };
            let (mut messages, mut fault) = (Vec::with_capacity(part.messages.len()), None);
            for message in part.messages.drain(..) {
                let decoded = message
                    .and_then(|(tag, body)| decode(tag, unpinned(tag, body, frame_bytes), sender));
                match decoded {
                    Ok(message) => messages.extend(message),
                    Err(error) => {
                        fault = Some(error);
                        break;
                    }
                }
            }
            // Messages before the malformed one in the frame are valid and count.
            if !messages.is_empty()
                && events
                    .send(OwnerEvent::Messages { link, messages, _budget: budget, _turn: turn })
                    .await
                    .is_err()
            {
                return stopped();
            }
            if let Some(error) = fault {
                send_goodbye(sender, format!("malformed message: {error}"));
                return error.to_string();
            }
        }
        // Release the frame before waiting: the link may be silent for long.
        drop(frame);
        let received = loop {
            tokio::select! {
                biased;
                // First: also a link that never pauses gains its rights.
                Ok(()) = rights.changed() => {
                    let rights = rights.borrow_and_update().clone();
                    if events.send(OwnerEvent::Rights { link, rights }).await.is_err() {
                        return stopped();
                    }
                }
                received = receiver.recv() => break received,
            }
        };
        next = match received {
            Ok(body) => {
                let bytes = body.len();
                (Messages::new(body), bytes)
            }
            Err(LinkEnd::FrameTooLong { length, limit }) => {
                let why = format!("frame of {length} bytes is over the limit of {limit} bytes");
                send_goodbye(sender, why.clone());
                return why;
            }
            Err(end) => return end.to_string(),
        };
    }
}

fn stopped() -> String {
    "the publisher has stopped".to_owned()
}

/// Messages that are decoded together.
#[derive(Default)]
struct FramePart {
    messages: Vec<Result<(u8, Bytes), WireError>>,
    bytes: usize,
}

impl FramePart {
    /// Takes the next messages of the frame; false if there are none.
    fn take(&mut self, frame: &mut Messages) -> bool {
        self.messages.clear();
        self.bytes = 0;
        let mut weight = 0;
        while weight < PART_WEIGHT_MAX && self.bytes < PART_BYTES {
            let Some(message) = frame.next() else { break };
            self.bytes += message.as_ref().map_or(0, |(_, body)| body.len());
            weight += match &message {
                Ok((tag::REQUEST | tag::SUBSCRIBE, _)) => SLOW_MESSAGE_WEIGHT,
                _ => 1,
            };
            self.messages.push(message);
        }
        !self.messages.is_empty()
    }
}

/// Copies a body that would pin its frame in memory. The payload cache retains batches for long,
/// and a slice retains its whole frame. So a body of less than three quarters of the frame is
/// copied, unless the cache copies it anyway.
fn unpinned(tag: u8, body: Bytes, frame_bytes: usize) -> Bytes {
    let copied = tag == tag::ENQUEUE && body.len() >= CACHE_COPY_BYTES_MAX;
    if copied && body.len() < frame_bytes / 4 * 3 { Bytes::copy_from_slice(&body) } else { body }
}

/// Decodes one message. A malformed batch or request, or a message of a later version, is answered
/// here, and the link continues.
fn decode(tag: u8, body: Bytes, sender: &LinkSender) -> Result<Option<ToPublisher>, WireError> {
    if tag == HEARTBEAT {
        return Ok(None);
    }
    let error = match ToPublisher::decode(tag, body.clone()) {
        Ok(None) if tag::OF_CLIENTS.contains(&tag) => {
            debug!(tag, "message of a later version");
            let id = ToPublisher::number(&body).unwrap_or(0);
            answer(sender, &FromPublisher::Unsupported { tag, id });
            return Ok(None);
        }
        Ok(message) => return Ok(message),
        Err(error) => error,
    };
    let over_limit = matches!(error, WireError::OverLimit { .. });
    let refused = match (tag, ToPublisher::number(&body)) {
        (tag::ENQUEUE, Some(sequence)) => {
            let refusal = if over_limit { BatchRefusal::TooLarge } else { BatchRefusal::Malformed };
            FromPublisher::Enqueued(Enqueued { sequence, outcome: Err(refusal) })
        }
        (tag::REQUEST, Some(id)) => {
            let refusal = if over_limit { RequestError::OverLimit } else { RequestError::Unknown };
            FromPublisher::Answer { id, answer: Err(refusal) }
        }
        // An answer without outcomes: the leases run on, and the worker learns that none of its
        // settles counted.
        (tag::SETTLE, Some(sequence)) => {
            FromPublisher::Settled(Settled { sequence, outcomes: Runs::default() })
        }
        (tag::CHECKPOINT, _) => match refused_checkpoint(&body, over_limit) {
            Some(refused) => FromPublisher::Checkpointed(refused),
            None => return Err(error),
        },
        (tag::SUBSCRIBE, _) => match Reader::new(body.clone()).u32() {
            Ok(subscription) => {
                FromPublisher::SubscribeRefused { subscription, reason: error.to_string() }
            }
            Err(_) => return Err(error),
        },
        // Progress is best effort: a malformed report is ignored.
        (tag::PROGRESS, _) => {
            debug!(%error, "progress passed over");
            return Ok(None);
        }
        _ => return Err(error),
    };
    debug!(%error, tag, "message refused");
    answer(sender, &refused);
    Ok(None)
}

fn answer(sender: &LinkSender, answer: &FromPublisher) {
    let mut out = FrameWriter::new();
    answer.encode(&mut out);
    if sender.send(out.finish()).is_err() {
        debug!("the link ended before a refusal was sent");
    }
}

/// The answer to a checkpoint whose lease decodes and whose value does not. Number 0 has no
/// predecessor that could be missing.
fn refused_checkpoint(body: &Bytes, over_limit: bool) -> Option<Checkpointed> {
    use longshore_protocol::Decode;
    let mut r = Reader::new(body.clone());
    let token = Token::decode(&mut r).ok()?;
    let sequence = r.u64().ok()?;
    let outcome = match over_limit {
        true => CheckpointOutcome::TooLarge,
        false if sequence == 0 => CheckpointOutcome::Gap,
        false => return None,
    };
    Some(Checkpointed { token, sequence, outcome })
}

/// Sends the reason, then closes the link.
pub(crate) fn send_goodbye(sender: &LinkSender, reason: String) {
    let mut out = FrameWriter::new();
    FromPublisher::Goodbye { reason: reason.clone() }.encode(&mut out);
    let _gone_already = sender.send(out.finish());
    sender.close(reason);
}

/// Ends the owner's events, and sends the reason to the links whose [`OwnerEvent::LinkUp`] it has
/// not read: nobody else would close them.
pub(crate) async fn refuse_unread(events: &mut mpsc::Receiver<OwnerEvent>, reason: &str) {
    events.close();
    while let Some(event) = events.recv().await {
        if let OwnerEvent::LinkUp(new_link) = event {
            send_goodbye(&new_link.sender, reason.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use longshore_protocol::messages::work::Request;
    use longshore_protocol::{Handshake, LinkTiming, Role, SessionId};
    use longshore_transport::{
        Link, LinkOptions, Listener, ListenerOptions, Peer, ServerInfo, dial,
    };

    use super::*;

    fn listener() -> Listener {
        let info = ServerInfo { instance: [1; 16], epoch: 1, name: "p".into(), serves: |_| true };
        let any_port = "127.0.0.1:0".parse().unwrap();
        Listener::bind(any_port, info, ListenerOptions::default()).unwrap()
    }

    async fn dialled(listener: &Listener) -> Link {
        let handshake = Handshake::new(Role::Tool, SessionId([1; 16]), "tool", LinkTiming::WORK);
        dial(listener.local_address(), &handshake, &LinkOptions::default()).await.unwrap()
    }

    #[tokio::test]
    async fn link_that_attaches_to_a_stopping_publisher_receives_a_goodbye() {
        let mut listener = listener();
        for (attaches_first, expected) in [(true, "it is stopping".to_owned()), (false, stopped())]
        {
            let (client_sender, mut client_receiver) = dialled(&listener).await.split();
            let mut out = FrameWriter::new();
            ToPublisher::Attach(Attach::default()).encode(&mut out);
            client_sender.send(out.finish()).unwrap();
            let link = listener.accept().await;
            let Peer::Client(handshake) = link.peer().clone() else { panic!("{link:?}") };
            let (rights, audit) = (link.rights(), listener.audit_of(&link));
            let client = LinkClient { handshake, identity: None, rights, audit };
            let (sender, receiver) = link.split();
            let (events, mut unread) = EventSender::new();
            let serving = serve(LinkId(1), client, sender, receiver, events);
            let serving = tokio::spawn(serving);
            if attaches_first {
                while unread.is_empty() {
                    tokio::task::yield_now().await;
                }
            }
            refuse_unread(&mut unread, "it is stopping").await;
            let reason = async {
                loop {
                    let frame = Messages::new(client_receiver.recv().await.unwrap());
                    for (tag, body) in frame.map(Result::unwrap) {
                        let message = FromPublisher::decode(tag, body).unwrap();
                        if let Some(FromPublisher::Goodbye { reason }) = message {
                            return reason;
                        }
                    }
                }
            };
            let reason = tokio::time::timeout(ATTACH_WAIT, reason).await;
            assert_eq!(reason.expect("a goodbye"), expected);
            serving.await.unwrap();
        }
    }

    #[tokio::test]
    async fn few_messages_of_one_link_are_before_those_of_others() {
        let mut listener = listener();
        let (flood, _unread) = dialled(&listener).await.split();
        let mut out = FrameWriter::new();
        for id in 0..1_000 {
            ToPublisher::Request { id, request: Request::Status }.encode(&mut out);
        }
        flood.send(out.finish()).unwrap();

        let (sender, mut receiver) = listener.accept().await.split();
        let (events, mut waiting) = EventSender::new();
        let mut rights = watch::channel(Arc::new(Rights::everything())).1;
        let first = (Messages::new(Bytes::new()), 0);
        let link = (&mut receiver, &mut rights);
        let mut reading = pin!(read(LinkId(1), first, &sender, link, &events));
        for _ in 0..3 {
            // It reads the flood as far as it may.
            while waiting.len() < PARTS_WAITING_MAX {
                let some = tokio::time::timeout(Duration::from_millis(20), &mut reading).await;
                assert!(some.is_err(), "{some:?}");
            }
            let some = tokio::time::timeout(Duration::from_millis(50), &mut reading).await;
            assert!(some.is_err() && waiting.len() == PARTS_WAITING_MAX, "{}", waiting.len());
            let Some(OwnerEvent::Messages { messages, .. }) = waiting.recv().await else {
                panic!("no messages")
            };
            assert_eq!(messages.len(), PART_WEIGHT_MAX / SLOW_MESSAGE_WEIGHT);
        }
    }
}
