//! Refusals on one link, for the audit log.

use std::net::SocketAddr;
use std::sync::Arc;

use longshore_access::{Action, Identity};

use super::{AuditClient, AuditLog};

/// Records what the client of one link is refused.
#[derive(Clone, Debug)]
pub struct LinkAudit {
    pub(crate) audit: AuditLog,
    /// The server's name.
    pub(crate) server: String,
    pub(crate) identity: Option<Arc<Identity>>,
    pub(crate) address: SocketAddr,
}

impl LinkAudit {
    /// Records, at a bounded rate, a refused action: its target, and what the client asked for.
    pub fn refuse(&self, action: Action, what: impl FnOnce() -> (String, String)) {
        let identity = self.identity.as_deref();
        let client = AuditClient { server: &self.server, identity, address: self.address };
        self.audit.refuse(client, action.name(), what);
    }
}
