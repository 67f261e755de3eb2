//! Dials a publisher and attaches the link.

use longshore_protocol::messages::work::{Attach, Attached, FromPublisher, ToPublisher};
use longshore_protocol::{FrameWriter, Handshake, Messages, PublisherInfo, Role, SessionId};
use longshore_transport::{LastAddress, LinkOptions, LinkReceiver, LinkSender, dial_publisher};
use tokio::time::timeout;

/// Dials the publisher and attaches. An error names the failure of each address.
pub(crate) async fn open(
    publisher: &PublisherInfo,
    role: Role,
    session: SessionId,
    name: &str,
    options: &LinkOptions,
) -> Result<(LinkSender, LinkReceiver, Attached), String> {
    let handshake = Handshake::new(role, session, name, options.timing);
    let dialled = dial_publisher(publisher, &LastAddress::default(), &handshake, options).await;
    let (sender, mut receiver) = dialled.map_err(|error| error.to_string())?.split();
    let limit = options.handshake_timeout;
    match timeout(limit, attach(&sender, &mut receiver)).await {
        Ok(attached) => Ok((sender, receiver, attached?)),
        Err(_) => Err(format!("the publisher did not attach the link within {limit:?}")),
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
