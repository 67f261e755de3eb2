//! What a command does to the system, and so how long it may take.

use std::time::Duration;

use super::{
    BatchAction, Command, CronAction, DeadAction, Directory, DirectoryAction, LimitAction,
    Publisher, PublisherAction, QueueAction, Resolver, ResolverAction, Value, ValueAction, Workers,
    WorkersAction,
};

/// The default timeout of a query. Publishers that do not answer are reported after 15 s.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// The default timeout of an act on named things.
const ACT_TIMEOUT: Duration = Duration::from_secs(60);

/// The kind of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommandKind {
    /// Reads and ends.
    Query,
    /// Changes something and ends.
    Act,
    /// Goes on for as long as there is data, or until something has happened. Each of its requests
    /// has a timeout of its own.
    Stream,
    /// Runs until it is stopped, or its work is done.
    Service,
    /// Needs no running system.
    Local,
}

impl CommandKind {
    /// The default of `--timeout`.
    pub(crate) fn default_timeout(self) -> Option<Duration> {
        match self {
            CommandKind::Query => Some(QUERY_TIMEOUT),
            CommandKind::Act => Some(ACT_TIMEOUT),
            CommandKind::Stream | CommandKind::Service | CommandKind::Local => None,
        }
    }

    /// Whether `--timeout` has a meaning.
    pub(crate) fn accepts_timeout(self) -> bool {
        !matches!(self, CommandKind::Service | CommandKind::Local)
    }
}

impl Command {
    /// Its kind.
    pub(crate) fn kind(&self) -> CommandKind {
        use CommandKind::{Act, Local, Query, Service, Stream};
        match self {
            Command::Demo(_) | Command::Up(_) | Command::Work(_) | Command::Bench(_) => Service,
            Command::Resolver(Resolver { action }) => match action {
                ResolverAction::Run(_) => Service,
                ResolverAction::Status { .. } => Query,
            },
            Command::Publisher(Publisher { action }) => match action {
                PublisherAction::Run(_) => Service,
                PublisherAction::Status => Query,
                PublisherAction::Drain(drain) if drain.wait => Stream,
                PublisherAction::Drain(_) | PublisherAction::Forget(_) => Act,
            },
            Command::Value(value) => match value.action {
                ValueAction::Publish(_) => Service,
                ValueAction::Subscribe(_) => Stream,
                ValueAction::Write(_) => Act,
            },
            Command::Directory(Directory { action: DirectoryAction::Watch(_) }) => Stream,
            Command::Directory(_) | Command::Home(_) | Command::Stat(_) | Command::Check(_) => {
                Query
            }
            Command::Job(job) if job.wait => Stream,
            Command::Job(_) => Query,
            Command::Dead(dead) => match dead.action {
                DeadAction::Groups { .. } | DeadAction::Show { .. } => Query,
                // The jobs of a pattern may be millions.
                DeadAction::Ls { .. } | DeadAction::Revive { .. } | DeadAction::Drop { .. } => {
                    Stream
                }
            },
            Command::Enqueue(_)
            | Command::Jobs(_)
            | Command::Tail(_)
            | Command::Cancel(_)
            | Command::Purge(_) => Stream,
            Command::Top(top) if top.once => Query,
            Command::Top(_) => Service,
            Command::Confirm(_) | Command::Pause(_) | Command::Resume(_) => Act,
            Command::Queue(queue) => match queue.action {
                QueueAction::Ls { .. } | QueueAction::Show { .. } => Query,
                _ => Act,
            },
            Command::Limit(limit) => match limit.action {
                LimitAction::Ls => Query,
                LimitAction::Set(_) | LimitAction::Rm { .. } => Act,
            },
            Command::Cron(cron) => match cron.action {
                CronAction::Ls | CronAction::Next { .. } => Query,
                _ => Act,
            },
            Command::Batch(batch) => match batch.action {
                // A batch may have millions of members.
                BatchAction::Ls { .. } | BatchAction::Show { .. } => Stream,
                _ => Act,
            },
            Command::Workers(Workers { action }) => match action {
                WorkersAction::Ls { .. } => Query,
                WorkersAction::Quiet { wait: true, .. } => Stream,
                WorkersAction::Quiet { .. } | WorkersAction::Resume(_) => Act,
            },
            Command::Journal(_)
            | Command::Config { .. }
            | Command::Context(_)
            | Command::Cert(_)
            | Command::Token(_)
            | Command::Access(_)
            | Command::Completions { .. }
            | Command::Man { .. } => Local,
            Command::DemoWorker(_) => Service,
        }
    }

    /// True for the processes of a system. They do not heed the selected context, which is for
    /// commands that are typed, as `work` often is: its unit names a configuration file, which
    /// takes precedence.
    pub(crate) fn ignores_selected_context(&self) -> bool {
        matches!(
            self,
            Command::Publisher(Publisher { action: PublisherAction::Run(_) })
                | Command::Resolver(Resolver { action: ResolverAction::Run(_) })
        )
    }

