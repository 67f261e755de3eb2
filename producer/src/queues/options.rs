//! Options of [`Queues`](super::Queues).

use std::time::Duration;

use longshore_transport::LinkOptions;

/// The options of a [`Queues`](crate::Queues): `Queues::builder().name("dashboard").connect(…)`.
#[derive(Clone, Debug)]
#[must_use = "a builder creates a client with `connect` or `to_publishers`"]
pub struct QueuesBuilder {
    pub(super) name: String,
    pub(super) request_timeout: Duration,
    pub(super) link: LinkOptions,
}

impl Default for QueuesBuilder {
    fn default() -> QueuesBuilder {
        QueuesBuilder {
            name: format!("tool-{}", std::process::id()),
            request_timeout: Duration::from_secs(15),
            link: LinkOptions::default(),
        }
    }
}

impl QueuesBuilder {
    /// Sets the name that operators see; 1 to 128 bytes. With an invalid name nothing is sent, and
    /// every call fails with [`QueuesError::Name`](crate::QueuesError::Name). A feed has no error:
    /// it reports the invalid name for each publisher that was named, and nothing else. The default
    /// is `tool-` and the process id.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the time limit of one request to a publisher, over reconnects. 15 s by default.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets the options of links to publishers.
    pub fn link(mut self, link: LinkOptions) -> Self {
        self.link = link;
        self
    }
}
