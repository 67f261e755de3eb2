//! Which identity may register as which publisher.

use std::collections::BTreeMap;

use longshore_protocol::PublisherId;

use super::subject::Subject;
use crate::identity::Identity;

/// The identities to which a policy binds publishers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Publishers(pub(super) BTreeMap<PublisherId, Vec<Subject>>);

/// Whether a publisher's id belongs to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binding {
    /// The policy binds it to the client.
    Own,
    /// The policy binds it to others.
    Others,
    /// The policy does not name it: a publisher with this id may publish values, and no queues.
    Unbound,
}

impl Publishers {
    pub(super) fn binding(&self, who: Option<&Identity>, publisher: PublisherId) -> Binding {
        match self.0.get(&publisher) {
            None => Binding::Unbound,
            Some(subjects) if subjects.iter().any(|subject| subject.matches(who)) => Binding::Own,
            Some(_) => Binding::Others,
        }
    }
}
