//! Reads queues and acts on them, at every publisher that could have them. Every result names the
//! publishers that answered, and those that did not, with the reason.
//!
//! | Module | Content |
//! |---|---|
//! | [`client`], [`options`], [`answers`], [`job_locator`] | the client, its read-only requests, and its results |
//! | [`actions`], [`queue_control`], [`dead_letters`], [`schedules`], [`workers`] | changes |
//! | [`job_pages`], [`feed`], [`wait`] | listings, changes, and the ends of jobs |
//! | [`requester`], [`tool_link`], [`retry`] | sends a request to a publisher, over reconnects |

mod actions;
mod answers;
mod client;
mod dead_letters;
mod feed;
mod job_locator;
mod job_pages;
mod options;
mod queue_control;
mod requester;
mod retry;
mod schedules;
mod tool_link;
mod wait;
mod workers;

pub use actions::{ActionOutcome, ActionResult, ActionResults};
pub use answers::{
    FoundJob, JobLookupError, MissingPublisher, PublisherAnswer, PublisherAnswers, QueuesError,
};
pub use client::Queues;
pub use dead_letters::{ClusterDeadGroup, ClusterDeadGroups, ReplaceError};
pub use feed::{Feed, FeedFrom, FeedItem, FeedLoss, FeedPositions, FeedUpdate};
pub use job_locator::{JobLocator, JobLocatorError};
pub use job_pages::{JobPage, JobPages};
pub use options::QueuesBuilder;
pub(crate) use requester::{PatientError, PatientRequest, Target};
pub(crate) use retry::deadline_after;
pub use schedules::ScheduleError;
pub(crate) use wait::output;
pub use wait::{JobEnd, WaitError};
