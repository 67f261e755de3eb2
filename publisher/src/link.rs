//! One link: reads frames, decodes their messages, hands them to the owner. Decides nothing.

use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::messages::HEARTBEAT;
use longshore_protocol::messages::work::{
    Attach, Checkpointed, Enqueued, FromPublisher, RequestError, Settled, ToPublisher, Tokens, tag,
};
use longshore_protocol::{
    BatchRefusal, CheckpointOutcome, FrameWriter, Handshake, LinkId, Messages, Reader, Runs, Token,
    WireError,
};
use longshore_queue::CACHE_COPY_BYTES_MAX;
use longshore_transport::{LinkEnd, LinkReceiver, LinkSender};
use tracing::{debug, info};

use crate::input::{Input, Inputs, Up};

/// The longest that a link may take to say `Attach`, as long as a handshake: until then it holds a
/// place and does nothing.
const ATTACH_WAIT: Duration = Duration::from_secs(10);

/// Messages of a frame are decoded in parts: one ends with so many bytes,
const PART_BYTES: usize = 32 * 1024;
/// or so many messages.
const PART_MESSAGES_MAX: usize = 256;

/// Serves a link until it ends.
pub(crate) async fn serve(
    link: LinkId,
    handshake: Handshake,
    sender: LinkSender,
    mut receiver: LinkReceiver,
    inputs: Inputs,
) {
    let attached = tokio::time::timeout(ATTACH_WAIT, attach(&mut receiver)).await;
    let attached = attached.unwrap_or_else(|_| Err(format!("no Attach within {ATTACH_WAIT:?}")));
    let attached = match attached {
        Ok(attached) => attached,
        Err(why) => {
            info!(link = link.0, worker = handshake.name, %why, "link refused");
            return say_goodbye(&sender, why);
        }
    };
    let (resume, rest, bytes) = attached;
    let up = Up {
        link,
        sender: sender.clone(),
        role: handshake.role,
        session: handshake.session,
        name: handshake.name,
        resume,
    };
    if inputs.put(Input::Up(up)).await.is_err() {
        return;
    }
    let why = read(link, (rest, bytes), &sender, &mut receiver, &inputs).await;
    debug!(link = link.0, %why, "link ended");
    let _stopping = inputs.put(Input::Down { link }).await;
}

/// The first message has to be `Attach`; what follows it in its frame is kept.
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

/// Reads until the link ends; says why it did.
async fn read(
    link: LinkId,
    first: (Messages, usize),
    sender: &LinkSender,
    receiver: &mut LinkReceiver,
    inputs: &Inputs,
) -> String {
    let mut next = first;
    loop {
        let (mut frame, frame_bytes) = next;
        let mut part = Part::default();
        while part.take(&mut frame) {
            // Before anything is decoded: it may take many times its bytes.
            let Ok(room) = inputs.room(part.bytes).await else { return stopped() };
            let (mut messages, mut fault) = (Vec::with_capacity(part.messages.len()), None);
            for message in part.messages.drain(..) {
                let decoded = message
                    .and_then(|(tag, body)| decode(tag, kept(tag, body, frame_bytes), sender));
                match decoded {
                    Ok(message) => messages.extend(message),
                    Err(error) => {
                        fault = Some(error);
                        break;
                    }
                }
            }
            // What came before a fault in the frame is good, and counts.
            if !messages.is_empty()
                && inputs.put(Input::Messages { link, messages, _room: room }).await.is_err()
            {
                return stopped();
            }
            if let Some(error) = fault {
                say_goodbye(sender, format!("malformed message: {error}"));
                return error.to_string();
            }
        }
        // It is held no longer: the link may be silent for long.
        drop(frame);
        next = match receiver.recv().await {
            Ok(body) => {
                let bytes = body.len();
                (Messages::new(body), bytes)
            }
            Err(LinkEnd::FrameTooLong { length, limit }) => {
                let why = format!("frame of {length} bytes is over the limit of {limit} bytes");
                say_goodbye(sender, why.clone());
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
struct Part {
    messages: Vec<Result<(u8, Bytes), WireError>>,
    bytes: usize,
}

impl Part {
    /// Takes the next messages of the frame; false if there are none.
    fn take(&mut self, frame: &mut Messages) -> bool {
        self.messages.clear();
        self.bytes = 0;
        while self.messages.len() < PART_MESSAGES_MAX && self.bytes < PART_BYTES {
            let Some(message) = frame.next() else { break };
            self.bytes += message.as_ref().map_or(0, |(_, body)| body.len());
            self.messages.push(message);
        }
        !self.messages.is_empty()
    }
}

/// The body as it may be kept: the payload cache holds batches for long, and a slice holds its
/// whole frame. So one that is less than three quarters of it is copied, unless the cache does that
/// anyway.
fn kept(tag: u8, body: Bytes, frame_bytes: usize) -> Bytes {
    let copied = tag == tag::ENQUEUE && body.len() >= CACHE_COPY_BYTES_MAX;
    if copied && body.len() < frame_bytes / 4 * 3 { Bytes::copy_from_slice(&body) } else { body }
}

/// Decodes one message. A bad batch or request and a message of a later version are answered here,
/// and the link goes on.
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
        // Without outcomes: the leases run on, and the worker knows that none of its settles
        // counted.
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
        // Soft: it is as if it had not been said.
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

/// The answer to a checkpoint that does not decode though its lease does. One with number 0 has
/// none before it that could have arrived.
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

/// Tells the other side why, then closes.
pub(crate) fn say_goodbye(sender: &LinkSender, reason: String) {
    let mut out = FrameWriter::new();
    FromPublisher::Goodbye { reason: reason.clone() }.encode(&mut out);
    let _gone_already = sender.send(out.finish());
    sender.close(reason);
}
