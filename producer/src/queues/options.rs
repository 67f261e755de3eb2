//! Options of [`Queues`](super::Queues).

use std::time::Duration;

use longshore_transport::LinkOptions;

/// Options of [`Queues`](crate::Queues).
#[derive(Clone, Debug)]
pub struct QueuesOptions {
    /// The name that operators see; 1 to 128 bytes. With an invalid name nothing is sent, and every
    /// call fails with [`QueuesError::Name`](crate::QueuesError::Name). A feed has no error: it
    /// reports the invalid name for each publisher that was named, and nothing else. The default is
    /// `tool-` and the process id.
    pub name: String,
    /// The time limit of one request to a publisher, over reconnects. 15 s by default.
    pub request_timeout: Duration,
    /// Options of links to publishers.
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