    /// True if clients link to it, and so it needs the rules of access.
    pub(crate) fn listens(&self) -> bool {
        self.ignores_selected_context()
            || matches!(self, Command::Up(_))
            || matches!(self, Command::Value(Value { action: ValueAction::Publish(_) }))
    }

    /// True if it changes jobs, queues, workers or publishers: what it did before a timeout stays.
    pub(crate) fn changes(&self) -> bool {
        match self {
            Command::Enqueue(_) | Command::Cancel(_) | Command::Purge(_) => true,
            Command::Dead(dead) => {
                matches!(dead.action, DeadAction::Revive { .. } | DeadAction::Drop { .. })
            }
            Command::Workers(Workers { action }) => !matches!(action, WorkersAction::Ls { .. }),
            Command::Publisher(Publisher { action: PublisherAction::Drain(_) }) => true,
            _ => self.kind() == CommandKind::Act,
        }
    }

    /// True if its exit code tells more than its output: nobody may read that.
    pub(crate) fn goes_on_without_output(&self) -> bool {
        self.changes() || matches!(self, Command::Work(_) | Command::Check(_))
    }

    /// The log filter unless one is configured. Services log at `info`, `up` and `work` at `warn`.
    /// Short commands log errors only: they print a library's warnings as their own error.
    pub(crate) fn default_log_filter(&self) -> &'static str {
        match self {
            Command::Publisher(Publisher { action: PublisherAction::Run(_) })
            | Command::Resolver(Resolver { action: ResolverAction::Run(_) }) => "info",
            Command::Up(_) | Command::Work(_) => "warn",
            _ => "error",
        }
    }

    /// True if it fails when no replica of the resolver can be reached. The others of a running
    /// system wait for one, or report each replica themselves.
    pub(crate) fn fails_without_resolver(&self) -> bool {
        match self {
            Command::Check(_) | Command::Top(_) | Command::Enqueue(_) | Command::Tail(_) => false,
            Command::Resolver(_) | Command::Value(_) => false,
            Command::Directory(Directory { action: DirectoryAction::Watch(_) }) => false,
            Command::Job(job) => !job.wait,
            _ => !matches!(self.kind(), CommandKind::Service | CommandKind::Local),
        }
    }

    /// True if it asks or acts once, and so waits for no replica that is silent.
    pub(crate) fn is_one_shot(&self) -> bool {
        self.fails_without_resolver() || self.kind() == CommandKind::Query
    }

    /// True if it waits for a replica of the resolver, and has to report that it does.
    pub(crate) fn waits_for_resolver(&self) -> bool {
        match self {
            Command::Work(_) | Command::Enqueue(_) | Command::Tail(_) | Command::Top(_) => true,
            Command::Value(_) => true,
            Command::Directory(Directory { action }) => matches!(action, DirectoryAction::Watch(_)),
            Command::Job(job) => job.wait,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::CommandLine;

    #[test]
    fn each_kind_of_command_has_its_timeout() {
        use CommandKind::{Act, Local, Query, Service, Stream};
        let parsed = |line: &str| {
            let words = std::iter::once("longshore").chain(line.split(' '));
            CommandLine::try_parse_from(words).unwrap().command
        };
        for (line, kind) in [
            ("stat", Query),
            ("queue ls", Query),
            ("job 018f6d1e-7c1a-7000-8000-000000000001", Query),
            ("job 018f6d1e-7c1a-7000-8000-000000000001 --wait", Stream),
            ("top --once", Query),
            ("top", Service),
            ("pause /jobs/a", Act),
            ("queue set /jobs/a --max-attempts 3", Act),
            ("workers quiet --all", Act),
            ("workers quiet --all --wait", Stream),
            ("publisher drain p --wait", Stream),
            ("purge /jobs/a --state dead", Stream),
            ("jobs", Stream),
            ("enqueue /jobs/a", Stream),
            ("work /jobs/a -- true", Service),
            ("journal stat /data", Local),
            ("config", Local),
            ("cert ca", Local),
            ("token ls", Local),
        ] {
            let command = parsed(line);
            assert_eq!(command.kind(), kind, "{line}");
            let reports_resolver = command.fails_without_resolver() ^ command.waits_for_resolver();
            assert_eq!(reports_resolver, kind != Local, "{line}");
            let changes = ["pause", "queue set", "workers", "publisher", "purge", "enqueue"];
            assert_eq!(command.changes(), changes.iter().any(|c| line.starts_with(c)), "{line}");
        }
        for line in ["resolver run", "publisher run"] {
            assert!(
                parsed(line).ignores_selected_context() && parsed(line).kind() == Service,
                "{line}"
            );
        }
        assert!(
            !parsed("work /jobs/a -- true").ignores_selected_context(),
            "a client, often typed"
        );
        assert!(Query.default_timeout() < Act.default_timeout());
        assert_eq!(Stream.default_timeout(), None);
        assert!(Stream.accepts_timeout() && !Service.accepts_timeout());
    }
}
