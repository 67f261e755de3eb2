//! Questions and actions of tools.

use bytes::Bytes;

use super::feed::FeedPosition;
use super::quiet::WorkerPattern;
use super::selection::{Filter, Selection};
use crate::fields::{codes, fields};
use crate::glob::Glob;
use crate::id::{JobId, Token};
use crate::limits::{BATCH_BYTES_MAX, WORKER_PATTERNS_MAX};
use crate::path::Path;
use crate::refusal::Gate;
use crate::settings::QueueSettings;

fields! {
    /// What a client asks of a publisher.
    pub enum Request, "request" {
        /// Statistics of the publisher itself.
        1 = Status,
        /// Statistics of every queue that matches.
        2 = Queues {
            /// Which.
            pattern: Glob,
        },
        /// A page of jobs.
        3 = Jobs(query: JobsQuery),
        /// One job, with its payload, result, attempts and checkpoints.
        4 = Job {
            /// Which.
            id: JobId,
        },
        /// Something to be done to jobs.
        5 = Act {
            /// What.
            action: Action,
            /// To which.
            selection: Selection,
            /// Of [`Action::Revive`]: how fast they are to become ready; none for at once.
            pace: Option<Pace>,
            /// Only count them.
            dry_run: bool,
        },
        /// One job, as [`Request::Job`] gives it, as soon as it has ended. Answered when it does,
        /// however long that takes; at most 10,000 of a link wait. What of its payload, headers,
        /// options and checkpoints cannot be read is left out.
        6 = Await {
            /// Which.
            id: JobId,
        },
        /// Dead letters, by what they died of.
        7 = DeadGroups {
            /// Which; its state is passed over.
            filter: Filter,
        },
        /// Queues are to deliver nothing, or to accept no new jobs; or are to go on.
        8 = Pause {
            /// What is stopped.
            gate: Gate,
            /// Those that match, and those that will.
            pattern: Glob,
            /// True to stop, false to go on: what was stopped by just this pattern.
            paused: bool,
        },
        /// A queue is to have settings.
        9 = Configure {
            /// The queue; it is made if it is not there.
            path: Path,
            /// What is to change.
            changes: QueueSettings,
            /// Whether what is not among the changes goes back to its default.
            reset: bool,
        },
        /// A dead job is to be replaced by a new one in the same queue, in one step.
        10 = Replace {
            /// The dead one.
            id: JobId,
            /// The new one's entry, as a producer writes it: its id is a new one.
            entry: Bytes = at_most("entry", BATCH_BYTES_MAX),
        },
        /// The checkpoints of earlier attempts at a job that this link's session runs.
        11 = Checkpoints {
            /// Its lease.
            token: Token,
        },
        /// Everything that happens to jobs, from now or from an earlier place on. Answered by
        /// [`Answer::Feed`](super::Answer::Feed); the events follow until the client sends
        /// [`ToPublisher::Forget`](super::ToPublisher::Forget) or falls behind.
        12 = Feed {
            /// Of the queues that match.
            pattern: Glob,
            /// What the client has seen already; none for nothing: from now on.
            after: Option<FeedPosition>,
        },
        /// The wall clock is right, though it jumped: what waits for it is to go on.
        13 = ConfirmClock,
        /// The publisher is to take no new jobs, or to take them again; what it has goes on. Holds
        /// until the contrary is asked for, over restarts. Answered by
        /// [`Answer::Done`](super::Answer::Done); a repetition changes nothing.
        15 = Drain {
            /// True to take none, false to take them again.
            draining: bool,
        },
        /// Workers are to begin no job, or to go on: the worker's whole process, at every
        /// publisher. Answered by [`Answer::Quieted`](super::Answer::Quieted) once each of them has
        /// reported that it does, or 5 s are over.
        14 = Quiet {
            /// Those that any of these means; at most 64.
            workers: Vec<WorkerPattern> = at_most("patterns of workers", WORKER_PATTERNS_MAX),
            /// True to begin no job, false to go on.
            quiet: bool,
            /// Only report which they are.
            dry_run: bool,
        },
    }

    /// Which jobs to list, and how much of each.
    pub struct JobsQuery {
        /// Which.
        pub filter: Filter,
        /// Where to go on: the `next` of the page before; 0 at the beginning.
        pub cursor: u64,
        /// At most so many to a page: 1 to 1,000. A page may hold fewer, and has at most 4 MiB.
        pub limit: u32,
        /// True for payloads, headers, options and results, too, which are read from disk.
        pub full: bool,
    }
}

codes! {
    /// What may be done to jobs. A job in a state that an action is not for is left alone, and
    /// reported so.
    Action, "action" {
        /// Cancel jobs that have not ended, prepared ones too. Those that run are taken from their
        /// workers: their handlers are told to stop, and whatever they return is refused.
        Cancel = 1, "cancel";
        /// Make dead jobs ready again, with all their attempts; their history stays.
        Revive = 2, "revive";
        /// Delete jobs that have ended: they are gone for good. By a filter without a state, dead
        /// letters only.
        Drop = 3, "drop";
        /// Let prepared jobs run. Said again, it is done again.
        Confirm = 4, "confirm";
    }
}

fields! {
    /// How fast jobs become ready. The nth of them, from 0, is due `n / per_second` seconds after
    /// the action.
    #[derive(Copy)]
    pub struct Pace {
        /// Jobs a second; at least 1.
        pub per_second: u32 = valid("pace of 0 jobs a second; the least is 1", |jobs| *jobs > 0),
        /// How many of the same action came before, with earlier requests.
        pub before: u64,
    }
}

codes! {
    /// Why a request has no answer. Nothing was changed. [`TooMany`](RequestError::TooMany) and
    /// [`NoSpace`](RequestError::NoSpace) pass by themselves.
    RequestError, "request error" {
        /// It asks for more than a page may hold (1,000 jobs), or names more jobs than one action
        /// may (10,000), or more workers (10,000, by 64 patterns) than one request may.
        OverLimit = 1, "OverLimit: a page holds at most 1,000 jobs, an action names at most 10,000, one request 64 patterns of workers and 10,000 workers";
        /// The publisher's journal could not be read; its log says where. Its operator has to look.
        Unreadable = 2, "Unreadable: the publisher could not read its journal; its log says where";
        /// The publisher does not know that request: its version is older.
        Unknown = 3, "Unknown: the publisher's version does not know that request";
        /// As many requests of this link wait for their answers as may: 64, 16 feeds, 10,000 ends
        /// of jobs. Ask again once some are answered.
        TooMany = 4, "TooMany: as many requests of this link wait as may (64, 16 feeds, 10,000 ends of jobs); send the next one after one of them";
        /// More has happened since than the publisher keeps. Take a snapshot again.
        TooOld = 5, "TooOld: more has happened since than the publisher keeps; take a snapshot again";
        /// The publisher has lost what the client saw: its acknowledgements are not synced. Take a
        /// snapshot again.
        Rewound = 6, "Rewound: the publisher started again before that index; take a snapshot again";
        /// The token no longer holds a lease of this session.
        StaleToken = 7, "StaleToken: the lease ended; the job belongs to another worker now or has ended";
        /// As many patterns are paused, or closed, as may be: 1,024 of each.
        TooManyPauses = 8, "TooManyPauses: 1,024 patterns are paused, or closed; resume or open some, or use one pattern for several queues";
        /// The publisher's disk has no room for the request.
        NoSpace = 9, "NoSpace: the publisher's disk has no room for the request; name fewer jobs, or free some room and try again";
    }
}
