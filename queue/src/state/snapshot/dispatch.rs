//! Subscriptions and their groups in a snapshot.

use std::collections::BTreeSet;
use std::sync::Arc;

use longshore_protocol::messages::work::{Order, Sources};
use longshore_protocol::{Decode, Encode, FrameWriter, LinkId, PathSet, Reader, WireError};

use super::super::State;
use super::super::dispatch::{PermittedSources, Subscription, SubscriptionGroup, TurnQueue};
use super::{index, put_index};

impl State {
    pub(super) fn index_groups(&mut self) {
        for (number, group) in self.dispatch.groups.iter() {
            self.dispatch.by_sources.insert(group.sources.clone(), number);
        }
        let parked = self.sessions.table.iter().flat_map(|(_, session)| &session.parked);
        for &index in parked {
            self.dispatch.subscriptions[index].is_parked = true;
        }
        for (_, subscription) in self.dispatch.subscriptions.iter() {
            let group = &mut self.dispatch.groups[subscription.group];
            group.subscriptions += 1;
            if let Some(link) = self.links.get_mut(&subscription.link) {
                link.patterns += group.sources.sources.patterns.len() as u64;
            }
            group.credits += u64::from(subscription.credit);
            self.dispatch.credits += u64::from(subscription.credit);
            self.sessions.table[subscription.session].credits += subscription.credit;
        }
        for queue in 0..self.queues.len() as u32 {
            self.update_groups_of(queue);
        }
        // Nothing else makes jobs and credits wait for each other.
        let groups = self.dispatch.groups.iter();
        let both_wait = |group: &SubscriptionGroup| group.ready > 0 && group.waiting.count > 0;
        let stalled = groups.filter(|(_, group)| self.delivery_budget > 0 && both_wait(group));
        self.dispatch.stalled = stalled.map(|(number, _)| number).collect();
    }
}

impl Encode for Subscription {
    fn encode(&self, out: &mut FrameWriter) {
        self.link.encode(out);
        for number in [self.session, self.number, self.group, self.credit] {
            out.u64(u64::from(number));
        }
        put_index(out, self.before);
        put_index(out, self.after);
    }
}

impl Decode for Subscription {
    fn decode(r: &mut Reader) -> Result<Subscription, WireError> {
        Ok(Subscription {
            link: LinkId::decode(r)?,
            session: r.u32()?,
            number: r.u32()?,
            group: r.u32()?,
            credit: r.u32()?,
            is_parked: false,
            before: index(r)?,
            after: index(r)?,
        })
    }
}

impl Encode for SubscriptionGroup {
    fn encode(&self, out: &mut FrameWriter) {
        self.sources.sources.encode(out);
        self.sources.within.as_deref().cloned().encode(out);
        if self.sources.sources.order == Order::Weighted {
            self.lanes.balances().for_each(|balance| out.i64(balance));
        }
        put_index(out, self.waiting.head);
        put_index(out, self.waiting.tail);
        out.u64(u64::from(self.waiting.count));
        out.u64(self.unnotified.len() as u64);
        for &index in &self.unnotified {
            out.u64(u64::from(index));
        }
    }
}

impl Decode for SubscriptionGroup {
    fn decode(r: &mut Reader) -> Result<SubscriptionGroup, WireError> {
        let sources = Sources::decode(r)?;
        let within = r.option::<PathSet>()?.map(Arc::new);
        let mut group = SubscriptionGroup::new(PermittedSources { sources, within });
        if group.sources.sources.order == Order::Weighted {
            let unbalanced = r.invalid("balances that do not belong to their weights");
            let lanes = 0..group.lanes.balances().len();
            let balances = lanes.map(|_| r.i64()).collect::<Result<Vec<_>, _>>()?;
            if !group.lanes.restore_balances(&balances) {
                return Err(unbalanced);
            }
        }
        group.waiting = TurnQueue { head: index(r)?, tail: index(r)?, count: r.u32()? };
        let unnotified = r.count("untold subscriptions", usize::MAX, 1)?;
        group.unnotified = (0..unnotified).map(|_| r.u32()).collect::<Result<BTreeSet<_>, _>>()?;
        Ok(group)
    }
}
