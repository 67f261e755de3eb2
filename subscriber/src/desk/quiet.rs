//! The desk's side that faces operators: no new jobs for a while, at all publishers. What runs goes
//! on, and links stay.

use longshore_protocol::messages::work::{NewSettle, Quiet};
use longshore_protocol::{PublisherId, Token};

use super::{Desk, PlaceId, Stage, State};
use crate::durable::Input;

impl Desk {
    /// A publisher passes on what an operator asks of the worker. It holds at every publisher, and
    /// until the opposite is asked or the process ends.
    pub(crate) fn be_quiet(&self, place: PlaceId, asked: Quiet) {
        let mut state = self.state.lock();
        if state.quiet != asked.quiet {
            match asked.quiet {
                true => tracing::info!(
                    "quiet: asked by an operator; no job begins, those that run go on"
                ),
                false => tracing::info!("resumed: jobs are taken again"),
            }
            self.turn_quiet(&mut state, asked.quiet);
        }
        let at = state.place(place);
        at.quiet_to_say = Some(asked.ask);
        at.wake.notify_one();
    }

    /// True while no job begins because an operator asked for that.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state.lock().quiet
    }

    fn turn_quiet(&self, state: &mut State, quiet: bool) {
        state.quiet = quiet;
        if quiet {
            // A grant that waits to be sent would bring a job that has to go back.
            for place in 0..state.places.len() {
                let at = &mut state.places[place];
                let (publisher, credits) = (at.id, std::mem::take(&mut at.grant));
                self.step(state, Input::Ungranted { publisher, credits });
            }
        }
        self.step(state, Input::Quiet(quiet));
        if quiet {
            for (publisher, jobs) in state.give_back_unbegun() {
                self.step(state, Input::Freed { publisher, jobs });
            }
        }
        for place in state.places.iter_mut().filter(|place| place.sender.is_some()) {
            place.quiet_to_say.get_or_insert(0);
            place.wake.notify_one();
        }
    }
}

impl State {
    /// Gives back all jobs that have not begun. Of those whose publishers are not linked, it says
    /// how many: they are held no more at once, the others when it was sent that they go back.
    pub(super) fn give_back_unbegun(&mut self) -> Vec<(PublisherId, u32)> {
        self.ready.clear();
        self.announced.clear();
        let mut freed = Vec::new();
        for place in &mut self.places {
            place.aside.clear();
            let linked = place.sender.is_some();
            let unbegun = place.leases.iter().filter(|(_, lease)| lease.holder.is_none());
            let unbegun: Vec<Token> = unbegun.map(|(token, _)| token).collect();
            if !linked && !unbegun.is_empty() {
                freed.push((place.id, u32::try_from(unbegun.len()).unwrap_or(u32::MAX)));
            }
            for token in unbegun {
                place.leases.remove(token);
                place.settles.push(token, &NewSettle::Release, linked);
            }
            place.wake.notify_one();
        }
        freed
    }

    /// What the link is to say of it now. That the worker is quiet, only once all that goes back
    /// was sent, also what was put by while there was no link, and the publisher has none of its
    /// credits: what that one counts as held does not rise any more.
    pub(super) fn quiet_to_say(&mut self, place: PlaceId) -> Option<Quiet> {
        let (quiet, draining) = (self.quiet, self.stage > Stage::Open);
        let at = &mut self.places[place as usize];
        let ask = at.quiet_to_say?;
        let is_so = at.settles.all_are_sent() && (draining || self.durable.has_no_credit(&at.id));
        if quiet && !is_so {
            return None;
        }
        at.quiet_to_say = None;
        Some(Quiet { ask, quiet })
    }
}
