//! What a client of the server loop may do, and the log of what it was refused.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_access::{Action, Binding, Identity, Rights, SERVER_PATH};
use longshore_protocol::{Glob, PathSet, PublicationKind, PublisherId, PublisherInfo};
use longshore_transport::{AuditClient, AuditLog, AuditedAct, LogLimit, NotAudited};

use crate::directory::{Scope, steps_of};

/// Most log lines about refused accesses in each period.
const LINES_MAX: u32 = 10;
const LINES_PERIOD: Duration = Duration::from_secs(10);

/// What a client may do. Its rights are compared once, so that a client that may do everything
/// costs a branch.
#[derive(Clone, Debug)]
pub(super) struct ClientAccess {
    pub(super) identity: Option<Arc<Identity>>,
    address: SocketAddr,
    rights: Arc<Rights>,
    /// What it may see.
    pub(super) scope: Scope,
    /// It may publish every path.
    publishes_everything: bool,
    /// The steps for one path that it publishes.
    publish_cost: usize,
}

impl ClientAccess {
    pub(super) fn new(
        identity: Option<Arc<Identity>>,
        address: SocketAddr,
        rights: Arc<Rights>,
    ) -> ClientAccess {
        let all = [Action::Serve, Action::Publish].map(|action| rights.paths(action));
        ClientAccess {
            identity,
            address,
            scope: Scope::of(&rights),
            publishes_everything: all.iter().all(|paths| paths.is_everything()),
            publish_cost: all.iter().map(|paths| steps_of(paths)).sum(),
            rights,
        }
    }

    /// A client of a replica without a policy.
    #[cfg(test)]
    pub(super) fn everything() -> ClientAccess {
        let address = SocketAddr::from(([127, 0, 0, 1], 4000));
        ClientAccess::new(None, address, Arc::new(Rights::everything()))
    }

    /// The same client with other rights.
    pub(super) fn with_rights(&self, rights: Arc<Rights>) -> ClientAccess {
        ClientAccess::new(self.identity.clone(), self.address, rights)
    }

    pub(super) fn rights(&self) -> &Arc<Rights> {
        &self.rights
    }

    /// Whether it may do this to the replica as a whole.
    pub(super) fn may_at_server(&self, action: Action) -> bool {
        self.rights.may_at_server(action)
    }

    /// Whether it may publish anything.
    pub(super) fn publishes_anything(&self) -> bool {
        !self.rights.paths(Action::Serve).is_empty()
            || !self.rights.paths(Action::Publish).is_empty()
    }

    /// What it may publish as the publisher with this id.
    pub(super) fn publishing(&self, publisher: PublisherId) -> Publishing<'_> {
        Publishing { access: self, binding: self.rights.binding(publisher) }
    }

    /// What it sees of publishers that no path leads to: everything, if it operates the replica.
    pub(super) fn scope_of_publishers(&self) -> Scope {
        let operates =
            || self.may_at_server(Action::Inspect) || self.may_at_server(Action::Operate);
        if self.scope.is_everything() || operates() { Scope::default() } else { self.scope.clone() }
    }

    /// Who it is, for people.
    pub(super) fn who(&self) -> String {
        match &self.identity {
            Some(identity) => format!("`{identity}`"),
            None => String::from("a client without an identity"),
        }
    }

    /// Its identity for the log; empty if it has none.
    fn identity(&self) -> String {
        self.identity.as_deref().map_or_else(String::new, Identity::to_string)
    }

    /// Why an action is refused, for people.
    pub(super) fn forbidden(&self, action: Action, path: impl fmt::Display) -> String {
        format!("Forbidden: the policy does not allow {} to {action} {path}", self.who())
    }

    /// The same for an action that concerns the replica as a whole.
    pub(super) fn forbidden_at_server(&self, action: Action) -> String {
        self.forbidden(action, SERVER_PATH)
    }
}

/// What a client may publish as a certain publisher.
#[derive(Clone, Copy, Debug)]
pub(super) struct Publishing<'a> {
    access: &'a ClientAccess,
    pub(super) binding: Binding,
}

