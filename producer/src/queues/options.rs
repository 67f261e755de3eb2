//! Options of [`Queues`](super::Queues).

use std::time::Duration;

use longshore_transport::LinkOptions;

/// Options of [`Queues`](crate::Queues).
#[derive(Clone, Debug)]
pub struct QueuesOptions {
    /// What operators see; 1 to 128 bytes. With another nothing is asked, and every call has
    /// [`QueuesError::Name`](crate::QueuesError::Name) for an answer; a feed, which has no error, says it of each publisher
    /// that was named, and is told of no other. The default is `tool-` and the process's id.
    pub name: String,
    /// How long a publisher may take for one answer, over reconnects. 15 s by default.
    pub request_timeout: Duration,
    /// How links to publishers are made.
    pub link: LinkOptions,
}

impl Default for QueuesOptions {
    fn default() -> QueuesOptions {
        QueuesOptions {
            name: format!("tool-{}", std::process::id()),
            request_timeout: Duration::from_secs(15),
            link: LinkOptions::default(),
        }
    }
}
