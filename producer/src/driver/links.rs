//! The task of one link: dials, attaches, and reads until the link ends.

use std::sync::Arc;

use longshore_protocol::messages::work::FromPublisher;
use longshore_protocol::{Messages, PublisherId, PublisherInfo, Role};
use longshore_transport::{LinkReceiver, SlowDisk};
use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::attach::open;
use crate::core::LinkNumber;

impl Driver {
    /// Runs one link until it ends, and reports that to the state machine.
    pub(super) async fn run_link(
        self: Arc<Driver>,
        info: PublisherInfo,
        link: LinkNumber,
        stop: CancellationToken,
    ) {
        let (options, session) = (&self.options, self.session);
        let publisher = info.id;
        let opening = open(&info, Role::Producer, session, &options.name, &options.link);
        let opened = tokio::select! {
            () = stop.cancelled() => return,
            opened = opening => opened,
        };
        let (sender, mut receiver, attached) = match opened {
            Ok(opened) => opened,
            Err(why) => {
                tracing::debug!(publisher = %publisher, %why, "no link");
                return self.lost(publisher, link, why);
            }
        };
        if !self.attached(publisher, link, sender.clone(), &attached) {
            return;
        }
        let why = tokio::select! {
            () = stop.cancelled() => {
                sender.close("done");
                return;
            }
            why = self.read_link(publisher, link, &mut receiver) => why,
        };
        tracing::debug!(publisher = %publisher, %why, "link ended");
        sender.close("unusable");
        self.lost(publisher, link, why);
    }

    /// Passes the publisher's answers to the state machine, a frame at a time. Returns the reason
    /// of the link's end.
    async fn read_link(
        self: &Arc<Driver>,
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
            if let Some(age) = disk.on_frame(&body) {
                tracing::warn!(
                    publisher = %publisher.prefix(), ?age,
                    "the publisher's disk is slow: it acknowledges nothing meanwhile"
                );
            }
            let handled = self.step(|state, now| {
                for message in Messages::new(body) {
                    let (tag, body) = message?;
                    match FromPublisher::decode(tag, body)? {
                        Some(FromPublisher::Enqueued(answer)) => {
                            state.core.answered(now, publisher, link, answer);
                        }
                        Some(FromPublisher::Goodbye { reason }) => {
                            state.core.goodbye(now, publisher, link);
                            goodbye = Some(reason);
                        }
                        _ => {}
                    }
                }
                Ok::<(), longshore_protocol::WireError>(())
            });
            if let Err(error) = handled {
                return format!("its message does not decode: {error}");
            }
        }
    }
}
