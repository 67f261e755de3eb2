//! Job 1, wherever it may stand, and whatever may be said to it.

use bytes::Bytes;
use longshore_protocol::messages::work::{Action, NewSettle, Selection};
use longshore_protocol::{Due, JobOptions, JobState, LinkId, NewJob, SettleOutcome, Token};

use super::super::replacing::entry;
use super::super::story::*;
use crate::command::{Command, Expired};
use crate::outcome::Outcomes;

const HOUR_MS: u64 = 60 * 60 * 1_000;

/// Where job 1 stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    Prepared,
    Delayed,
    Timed,
    Retrying,
    Ready,
    /// By worker b; worker a had it before.
    Running,
    Completed,
    Dead,
    Cancelled,
    Expired,
    /// Dropped.
    Gone,
}

impl Standing {
    pub(super) const ALL: [Standing; 11] = [
        Standing::Prepared,
        Standing::Delayed,
        Standing::Timed,
        Standing::Retrying,
        Standing::Ready,
        Standing::Running,
        Standing::Completed,
        Standing::Dead,
        Standing::Cancelled,
        Standing::Expired,
        Standing::Gone,
    ];

    pub(super) fn state(self) -> Option<JobState> {
        Some(match self {
            Standing::Prepared => JobState::Prepared,
            Standing::Delayed | Standing::Timed | Standing::Retrying => JobState::Scheduled,
            Standing::Ready => JobState::Ready,
            Standing::Running => JobState::Running,
            Standing::Completed => JobState::Completed,
            Standing::Dead => JobState::Dead,
            Standing::Cancelled => JobState::Cancelled,
            Standing::Expired => JobState::Expired,
            Standing::Gone => return None,
        })
    }
}

/// What is said to job 1. What needs a lease is said by worker a, of whatever lease it had last.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Verb {
    Settle(NewSettle),
    Checkpoint,
    Expire {
        started: bool,
        restart: bool,
        timed_out: bool,
    },
    Damaged,
    Act(Action),
    Replace,
    /// The same job once more.
    EnqueueAgain,
    /// Another payload under its id.
    EnqueueOther,
}

impl Verb {
    pub(super) fn all() -> Vec<Verb> {
        let mut all = vec![
            Verb::Settle(NewSettle::Complete { result: Some(Bytes::from("late")) }),
            Verb::Settle(fail()),
            Verb::Settle(NewSettle::Release),
            Verb::Settle(NewSettle::Snooze { ms: 10 }),
            Verb::Settle(NewSettle::Bury(error("late"))),
            Verb::Checkpoint,
            Verb::Damaged,
        ];
        for (started, restart, timed_out) in
            [(false, false, false), (true, false, false), (true, true, false), (true, false, true)]
        {
            all.push(Verb::Expire { started, restart, timed_out });
        }
        all.extend([Action::Confirm, Action::Cancel, Action::Revive, Action::Drop].map(Verb::Act));
        all.extend([Verb::Replace, Verb::EnqueueAgain, Verb::EnqueueOther]);
        all
    }

    /// Whether it is meant for a job that stands there. A lease that has ended fits nowhere.
    pub(super) fn fits(&self, standing: Standing) -> bool {
        use Standing::{Cancelled, Completed, Dead, Delayed, Expired, Gone, Prepared, Ready};
        use Standing::{Retrying, Running, Timed};
        match self {
            Verb::Act(Action::Confirm) => standing == Prepared,
            Verb::Act(Action::Cancel) => {
                matches!(standing, Prepared | Delayed | Timed | Retrying | Ready | Running)
            }
            Verb::Act(Action::Revive) | Verb::Replace => standing == Dead,
            Verb::Act(Action::Drop) => matches!(standing, Dead | Completed | Cancelled | Expired),
            Verb::EnqueueAgain | Verb::EnqueueOther => standing == Gone,
            _ => false,
        }
    }
}

/// The stage, with job 1 where it is to be.
pub(super) struct Stage {
    pub(super) story: Story,
    pub(super) a: LinkId,
    producer: LinkId,
    /// What worker a's lease was, if it ever had one.
    pub(super) token: Token,
    job: NewJob,
}

