//! The file of a policy, in TOML.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use longshore_protocol::path_set::PATH_SET_GLOBS_MAX;
use longshore_protocol::{Glob, GlobError, PublisherId};
use serde::Deserialize;
use toml::Spanned;

use super::Policy;
use super::publishers::Publishers;
use super::quota::{QUOTA_BYTES_MIN, QUOTA_MESSAGES_MIN, QueueLimits, Quota, QuotaRule};
use super::rule::{Effect, PathPattern, Rule, USER};
use super::subject::Subject;
use crate::action::{Action, UnknownAction};
use crate::identity::{IDENTITY_BYTES_MAX, NameKind};

/// The longest policy, in bytes.
pub const POLICY_BYTES_MAX: usize = 256 * 1024;
/// The prefix of a group that a JWT claims. Another than that of the policy's own groups: a
/// provider never makes anyone a member of these.
const JWT_GROUP: &str = "jwt-group";
/// Most names in `who` of all rules, members of their groups included.
const SUBJECTS_MAX: usize = 65_536;

/// Why a text is not a policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct PolicyError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub fault: PolicyFault,
}

/// What is wrong in a policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyFault {
    /// It is too long: this many bytes.
    #[error("the policy has {0} bytes; the limit is {POLICY_BYTES_MAX}")]
    TooLong(usize),
    /// It is not TOML, or has an unknown key.
    #[error("{0}")]
    Toml(String),
    /// A list of a rule is empty.
    #[error("`{0}` is empty; a rule needs at least one")]
    Empty(&'static str),
    /// An action that does not exist.
    #[error("{0}; or \"*\" for all of them")]
    Action(#[from] UnknownAction),
    /// A path that is not a glob.
    #[error("{0}")]
    Path(#[from] GlobError),
    /// A path contains `$` other than in `${user}`.
    #[error("{0:?}: `$` stands only in {USER}, a whole segment or a part of one")]
    Variable(String),
    /// A text that names no clients.
    #[error(
        "{0:?} names no clients; write uri:NAME, dns:NAME, cn:NAME, token:NAME, jwt:NAME, \
         jwt-group:NAME or unix:UID (`*` in it is any text), group:NAME, \"*\" for every client \
         with an identity, or anonymous"
    )]
    Subject(String),
    /// A number that no user has.
    #[error(
        "{0:?} matches no user: write the number that `id -u NAME` shows, without leading zeros, \
         or with `*` in it for any text"
    )]
    User(String),
    /// A group that the policy does not define.
    #[error("there is no group {0:?}; define it in [groups]")]
    Group(String),
    /// A group within a group.
    #[error("{0:?}: a group has names, and no groups")]
    Nested(String),
    /// An id that is not a publisher's.
    #[error("{0:?} is not a publisher's id; `longshore publisher status` shows it")]
    Publisher(String),
    /// A publisher's id, twice.
    #[error("{0} stands there twice, maybe in upper and lower case; list all its names once")]
    PublisherTwice(PublisherId),
    /// A quota without a limit.
    #[error(
        "a quota has at least one of `links`, `handshakes`, `bytes`, `messages`, \
         `registered_paths`, and, with `paths`, `queues`, `waiting_jobs` and `waiting_bytes`"
    )]
    NoLimit,
    /// Limits of queues without their paths, or the reverse.
    #[error(
        "`queues`, `waiting_jobs` and `waiting_bytes` limit what waits on the `paths` of the same \
         quota, such as [\"/tenants/{USER}/**\"]: give both"
    )]
    QueuesWithoutPaths,
    /// A quota of too few bytes a second.
    #[error("{0} bytes a second; the least is {QUOTA_BYTES_MIN}")]
    TooFewBytes(u64),
    /// A quota of too few messages a second.
    #[error("{0} messages a second; the least is {QUOTA_MESSAGES_MIN}")]
    TooFewMessages(u64),
    /// Too many paths: this many.
    #[error("{0} paths; the limit of a policy is {PATH_SET_GLOBS_MAX}")]
    TooManyPaths(usize),
    /// Too many names.
    #[error("over {SUBJECTS_MAX} names in `who`, members of groups included")]
    TooManySubjects,
}

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    groups: BTreeMap<String, Vec<Spanned<String>>>,
    #[serde(default)]
    publishers: BTreeMap<Spanned<String>, Vec<Spanned<String>>>,
    #[serde(default)]
    allow: Vec<Spanned<RuleTable>>,
    #[serde(default)]
    deny: Vec<Spanned<RuleTable>>,
    #[serde(default)]
    quota: Vec<Spanned<QuotaTable>>,
}

/// A rule in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    who: Vec<Spanned<String>>,
    #[serde(rename = "do")]
    actions: Vec<Spanned<String>>,
    paths: Vec<Spanned<String>>,
}

