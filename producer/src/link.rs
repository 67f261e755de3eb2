//! One link to a publisher: dialled, attached, read until it ends.

use std::sync::Arc;

use longshore_protocol::messages::work::{Attach, Attached, FromPublisher, ToPublisher};
use longshore_protocol::{Address, FrameWriter, Handshake, Messages, PublisherId, Role, SessionId};
use longshore_transport::{
    LastAddress, LinkOptions, LinkReceiver, LinkSender, SlowDisk, dial_publisher,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::core::LinkNumber;
use crate::shell::Shell;

/// Keeps one link until it ends, and tells the core.
pub(crate) async fn keep(
    shell: Arc<Shell>,
    publisher: PublisherId,
    link: LinkNumber,
    addresses: Vec<Address>,
    stop: CancellationToken,
) {
    let (options, session) = (&shell.options, shell.session);
    let opened = tokio::select! {
        () = stop.cancelled() => return,
        opened = open(publisher, &addresses, Role::Producer, session, &options.name, &options.link) => opened,
    };
    let (sender, mut receiver, attached) = match opened {
        Ok(opened) => opened,
        Err(why) => {
            tracing::debug!(publisher = %publisher, %why, "no link");
            return shell.lost(publisher, link, why);
        }
    };
    if !shell.attached(publisher, link, sender.clone(), &attached) {
        return;
    }
    let why = tokio::select! {
        () = stop.cancelled() => {
            sender.close("done");
            return;
        }
        why = read(&shell, publisher, link, &mut receiver) => why,
    };
    tracing::debug!(publisher = %publisher, %why, "the link has ended");
    sender.close("unusable");
    shell.lost(publisher, link, why);
}

/// Dials the publisher and attaches. An error names what is wrong with each address.
pub(crate) async fn open(
    publisher: PublisherId,
    addresses: &[Address],
    role: Role,
    session: SessionId,
    name: &str,
    options: &LinkOptions,
) -> Result<(LinkSender, LinkReceiver, Attached), String> {
    let handshake = Handshake::new(role, session, name, options.timing);
    let dialled =
        dial_publisher(publisher, addresses, &LastAddress::default(), &handshake, options).await;
    let (sender, mut receiver) = dialled.map_err(|error| error.to_string())?.split();
    let limit = options.handshake_timeout;
    match timeout(limit, attach(&sender, &mut receiver)).await {
        Ok(attached) => Ok((sender, receiver, attached?)),
        Err(_) => Err(format!("the publisher did not answer the attach within {limit:?}")),
    }
}

async fn attach(sender: &LinkSender, receiver: &mut LinkReceiver) -> Result<Attached, String> {
    let mut out = FrameWriter::new();
    ToPublisher::Attach(Attach::default()).encode(&mut out);
    sender.send(out.finish()).map_err(|error| error.to_string())?;
    loop {
        let body = receiver.recv().await.map_err(|end| end.to_string())?;
        for message in Messages::new(body) {
            let (tag, body) = message.map_err(|error| error.to_string())?;
            match FromPublisher::decode(tag, body).map_err(|error| error.to_string())? {
                Some(FromPublisher::Attached(attached)) => return Ok(attached),
                Some(FromPublisher::Goodbye { reason }) => return Err(reason),
                _ => {}
            }
        }
    }
}

/// Hands the publisher's answers to the core, a frame at a time; ends with the reason why the link
/// did.
async fn read(
    shell: &Arc<Shell>,
    publisher: PublisherId,
    link: LinkNumber,
    receiver: &mut LinkReceiver,
) -> String {
    let mut goodbye = None;
    let mut disk = SlowDisk::default();
    loop {
        let body = match receiver.recv().await {
            Ok(body) => body,
            Err(end) => return goodbye.unwrap_or_else(|| end.to_string()),
        };
        if let Some(age) = disk.heard(&body) {
            tracing::warn!(publisher = %publisher.prefix(), ?age, "the publisher's disk is slow: nothing is acknowledged meanwhile");
        }
        let told = shell.step(|inner, now| {
            for message in Messages::new(body) {
                let (tag, body) = message?;
                match FromPublisher::decode(tag, body)? {
                    Some(FromPublisher::Enqueued(answer)) => {
                        inner.core.answered(now, publisher, link, answer);
                    }
                    Some(FromPublisher::Goodbye { reason }) => {
                        inner.core.goodbye(now, publisher, link);
                        goodbye = Some(reason);
                    }
                    _ => {}
                }
            }
            Ok::<(), longshore_protocol::WireError>(())
        });
        if let Err(error) = told {
            return format!("its message does not decode: {error}");
        }
    }
}
