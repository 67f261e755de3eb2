//! Sessions in a snapshot.

use std::sync::Arc;

use longshore_protocol::limits::{BATCH_JOBS_MAX, SETTLES_MAX};
use longshore_protocol::{
    Decode, Encode, FrameWriter, LinkId, PathSet, Reader, Role, Runs, SessionId, WireError,
};

use super::super::State;
use super::super::row::Substate;
use super::super::rows::List;
use super::super::session::{Outcome, RetainedAnswers, Session};
use super::put_optional;
use crate::command::CLIENT_IDENTITY_BYTES_MAX;

impl State {
    pub(super) fn index_sessions(&mut self) {
        for (number, session) in self.sessions.table.iter() {
            self.sessions.by_id.insert(session.id, number);
            self.sessions.answer_bytes += session.answer_bytes();
            self.names.add_use(session.name);
            self.sessions.to_remove.extend(session.forget_at.map(|at| (at, number)));
        }
        let running = (0..self.rows.allocated())
            .filter(|&slot| self.rows[slot].substate == Substate::Running);
        for session in running.map(|slot| self.rows[slot].session) {
            self.sessions.table[session].lease_count += 1;
        }
    }
}

impl Encode for Session {
    fn encode(&self, out: &mut FrameWriter) {
        self.id.encode(out);
        self.link.encode(out);
        out.bool(self.is_up);
        out.bool(self.ended_by_start);
        self.role.encode(out);
        out.u64(u64::from(self.name));
        out.string(&self.identity);
        self.work.as_deref().cloned().encode(out);
        self.leases.encode(out);
        out.u64(u64::from(self.handlers));
        out.u64(self.parked.len() as u64);
        for &subscription in &self.parked {
            out.u64(u64::from(subscription));
        }
        out.u64(self.next_batch);
        put_answers(out, &self.batches);
        out.u64(self.next_settle);
        put_answers(out, &self.settles);
        out.u64(self.revoked.len() as u64);
        for (&token, &queue) in &self.revoked {
            out.u64(token);
            out.u64(u64::from(queue));
        }
        put_optional(out, self.forget_at);
    }
}

impl Decode for Session {
    fn decode(r: &mut Reader) -> Result<Session, WireError> {
        let mut session = Session::new(SessionId::decode(r)?, LinkId::decode(r)?);
        session.is_up = r.bool()?;
        session.ended_by_start = r.bool()?;
        session.role = Role::decode(r)?;
        session.name = r.u32()?;
        session.identity = r.string("identity", CLIENT_IDENTITY_BYTES_MAX)?.into();
        session.work = r.option::<PathSet>()?.map(Arc::new);
        session.leases = List::decode(r)?;
        session.handlers = r.u32()?;
        for _ in 0..r.count("parked subscriptions", usize::MAX, 1)? {
            session.parked.push_back(r.u32()?);
        }
        session.next_batch = r.u64()?;
        session.batches = answers(r, BATCH_JOBS_MAX)?;
        session.next_settle = r.u64()?;
        session.settles = answers(r, SETTLES_MAX)?;
        for _ in 0..r.count("revoked leases", usize::MAX, 2)? {
            session.revoked.insert(r.u64()?, r.u32()?);
        }
        session.forget_at = r.option()?;
        Ok(session)
    }
}

fn put_answers<T: Encode + Outcome>(out: &mut FrameWriter, answers: &RetainedAnswers<T>) {
    out.u64(answers.iter().len() as u64);
    for (sequence, outcomes) in answers.iter() {
        out.u64(sequence);
        outcomes.encode(out);
    }
}

fn answers<T>(r: &mut Reader, limit: usize) -> Result<RetainedAnswers<T>, WireError>
where
    T: Decode + Outcome,
{
    let mut answers = RetainedAnswers::default();
    for _ in 0..r.count("answers", usize::MAX, 2)? {
        answers.push(r.u64()?, Runs::decode(r, "outcomes", limit)?, usize::MAX);
    }
    Ok(answers)
}
