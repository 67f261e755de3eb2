//! Handles attached and lost links.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use longshore_protocol::messages::work::Attached;
use longshore_protocol::{Path, PublisherId};
use rand::Rng;
use twox_hash::XxHash3_64;

use super::Core;
use super::action::Action;
use super::ids::{LinkNumber, RouteId, Time};
use super::limits::{
    FAILED_RECENTLY, LINKS_MAX, LINKS_PER_ROUTE, LOST_LINK_PATHS_MAX, RESOLVE_INTERVAL_MIN,
    ROUTE_IDLE, SWEEP_INTERVAL,
};
use super::peer::LinkState;
use crate::options::Failover;

impl<T: Default + Clone> Core<T> {
    /// The link to a publisher is attached.
    pub(crate) fn linked(
        &mut self,
        now: Time,
        publisher: PublisherId,
        link: LinkNumber,
        attached: &Attached,
    ) {
        let Some(peer) = self.peers.get_mut(&publisher) else { return };
        if peer.link != (LinkState::Dialing { link }) {
            return;
        }
        let durability = attached.durability;
        peer.link =
            LinkState::Up { link, since: now, durability, answered: false, stopping: false };
        peer.reason = None;
        peer.failed_at = None;
        peer.stopping_since = None;
        let next = attached.next_batch.max(1);
        if next <= peer.accepted {
            // The publisher expects a number that it has acknowledged: it forgot this producer
            // after an hour without a link, or its durability is none. It may have had the
            // unanswered batches.
            peer.accepted = next - 1;
            peer.next = next;
            let forgotten = std::mem::take(&mut peer.unanswered);
            peer.unanswered_bytes = 0;
            for lost in forgotten {
                self.unknown(
                    lost.batch,
                    publisher,
                    "the publisher no longer knows this producer".into(),
                );
            }
        } else {
            // The publisher has received batches below `next`, and sends their receipts again. The
            // others have not arrived, and the earlier links have ended: they are renumbered
            // without a gap.
            peer.accepted = next - 1;
            peer.next = next;
            for in_flight in &mut peer.unanswered {
                in_flight.arrived = in_flight.sequence < next;
                if !in_flight.arrived {
                    in_flight.sequence = peer.next;
                    peer.next += 1;
                }
            }
        }
        if let Some(peer) = self.peers.get_mut(&publisher) {
            peer.answer_received(now);
            for in_flight in &peer.unanswered {
                self.actions.push_back(Action::Send {
                    publisher,
                    link,
                    sequence: in_flight.sequence,
                    batch: in_flight.batch.jobs.clone(),
                });
            }
        }
        self.tick(now);
    }

    /// The publisher is about to close the link: it gets no new batch.
    pub(crate) fn goodbye(&mut self, now: Time, publisher: PublisherId, link: LinkNumber) {
        if let Some(peer) = self.peers.get_mut(&publisher)
            && let LinkState::Up { link: current, stopping, .. } = &mut peer.link
            && *current == link
        {
            *stopping = true;
            peer.stopping_since = Some(now);
            self.order_links_of(now, publisher);
        }
        self.tick(now);
    }

    /// The link has ended, or could not be made.
    pub(crate) fn link_lost(
        &mut self,
        now: Time,
        publisher: PublisherId,
        link: LinkNumber,
        reason: impl Into<Arc<str>>,
    ) {
        let Some(peer) = self.peers.get(&publisher) else { return };
        if peer.link_number() != Some(link) {
            return;
        }
        let was_dialing = matches!(peer.link, LinkState::Dialing { .. });
        self.link_down(now, publisher, reason.into());
        if was_dialing && self.failover == Failover::MayDuplicate {
            self.fail_over(publisher);
        }
        self.resolve_paths_of(now, publisher);
        self.tick(now);
    }

    pub(super) fn link_down(&mut self, now: Time, publisher: PublisherId, reason: Arc<str>) {
        let needed = self.is_needed(publisher);
        let random = self.rng.next_u64();
        let Some(peer) = self.peers.get_mut(&publisher) else { return };
        peer.lost(now, reason, needed, random);
        self.order_links_of(now, publisher);
    }

    /// The publisher started or stopped failing: re-orders the links of its routes.
    pub(super) fn order_links_of(&mut self, now: Time, publisher: PublisherId) {
        let routes: Vec<RouteId> = (self.routing.routes.iter())
            .filter(|(_, route)| route.set.binary_search(&publisher).is_ok())
            .map(|(id, _)| *id)
            .collect();
        for route in routes {
            self.order_links(now, route);
        }
    }

    /// True if batches wait for this publisher, or may go to it.
    pub(super) fn is_needed(&self, publisher: PublisherId) -> bool {
        self.peers.get(&publisher).is_some_and(|peer| !peer.unanswered.is_empty())
            || self.routing.routes.iter().any(|(id, route)| {
                route.set.binary_search(&publisher).is_ok()
                    && (!route.unsent.is_empty()
                        || self.streams.values().any(|stream| stream.open.contains_key(id)))
            })
    }