/// A quota in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaTable {
    who: Vec<Spanned<String>>,
    links: Option<NonZeroU32>,
    /// A second, as are the next two.
    handshakes: Option<NonZeroU32>,
    bytes: Option<NonZeroU64>,
    messages: Option<NonZeroU64>,
    registered_paths: Option<NonZeroU32>,
    #[serde(default)]
    paths: Vec<Spanned<String>>,
    queues: Option<NonZeroU32>,
    waiting_jobs: Option<NonZeroU64>,
    waiting_bytes: Option<NonZeroU64>,
}

impl Policy {
    /// Reads a policy.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        let whole = |fault| PolicyError { line: 1, fault };
        if text.len() > POLICY_BYTES_MAX {
            return Err(whole(PolicyFault::TooLong(text.len())));
        }
        let file: File = toml::from_str(text).map_err(|error| {
            let line = line_of(text, error.span().map_or(0, |span| span.start));
            PolicyError { line, fault: PolicyFault::Toml(error.message().to_owned()) }
        })?;
        let mut reader = Reader { text, groups: BTreeMap::new(), subjects: 0 };
        for (name, members) in &file.groups {
            let members = reader.each(members, |_, text| match subject(text)? {
                Some(subject) => Ok(vec![subject]),
                None => Err(PolicyFault::Nested(text.to_owned())),
            })?;
            reader.groups.insert(name.clone(), members);
        }
        let mut rules = Vec::new();
        for (effect, tables) in [(Effect::Allow, &file.allow), (Effect::Deny, &file.deny)] {
            for table in tables {
                rules.push(reader.rule(effect, table)?);
            }
        }
        rules.sort_by_key(|rule| rule.line);
        let publishers = Arc::new(reader.publishers(&file.publishers)?);
        let quotas: Vec<QuotaRule> =
            file.quota.iter().map(|table| reader.quota(table)).collect::<Result<_, _>>()?;
        let of_quotas = quotas.iter().map(|rule| rule.paths.len());
        let paths = rules.iter().map(|rule| rule.paths.len()).chain(of_quotas).sum();
        if paths > PATH_SET_GLOBS_MAX {
            return Err(whole(PolicyFault::TooManyPaths(paths)));
        }
        Ok(Policy { rules, publishers, quotas })
    }
}

impl Policy {
    /// The policy with a rule that allows everything to these clients, a text as `who` has it, and
    /// with a publisher's id that is theirs: whatever else it says, somebody serves and operates.
    /// For tests of a policy.
    pub fn with_operator(
        mut self,
        who: &str,
        publisher: PublisherId,
    ) -> Result<Policy, PolicyFault> {
        let unknown = || PolicyFault::Subject(who.to_owned());
        let who = vec![subject(who)?.ok_or_else(unknown)?];
        let (actions, paths) = (Action::ALL.to_vec(), vec![path("/**")?]);
        let (effect, line) = (Effect::Allow, 0);
        self.rules.push(Rule { effect, line, who: who.clone(), actions, paths });
        Arc::make_mut(&mut self.publishers).0.insert(publisher, who);
        Ok(self)
    }
}

/// What is known while the file is read.
struct Reader<'a> {
    text: &'a str,
    groups: BTreeMap<String, Vec<Subject>>,
    subjects: usize,
}

