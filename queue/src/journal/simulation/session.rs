//! One client of the publisher: its requests, its unanswered messages, and its leases.

use std::collections::BTreeMap;

use bytes::Bytes;
use longshore_protocol::messages::work::SealedBatch;
use longshore_protocol::{JobId, JobState, LinkId, Role, SessionId, Token};

use super::tool_requests::ToolRequest;

/// A client's process, over all its links.
#[derive(Clone)]
pub(super) struct ClientSession {
    pub(super) id: SessionId,
    pub(super) role: Role,
    pub(super) link: Option<LinkId>,
    pub(super) next_batch: u64,
    /// Sent and not answered, by number.
    pub(super) batches: BTreeMap<u64, (SealedBatch, Vec<JobId>)>,
    pub(super) next_settle: u64,
    pub(super) settles: BTreeMap<u64, (Bytes, Vec<Settle>)>,
    /// Settles up to this number were sent over an older link, too.
    pub(super) resent: u64,
    /// Leases, with the number of their checkpoints.
    pub(super) leases: BTreeMap<Token, (JobId, u64)>,
    /// A tool's unanswered requests, by number.
    pub(super) requests: BTreeMap<u64, ToolRequest>,
    /// Credits granted over its present link that were neither used nor returned, by subscription.
    pub(super) credits: BTreeMap<u32, u64>,
    /// A lower bound of the next settle's number: one more than the last accepted one.
    pub(super) settled: u64,
    /// The publisher's answer to the link: the numbers of the next batches.
    pub(super) attached: Option<(u64, u64)>,
}

/// One settle of a batch.
#[derive(Clone)]
pub(super) struct Settle {
    pub(super) token: Token,
    pub(super) job: JobId,
    /// The final state of its job, if it ends it.
    pub(super) end: Option<JobState>,
    /// The number of its attempt's checkpoints.
    pub(super) checkpoints: u64,
    /// Its result is too large for a full disk.
    pub(super) is_large: bool,
}

impl ClientSession {
    pub(super) fn new(number: u64, role: Role) -> ClientSession {
        let mut id = [0; 16];
        id[8..].copy_from_slice(&number.to_be_bytes());
        ClientSession {
            id: SessionId(id),
            role,
            link: None,
            next_batch: 1,
            batches: BTreeMap::new(),
            next_settle: 1,
            settles: BTreeMap::new(),
            resent: 0,
            leases: BTreeMap::new(),
            requests: BTreeMap::new(),
            credits: BTreeMap::new(),
            settled: 1,
            attached: None,
        }
    }

    /// Checks the publisher's numbers: everything answered is covered, and nothing that was never
    /// sent.
    pub(super) fn check_attached(&mut self) {
        let Some((batch, settle)) = self.attached.take() else { return };
        let oldest = self.batches.keys().next().copied().unwrap_or(self.next_batch);
        assert!((oldest..=self.next_batch).contains(&batch), "batch {batch}, {oldest} is next");
        // Settles refused for lack of room left no trace.
        let (least, next) = (self.settled, self.next_settle);
        assert!((least..=next).contains(&settle), "settle {settle}, {least} is next");
    }
}
