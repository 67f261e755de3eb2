//! One client of the publisher: what it has sent, what it waits for, and what it holds.

use std::collections::BTreeMap;

use bytes::Bytes;
use longshore_protocol::messages::work::SealedBatch;
use longshore_protocol::{JobId, JobState, LinkId, Role, SessionId, Token};

use super::tool_requests::ToolRequest;

/// A client's process, over all its links.
#[derive(Clone)]
pub(super) struct Session {
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
    /// Leases, with how many checkpoints were left of each.
    pub(super) leases: BTreeMap<Token, (JobId, u64)>,
    /// Of a tool: what it has asked for, by its numbers.
    pub(super) requests: BTreeMap<u64, ToolRequest>,
    /// Credits that it has given over its present link, and that were neither used nor returned, by
    /// subscription.
    pub(super) credits: BTreeMap<u32, u64>,
    /// The number that the next settle has at least: one more than the last that counted.
    pub(super) settled: u64,
    /// What the publisher said when the link was up: the numbers of the next batches.
    pub(super) attached: Option<(u64, u64)>,
}

/// One settle of a batch.
#[derive(Clone)]
pub(super) struct Settle {
    pub(super) token: Token,
    pub(super) job: JobId,
    /// The state that it ends its job in, if it does.
    pub(super) end: Option<JobState>,
    /// How many checkpoints its attempt had left.
    pub(super) checkpoints: u64,
    /// What it says is more than a disk without room takes.
    pub(super) is_large: bool,
}

impl Session {
    pub(super) fn new(number: u64, role: Role) -> Session {
        let mut id = [0; 16];
        id[8..].copy_from_slice(&number.to_be_bytes());
        Session {
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

    /// What the publisher says of the numbers: all that it has answered, and nothing that was never
    /// sent.
    pub(super) fn check_attached(&mut self) {
        let Some((batch, settle)) = self.attached.take() else { return };
        let oldest = self.batches.keys().next().copied().unwrap_or(self.next_batch);
        assert!((oldest..=self.next_batch).contains(&batch), "batch {batch}, {oldest} is next");
        // Those that there was no room for have left no trace.
        let (least, next) = (self.settled, self.next_settle);
        assert!((least..=next).contains(&settle), "settle {settle}, {least} is next");
    }
}
