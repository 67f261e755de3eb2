//! The rights of a listener's open links. When rules change, or a certificate or token ends, every
//! link is checked again: one that has lost a right is cut at once, whatever it has queued, and the
//! others receive their new rights.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_access::{
    AccessControl, AccessRefusal, Client, Identity, Rights, RuleHistory, Shown,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::audit::AuditLog;
use crate::link_end::LinkEnd;
use crate::queue::Shared;

/// The longest wait for the end of a certificate or token: the wall clock may be set meanwhile.
const END_WAIT_MAX: Duration = Duration::from_secs(10);

/// The clients of a listener and their rights.
#[derive(Debug)]
pub(crate) struct Authorization {
    control: AccessControl,
    audit: AuditLog,
    /// The server's name.
    server: String,
    links: Mutex<Links>,
    /// A link has to be checked before the next time that was planned.
    wake: Notify,
    /// Until it runs: no change is missed.
    history: Mutex<Option<RuleHistory>>,
}

#[derive(Debug, Default)]
struct Links {
    open: HashMap<u64, OpenLink>,
    next: u64,
}

#[derive(Debug)]
struct OpenLink {
    client: Client,
    rights: watch::Sender<Arc<Rights>>,
    /// Set once the link has started.
    link: Weak<Shared>,
}

/// The entry of one link; dropping it removes the link.
#[derive(Debug)]
pub(crate) struct Registration {
    authorization: Arc<Authorization>,
    number: u64,
}

/// What a server knows of a link's client.
#[derive(Clone, Debug)]
pub(crate) struct LinkClient {
    pub(crate) identity: Option<Arc<Identity>>,
    pub(crate) rights: watch::Receiver<Arc<Rights>>,
}

impl Authorization {
    pub(crate) fn new(control: AccessControl, audit: AuditLog, server: String) -> Authorization {
        Authorization {
            history: Mutex::new(Some(control.history())),
            control,
            audit,
            server,
            links: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Admits a client, or refuses it.
    pub(crate) fn admit(
        self: &Arc<Self>,
        shown: &Shown<'_>,
    ) -> Result<(LinkClient, Registration), AccessRefusal> {
        let client = self.control.admit(shown, now_unix_ms())?;
        let (rights, received) = watch::channel(client.rights.clone());
        let of_link = LinkClient { identity: client.identity.clone(), rights: received };
        let mut links = self.links.lock();
        let number = links.next;
        links.next += 1;
        links.open.insert(number, OpenLink { client, rights, link: Weak::new() });
        Ok((of_link, Registration { authorization: self.clone(), number }))
    }

    /// Checks links whenever that is due, for as long as the listener listens.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut changes = self.control.changes();
        let history = self.history.lock().take();
        let mut history = history.unwrap_or_else(|| self.control.history());
        loop {
            let next_end = self.check_all(now_unix_ms());
            let at_end = async {
                match next_end {
                    Some(wait) => tokio::time::sleep(wait.min(END_WAIT_MAX)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changes.changed() => {}
                change = history.next() => {
                    match change {
                        Ok(change) => self.audit.rules_changed(&self.server, &change),
                        Err(missed) => {
                            let missed = format!("{missed} further changes");
                            self.audit.rules_changed(&self.server, &missed);
                        }
                    }
                }
                () = self.wake.notified() => {}
                () = at_end => {}
            }
        }
    }

    /// Checks every link; returns the time until the first certificate or token ends.
    fn check_all(&self, now_unix_ms: u64) -> Option<Duration> {
        let mut next_end = None;
        let mut cut = Vec::new();
        for open in self.links.lock().open.values_mut() {
            match open.check(&self.control, now_unix_ms) {
                Ok(Some(end)) => next_end = Some(next_end.map_or(end, |next: u64| next.min(end))),
                Ok(None) => {}
                Err(why) => cut.extend(open.link.upgrade().map(|link| (link, why))),
            }
        }
        // Ending a link wakes its tasks, which remove it.
        for (link, why) in cut {
            tracing::info!(peer = %link.peer_address, %why, "a link has lost its rights");
            link.end(LinkEnd::Local(why.into()));
        }
        next_end.map(|end| Duration::from_millis(end.saturating_sub(now_unix_ms)))
    }
}

impl OpenLink {
    /// When its certificate or token ends; an error if the link must end now.
    fn check(&mut self, control: &AccessControl, now_unix_ms: u64) -> Result<Option<u64>, String> {
        let rights = control.recheck(&self.client, now_unix_ms).map_err(|why| why.to_string())?;
        if !Arc::ptr_eq(&rights, &self.client.rights) {
            if !rights.keep(&self.client.rights) {
                return Err("the policy has taken rights from this client".to_owned());
            }
            if *rights != *self.client.rights {
                self.rights.send_replace(rights.clone());
            }
            self.client.rights = rights;
        }
        Ok(self.client.end_unix_ms())
    }
}

impl Registration {
    /// The link has started. Its rights may have changed since the client was admitted.
    pub(crate) fn started(&self, link: &Arc<Shared>) {
        let mut links = self.authorization.links.lock();
        if let Some(open) = links.open.get_mut(&self.number) {
            open.link = Arc::downgrade(link);
            let now = self.authorization.control.recheck(&open.client, now_unix_ms());
            let is_same = now.is_ok_and(|rights| Arc::ptr_eq(&rights, &open.client.rights));
            if !is_same || open.client.end_unix_ms().is_some() {
                self.authorization.wake.notify_one();
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.authorization.links.lock().open.remove(&self.number);
    }
}

fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