impl Reader<'_> {
    /// Reads every text of a list; an error has the line of its text.
    fn each<T>(
        &mut self,
        texts: &[Spanned<String>],
        mut read: impl FnMut(&mut Self, &str) -> Result<Vec<T>, PolicyFault>,
    ) -> Result<Vec<T>, PolicyError> {
        let mut all = Vec::with_capacity(texts.len());
        for text in texts {
            let read = read(self, text.get_ref());
            all.extend(read.map_err(|fault| self.at(text, fault))?);
        }
        Ok(all)
    }

    fn at<T>(&self, place: &Spanned<T>, fault: PolicyFault) -> PolicyError {
        PolicyError { line: line_of(self.text, place.span().start), fault }
    }

    fn rule(&mut self, effect: Effect, table: &Spanned<RuleTable>) -> Result<Rule, PolicyError> {
        let RuleTable { who, actions, paths } = table.get_ref();
        for (name, list) in [("who", who), ("do", actions), ("paths", paths)] {
            if list.is_empty() {
                return Err(self.at(table, PolicyFault::Empty(name)));
            }
        }
        let who = self.each(who, Reader::subjects)?;
        let actions = self.each(actions, |_, text| match text {
            "*" => Ok(Action::ALL.to_vec()),
            text => Ok(vec![text.parse::<Action>()?]),
        })?;
        let paths = self.each(paths, |_, text| Ok(vec![path(text)?]))?;
        let line = line_of(self.text, table.span().start);
        Ok(Rule { effect, line, who, actions, paths })
    }

    fn quota(&mut self, table: &Spanned<QuotaTable>) -> Result<QuotaRule, PolicyError> {
        let &QuotaTable { ref who, links, handshakes, bytes, messages, .. } = table.get_ref();
        let &QuotaTable { registered_paths, ref paths, .. } = table.get_ref();
        let &QuotaTable { queues, waiting_jobs, waiting_bytes, .. } = table.get_ref();
        let quota = Quota { links, handshakes, bytes, messages, registered_paths };
        let queues = QueueLimits { queues, waiting_jobs, waiting_bytes };
        if who.is_empty() {
            return Err(self.at(table, PolicyFault::Empty("who")));
        }
        if paths.is_empty() != (queues == QueueLimits::default()) {
            return Err(self.at(table, PolicyFault::QueuesWithoutPaths));
        }
        if quota.is_unlimited() && paths.is_empty() {
            return Err(self.at(table, PolicyFault::NoLimit));
        }
        if let Some(bytes) = bytes.filter(|bytes| bytes.get() < QUOTA_BYTES_MIN) {
            return Err(self.at(table, PolicyFault::TooFewBytes(bytes.get())));
        }
        if let Some(messages) = messages.filter(|messages| messages.get() < QUOTA_MESSAGES_MIN) {
            return Err(self.at(table, PolicyFault::TooFewMessages(messages.get())));
        }
        let who = self.each(who, Reader::subjects)?;
        let paths = self.each(paths, |_, text| Ok(vec![path(text)?]))?;
        let line = line_of(self.text, table.span().start);
        Ok(QuotaRule { line, who, quota, paths, queues })
    }

    /// The clients of one text: a group's members, or one subject.
    fn subjects(&mut self, text: &str) -> Result<Vec<Subject>, PolicyFault> {
        let subjects = match (text.strip_prefix("group:"), subject(text)?) {
            (_, Some(subject)) => vec![subject],
            (Some(name), None) => {
                let members = self.groups.get(name);
                members.ok_or_else(|| PolicyFault::Group(name.to_owned()))?.clone()
            }
            (None, None) => Vec::new(),
        };
        self.subjects += subjects.len();
        if self.subjects > SUBJECTS_MAX {
            return Err(PolicyFault::TooManySubjects);
        }
        Ok(subjects)
    }

    fn publishers(
        &mut self,
        publishers: &BTreeMap<Spanned<String>, Vec<Spanned<String>>>,
    ) -> Result<Publishers, PolicyError> {
        let mut bound = BTreeMap::new();
        for (id, names) in publishers {
            let publisher: PublisherId = id
                .get_ref()
                .parse()
                .map_err(|_| self.at(id, PolicyFault::Publisher(id.get_ref().clone())))?;
            let subjects = self.each(names, Reader::subjects)?;
            if bound.insert(publisher, subjects).is_some() {
                return Err(self.at(id, PolicyFault::PublisherTwice(publisher)));
            }
        }
        Ok(Publishers(bound))
    }
}

/// A subject; none for a group.
fn subject(text: &str) -> Result<Option<Subject>, PolicyFault> {
    let unknown = || PolicyFault::Subject(text.to_owned());
    match text {
        "*" => return Ok(Some(Subject::Everyone)),
        "anonymous" => return Ok(Some(Subject::Anonymous)),
        _ if text.starts_with("group:") => return Ok(None),
        _ => {}
    }
    let (prefix, pattern) = text.split_once(':').ok_or_else(unknown)?;
    let kind = NameKind::ALL.into_iter().find(|kind| kind.prefix() == prefix);
    let fits = (1..=IDENTITY_BYTES_MAX).contains(&pattern.len());
    if prefix == JWT_GROUP && fits && NameKind::Jwt.can_match(pattern) {
        return Ok(Some(Subject::InGroup(pattern.to_owned())));
    }
    match kind {
        Some(kind) if fits && kind.can_match(pattern) => {
            Ok(Some(Subject::Named { kind, pattern: kind.normal(pattern) }))
        }
        Some(NameKind::Unix) => Err(PolicyFault::User(text.to_owned())),
        _ => Err(unknown()),
    }
}

fn path(text: &str) -> Result<PathPattern, PolicyFault> {
    if !text.contains('$') && !text.contains("{user}") {
        return Ok(PathPattern::Fixed(Glob::new(text)?));
    }
    // Without its `$` it would be the path of one segment, `user`.
    let others = text.replace(USER, "");
    if others.contains('$') || others.contains("{user}") {
        return Err(PolicyFault::Variable(text.to_owned()));
    }
    // Both a name and any name have to give a glob.
    Glob::new(&text.replace(USER, "x"))?;
    Glob::new(&text.replace(USER, "*"))?;
    Ok(PathPattern::PerUser(text.to_owned()))
}

/// The line of a byte, from 1.
fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count()
}