    /// Moves a publisher's unanswered batches to others that are up, if duplicates are allowed.
    /// Only once per batch: a job exists at most twice, and its receipt names both publishers.
    pub(super) fn fail_over(&mut self, publisher: PublisherId) {
        let Some(peer) = self.peers.get_mut(&publisher) else { return };
        let mut stay = VecDeque::new();
        let mut stay_bytes = 0;
        for in_flight in std::mem::take(&mut peer.unanswered) {
            let others = self.routing.routes.get(&in_flight.batch.route).is_some_and(|route| {
                route.set.iter().any(|id| self.peers.get(id).is_some_and(|peer| peer.is_up()))
            });
            if others && in_flight.batch.may_be_at.is_none() {
                let mut batch = in_flight.batch;
                batch.may_be_at = Some(publisher);
                self.queue_unsent(batch);
            } else {
                stay_bytes += in_flight.batch.bytes;
                stay.push_back(in_flight);
            }
        }
        if let Some(peer) = self.peers.get_mut(&publisher) {
            peer.unanswered = stay;
            peer.unanswered_bytes = stay_bytes;
        }
    }

    /// Resolves the paths of a publisher's batches again: it may have moved, and others may have
    /// joined.
    pub(super) fn resolve_paths_of(&mut self, now: Time, publisher: PublisherId) {
        let mut paths: BTreeSet<Path> = BTreeSet::new();
        let unanswered = self.peers.get(&publisher).into_iter().flat_map(|p| &p.unanswered);
        let unsent = (self.routing.routes.values())
            .filter(|route| route.set.binary_search(&publisher).is_ok())
            .flat_map(|route| &route.unsent);
        for batch in unanswered.map(|in_flight| &in_flight.batch).chain(unsent) {
            for path in batch.jobs.paths() {
                if paths.len() >= LOST_LINK_PATHS_MAX {
                    break;
                }
                paths.insert(path.clone());
            }
        }
        let open = self.streams.values().flat_map(|stream| &stream.open);
        let open = open.filter(|(route, _)| {
            let route = self.routing.routes.get(route);
            route.is_some_and(|route| route.set.binary_search(&publisher).is_ok())
        });
        paths.extend(
            open.flat_map(|(_, open)| open.builder.paths())
                .take(LOST_LINK_PATHS_MAX.saturating_sub(paths.len()))
                .cloned(),
        );
        for path in paths {
            let answered_at = self.routing.paths.get(&path).and_then(|entry| entry.answered_at);
            if answered_at.is_none_or(|at| at + RESOLVE_INTERVAL_MIN <= now) {
                self.routing.request_resolve(&path);
            }
        }
    }

    /// Chooses the publishers of the route that get links: those that failed within a minute last,
    /// the others in a random order of this producer. While all of the route's own publishers fail,
    /// publishers of the default above get links, too.
    pub(super) fn order_links(&mut self, now: Time, route_id: RouteId) {
        let Some(route) = self.routing.routes.get(&route_id) else { return };
        let first = |mut order: Vec<PublisherId>| {
            if order.len() > LINKS_PER_ROUTE {
                order.sort_by_cached_key(|id| {
                    let failed = self.peers.get(id).is_some_and(|p| {
                        !p.is_up() && p.failed_at.is_some_and(|at| at + FAILED_RECENTLY > now)
                    });
                    (failed, XxHash3_64::oneshot_with_seed(self.spread, &id.0))
                });
                order.truncate(LINKS_PER_ROUTE);
            }
            order
        };
        let mut order = first(route.own.to_vec());
        let is_own = |id: &PublisherId| route.own.binary_search(id).is_ok();
        order.extend(first(
            self.candidates(route).iter().copied().filter(|id| !is_own(id)).collect(),
        ));
        if let Some(route) = self.routing.routes.get_mut(&route_id) {
            route.linked = order;
        }
    }

    /// True if a link to this publisher is useful.
    pub(super) fn is_useful(&self, publisher: PublisherId) -> bool {
        let now_used = |id: &RouteId, used_at: Time| {
            used_at + ROUTE_IDLE + SWEEP_INTERVAL > self.sweep_at
                || self.streams.values().any(|stream| stream.open.contains_key(id))
        };
        self.peers.get(&publisher).is_some_and(|peer| !peer.unanswered.is_empty())
            || self.routing.routes.iter().any(|(id, route)| {
                route.linked.contains(&publisher)
                    && (!route.unsent.is_empty() || now_used(id, route.used_at))
            })
    }

    pub(super) fn dial(&mut self, now: Time) {
        let due: Vec<PublisherId> = (self.peers.iter())
            .filter(|(id, peer)| {
                matches!(peer.link, LinkState::Down { retry_at } if retry_at <= now)
                    && self.is_useful(**id)
            })
            .map(|(id, _)| *id)
            .collect();
        for publisher in due {
            let links = self.peers.values().filter(|peer| peer.link_number().is_some()).count();
            let Some(peer) = self.peers.get_mut(&publisher) else { continue };
            if links >= LINKS_MAX && peer.unanswered.is_empty() {
                peer.link = LinkState::Down { retry_at: now + SWEEP_INTERVAL };
                peer.reason = Some(format!("the producer has {LINKS_MAX} links already").into());
                continue;
            }
            let link = LinkNumber(self.next_link);
            self.next_link += 1;
            peer.link = LinkState::Dialing { link };
            let publisher = peer.info.clone();
            self.actions.push_back(Action::Dial { publisher, link });
        }
    }
}