impl Publishing<'_> {
    /// True if every change is allowed.
    pub(super) fn is_everything(self) -> bool {
        self.access.publishes_everything && self.binding == Binding::Own
    }

    /// Further steps for each path that is compared.
    pub(super) fn cost(self) -> usize {
        self.access.publish_cost
    }

    /// How many paths are compared in `budget` steps: at least one.
    pub(super) fn paths_in(self, budget: usize) -> usize {
        (budget / (1 + self.access.publish_cost)).max(1)
    }

    /// The right that a publication needs.
    pub(super) fn action(kind: PublicationKind) -> Action {
        match kind {
            PublicationKind::Queue => Action::Serve,
            PublicationKind::Value => Action::Publish,
        }
    }

    /// True if it may hold this path, or a default there: a default needs the right on everything
    /// at and below its path.
    pub(super) fn allows(self, kind: PublicationKind, path: &str, default: bool) -> bool {
        let bound = kind == PublicationKind::Value || self.binding == Binding::Own;
        let paths = self.access.rights.paths(Publishing::action(kind));
        bound && if default { covers_below(paths, path) } else { paths.contains_str(path) }
    }

    /// Why it may not.
    pub(super) fn refusal(self, kind: PublicationKind, path: &str, default: bool) -> String {
        let who = self.access.who();
        if kind == PublicationKind::Queue && self.binding != Binding::Own {
            return format!(
                "Forbidden: the policy does not name this publisher in [publishers], \
                 so {who} may hold no queues as it"
            );
        }
        let action = Publishing::action(kind);
        match default {
            true => format!(
                "Forbidden: the policy does not allow {who} to {action} everything below {path}, \
                 as a default does"
            ),
            false => self.access.forbidden(action, path),
        }
    }
}

/// True if everything at and below a path is in the set.
fn covers_below(paths: &PathSet, path: &str) -> bool {
    if paths.is_everything() {
        return true;
    }
    // A path that is almost as long as a glob may be has no glob for what is below it.
    let below = Glob::new(&format!("{}/**", path.trim_end_matches('/')));
    below.is_ok_and(|below| paths.covers(&below))
}

/// Logs refused accesses, at a bounded rate.
#[derive(Debug)]
pub(super) struct AccessLog {
    limit: LogLimit,
    /// The replica's name.
    server: String,
    audit: AuditLog,
}

impl AccessLog {
    pub(super) fn new() -> AccessLog {
        AccessLog::beside(AuditLog::default(), String::new())
    }

    /// Beside the audit log of a replica with this name.
    pub(super) fn beside(audit: AuditLog, server: String) -> AccessLog {
        AccessLog { limit: LogLimit::new(LINES_MAX, LINES_PERIOD), server, audit }
    }

    fn client<'a>(&'a self, access: &'a ClientAccess) -> AuditClient<'a> {
        let identity = access.identity.as_deref();
        AuditClient { server: &self.server, identity, address: access.address }
    }

    /// A tool forgets a publisher; an error if it must not.
    pub(super) fn forget_publisher(
        &self,
        access: &ClientAccess,
        publisher: PublisherId,
    ) -> Result<(), NotAudited> {
        let targets = vec![publisher.to_string()];
        let act = || AuditedAct { action: "forget publisher", targets, detail: String::new() };
        self.audit.allow(self.client(access), act)
    }

    /// A client has registered as a publisher. Also while the log is failing: no administrator does
    /// this.
    pub(super) fn announced(&self, access: &ClientAccess, publisher: &PublisherInfo) {
        self.audit.note(self.client(access), || AuditedAct {
            action: "announce",
            targets: vec![publisher.id.to_string()],
            detail: format!("{}, epoch {}", publisher.name, publisher.epoch.0),
        });
    }

    /// A client was refused an action on a path.
    pub(super) fn refused(
        &mut self,
        now: Instant,
        access: &ClientAccess,
        action: Action,
        path: impl fmt::Display,
    ) {
        let what = || (path.to_string(), "the policy does not allow it".to_owned());
        self.audit.refuse(self.client(access), action.name(), what);
        let Some(left_out) = self.limit.admit(now) else { return };
        tracing::warn!(
            identity = access.identity(), address = %access.address, %action, %path, left_out,
            "an access is refused"
        );
    }

    /// The same for an action that concerns the replica as a whole.
    pub(super) fn refused_at_server(
        &mut self,
        now: Instant,
        access: &ClientAccess,
        action: Action,
    ) {
        self.refused(now, access, action, SERVER_PATH);
    }

    /// A client may not register as a publisher.
    pub(super) fn announcement_refused(
        &mut self,
        now: Instant,
        access: &ClientAccess,
        publisher: PublisherId,
        why: &str,
    ) {
        let what = || (publisher.to_string(), why.to_owned());
        self.audit.refuse(self.client(access), "announce", what);
        let Some(left_out) = self.limit.admit(now) else { return };
        tracing::warn!(
            identity = access.identity(), address = %access.address, %publisher, left_out,
            "a publisher is refused: {why}"
        );
    }
}