impl Stage {
    /// Job 1, at `standing`; handed in as prepared and confirmed first if it is to have been.
    pub(super) fn set(standing: Standing, confirmed: bool) -> Stage {
        let mut story = Story::begin();
        let (a, producer) = (story.link("a"), story.link("producer"));
        story.subscribe(a, 1, QUEUE);
        let job = with(
            1,
            JobOptions {
                prepared: confirmed || standing == Standing::Prepared,
                due: match standing {
                    Standing::Timed => Due::At(story.now.wall_ms + HOUR_MS),
                    _ => Due::Now,
                },
                expires_at: (standing == Standing::Expired).then_some(story.now.wall_ms + 10),
                ..JobOptions::default()
            },
        );
        story.enqueue(producer, std::slice::from_ref(&job));
        if confirmed {
            assert_eq!(story.act_on(Action::Confirm, 1).done, 1);
        }
        let handed = match standing {
            Standing::Prepared | Standing::Timed => None,
            _ => story.credit(a, 1, 1).first().copied(),
        };
        let token = handed.map_or(Token(7), |handed| handed.token);
        let settle = match standing {
            Standing::Delayed => Some(NewSettle::Snooze { ms: HOUR_MS }),
            Standing::Retrying => Some(fail()),
            Standing::Completed => Some(NewSettle::Complete { result: None }),
            Standing::Dead | Standing::Gone => Some(NewSettle::Bury(error("no"))),
            Standing::Expired => Some(NewSettle::Release),
            _ => None,
        };
        if let Some(settle) = settle {
            assert_eq!(story.settle(a, token, &settle).0, SettleOutcome::Accepted);
        }
        match standing {
            Standing::Ready => assert!(story.expire(token, false).handed.is_empty()),
            Standing::Running => {
                story.worker("b", QUEUE, 1);
                assert_eq!(story.expire(token, true).handed.len(), 1);
            }
            Standing::Cancelled => assert_eq!(story.act_on(Action::Cancel, 1).done, 1),
            Standing::Expired => {
                story.later(10).apply(Command::Tick);
            }
            Standing::Gone => assert_eq!(story.act_on(Action::Drop, 1).done, 1),
            _ => {}
        }
        let found = story.state.job(&id(1), story.now).map(|view| view.info.state);
        assert_eq!(found, standing.state(), "the stage is set");
        assert_eq!(
            found.is_some_and(|_| story.job(1).info.retrying),
            standing == Standing::Retrying
        );
        Stage { story, a, producer, token, job }
    }

    pub(super) fn command(&self, verb: &Verb) -> Command {
        let (link, token) = (self.a, self.token);
        let sessions = &self.story.state.sessions.table;
        let session =
            |link: LinkId| &sessions[self.story.state.session_of(link).expect("it is up")];
        let enqueue = |payload: &'static [u8]| {
            let job = NewJob { payload: Bytes::from(payload), ..self.job.clone() };
            let batch = batch(session(self.producer).next_batch, &[job]);
            Command::Enqueue { link: self.producer, batch }
        };
        match verb {
            Verb::Settle(settle) => {
                let batch = settles(session(link).next_settle, &[(token, settle.clone())]);
                Command::Settle { link, batch }
            }
            Verb::Checkpoint => checkpoint(link, token, 1, "late"),
            Verb::Expire { started, restart, timed_out } => {
                let (started, restart, timed_out) = (*started, *restart, *timed_out);
                Command::Expire { leases: vec![Expired { token, started, restart, timed_out }] }
            }
            Verb::Damaged => Command::Damaged { token },
            Verb::Act(action) => {
                let selection = Selection::Ids(vec![id(1)]);
                Command::Act { link, request: 3, action: *action, selection, pace: None }
            }
            Verb::Replace => {
                Command::Replace { link, request: 3, id: id(1), entry: entry(&plain(2)) }
            }
            Verb::EnqueueAgain => enqueue(b"payload 1"),
            Verb::EnqueueOther => enqueue(b"another"),
        }
    }

    /// Says it, and gives what it brought about, events too.
    pub(super) fn say(&mut self, command: &Command) -> Outcomes {
        let mut out = Outcomes { wants_events: true, ..Outcomes::default() };
        self.story.index += 1;
        self.story.later(1);
        self.story.state.apply(self.story.index, self.story.now, command, &mut out);
        self.story.state.invariant().unwrap_or_else(|broken| panic!("{broken}"));
        out
    }
}
