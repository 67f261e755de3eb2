//! Announces: who may register as which publisher, and what it may still hold.

use std::sync::Arc;

use longshore_access::{Binding, Rights};
use longshore_protocol::PublisherInfo;
use longshore_protocol::limits::EPOCH_MAX;
use longshore_protocol::messages::resolver::{Announce, Announced, FromReplica, RequestRefusal};

use crate::directory::ConfirmProgress;
use crate::replica_link::now;
use crate::server::access::Publishing;
use crate::server::request::{Context, Progress, STRIDE, refused, written};

/// The removal of what a publisher holds and its client may not publish: of registrations of an
/// earlier link with more rights.
#[derive(Debug)]
pub(super) struct Revoking {
    /// The client's rights when it began.
    rights: Arc<Rights>,
    progress: ConfirmProgress,
    /// It is the link's first announce of the publisher.
    is_first: bool,
}

/// Runs the next slice of an announce.
pub(super) fn announce(
    context: &mut Context<'_>,
    announce: &Announce,
    revoking: &mut Option<Revoking>,
) -> Progress {
    let Announce { id, publisher, desired } = announce;
    if !context.writes {
        return refused(*id, RequestRefusal::NotAnnounced);
    }
    let access = context.access;
    let publishing = access.publishing(publisher.id);
    let known = context.directory.writer(context.client);
    let known = known.map(|slot| context.directory.publisher_at(slot));
    let mut is_first = known != Ok(publisher.id);
    if revoking.is_none() {
        if let Err((code, reason)) = may_announce(context, publisher) {
            return Progress::Done(Some(FromReplica::Refused { id: *id, code, reason }));
        }
        if !publishing.is_everything()
            && !context.directory.is_vetted(publisher.id, access.rights())
        {
            // It takes over at once, so that no earlier link writes any more. The digests to answer
            // are those of what is left.
            if let Err(code) = context.directory.announce(now(), context.client, publisher, &[]) {
                return refused(*id, code);
            }
            let (rights, progress) = (access.rights().clone(), ConfirmProgress::default());
            *revoking = Some(Revoking { rights, progress, is_first });
        }
    }
    if let Some(Revoking { progress, is_first: was_first, .. }) = revoking {
        is_first = *was_first;
        match revoke(context, publishing, progress) {
            Ok(true) => {}
            Ok(false) => return Progress::More(Some(written(*id, false, 0, Vec::new()))),
            Err(code) => return refused(*id, code),
        }
    }
    let digests = match context.directory.announce(now(), context.client, publisher, desired) {
        Ok(digests) => digests,
        Err(code) => return refused(*id, code),
    };
    let since_begin = revoking.as_ref().map_or(access.rights(), |revoking| &revoking.rights);
    let is_vetted = !publishing.is_everything() && Arc::ptr_eq(since_begin, access.rights());
    let vetted = is_vetted.then(|| access.rights().clone());
    context.directory.registered_by(context.client, access.identity.clone(), vetted);
    *context.registered_as = Some(publisher.id);
    if is_first {
        context.access_log.announced(access, publisher);
    }
    Progress::Done(Some(FromReplica::Announced(Announced {
        id: *id,
        stored: digests,
        writer_ttl_ms: u64::try_from(context.writer_ttl.as_millis()).unwrap_or(u64::MAX),
    })))
}

/// Whether the client may register as this publisher; the reason is for people.
fn may_announce(
    context: &mut Context<'_>,
    publisher: &PublisherInfo,
) -> Result<(), (RequestRefusal, String)> {
    let (access, id, epoch) = (context.access, publisher.id, publisher.epoch.0);
    if epoch > EPOCH_MAX {
        let code = RequestRefusal::OverLimit;
        let limit = format!("epoch {epoch} is over the limit of {EPOCH_MAX}");
        return Err((code, format!("{code}: {limit}; count the starts of the publisher")));
    }
    if let Some(first) = *context.registered_as
        && first != id
    {
        let code = RequestRefusal::OverLimit;
        return Err((code, format!("{code}: this link has registered as publisher {first}")));
    }
    let why = match access.publishing(id).binding {
        Binding::Others => format!("publisher {id} belongs to others"),
        _ if !access.publishes_anything() => {
            String::from("it has neither `serve` nor `publish` on any path")
        }
        Binding::Own => return Ok(()),
        // It can hold no queues as this publisher, and must not take those of the one before.
        Binding::Unbound if context.directory.has_missing_queues(id) => format!(
            "publisher {id} has declared queues, and [publishers] of the policy does not name it"
        ),
        Binding::Unbound => match context.directory.owner(id) {
            Some(owner) if *owner != access.identity => format!(
                "another identity has registered as publisher {id}; \
                 name its owner in [publishers] of the policy"
            ),
            _ => return Ok(()),
        },
    };
    context.access_log.announcement_refused(now(), access, id, &why);
    let code = RequestRefusal::Forbidden;
    Err((code, format!("{code} to {} to register: {why}", access.who())))
}

/// Removes what the publisher may no longer hold. False if there is more to check.
fn revoke(
    context: &mut Context<'_>,
    publishing: Publishing<'_>,
    progress: &mut ConfirmProgress,
) -> Result<bool, RequestRefusal> {
    let slot = context.directory.writer(context.client)?;
    let (access, log) = (context.access, &mut *context.access_log);
    let mut allows = |kind, path: &str, default| {
        let allowed = publishing.allows(kind, path, default);
        if !allowed {
            log.refused(now(), access, Publishing::action(kind), path);
        }
        allowed
    };
    loop {
        if context.directory.revoke(slot, progress, publishing.paths_in(STRIDE), &mut allows) {
            return Ok(true);
        }
        if now() >= context.until {
            return Ok(false);
        }
    }
}
