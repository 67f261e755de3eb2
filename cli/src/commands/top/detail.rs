//! What `longshore top` shows about one queue, worker, publisher or replica.

use std::time::Duration;

use longshore::Path;
use serde_json::Value as Json;

use super::dashboard::Dashboard;
use super::rows::Subject;
use super::view::Opened;
use crate::commands::sys::{name_of, number, text};
use crate::commands::workers;
use crate::output::{Table, grouped, printable, width};
use crate::time::show_duration;

/// Blanks between two fields.
const GAP: usize = 3;

/// A part of the description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Block {
    /// Names and values, as many side by side as fit.
    Fields(Vec<(String, String)>),
    /// A table below a title.
    Table { title: String, lines: Vec<String> },
    /// A line of text.
    Note(String),
}

impl Block {
    /// A table; without rows, a note.
    pub(super) fn table(title: &str, table: &Table) -> Block {
        if table.is_empty() {
            return Block::Note(format!("{title}: none"));
        }
        Block::Table { title: title.to_owned(), lines: table.lines_within(None) }
    }
}

/// A line, and whether it is a title.
pub(super) type DetailLine = (String, bool);

/// The name of an open subject.
pub(super) fn title(subject: &Subject) -> String {
    match subject {
        Subject::Queue(path) => format!("queue {path}"),
        Subject::Worker { name, session } => format!("worker {name}, session {session}"),
        Subject::Publisher(base) => format!("publisher {}", name_at(base)),
        Subject::Replica(base) => format!("replica {}", name_at(base)),
    }
}

fn name_at(base: &str) -> String {
    Path::new(base).map_or_else(|_| base.to_owned(), |base| name_of(&base).to_owned())
}

/// Everything about an open subject: the latest metrics, then what was looked up.
pub(super) fn blocks(open: &Opened, dashboard: &Dashboard, wall_ms: u64) -> Vec<Block> {
    let mut blocks = match &open.subject {
        Subject::Queue(path) => queue(path, dashboard),
        Subject::Worker { name, session } => worker(name, session, dashboard, wall_ms),
        Subject::Publisher(base) | Subject::Replica(base) => metric(base, dashboard),
    };
    if blocks.is_empty() {
        blocks.push(Block::Note("It is gone.".to_owned()));
    }
    blocks.extend(open.report.iter().cloned());
    blocks
}

fn queue(path: &str, dashboard: &Dashboard) -> Vec<Block> {
    let queues = dashboard.queues();
    let Some(queue) = queues.iter().find(|queue| text(queue, "path") == path) else {
        return Vec::new();
    };
    let count = |name: &str, field: &str| {
        let value = queue[field].as_u64().map_or_else(|| "-".to_owned(), grouped);
        (name.to_owned(), value)
    };
    let mut fields: Vec<_> = ["ready", "running", "retrying", "scheduled", "dead"]
        .iter()
        .map(|state| count(state, state))
        .collect();
    if queue["blocked"].as_u64().is_some_and(|jobs| jobs > 0) {
        fields.push(count("blocked", "blocked"));
    }
    let oldest = queue["oldest_ready_ms"].as_u64();
    let oldest = oldest.map_or_else(|| "-".to_owned(), |ms| seconds(ms / 1_000));
    fields.push(("oldest ready".to_owned(), oldest));
    for (name, nth) in [("in/s", 0), ("done/s", 1), ("failed/s", 2)] {
        let rates = dashboard.rates(path);
        let rate = rates.map_or_else(|| "-".to_owned(), |rates| format!("{:.1}", rates[nth]));
        fields.push((name.to_owned(), rate));
    }
    for name in ["enqueued", "completed", "failed", "died", "redelivered"] {
        fields.push(count(&format!("{name} ever"), &format!("{name}_ever")));
    }
    fields.push(count("workers", "workers"));
    let yes_or_no = |flag: &str| if queue[flag] == true { "yes" } else { "no" }.to_owned();
    fields.push(("paused".to_owned(), yes_or_no("paused")));
    fields.push(("closed".to_owned(), yes_or_no("closed")));
    let mut table = Table::new(&["publisher", "ready", "running", "dead", "oldest", "credits"]);
    for (base, part) in dashboard.listed("queues").filter(|(_, one)| text(one, "path") == path) {
        let oldest = part["oldest_ready_ms"].as_u64();
        table.row([
            name_of(base).to_owned(),
            grouped(number(part, "ready")),
            grouped(number(part, "running")),
            grouped(number(part, "dead")),
            oldest.map_or_else(|| "-".to_owned(), |ms| seconds(ms / 1_000)),
            grouped(number(part, "credits")),
        ]);
    }
    vec![Block::Fields(fields), Block::table("at publishers", &table)]
}

fn worker(name: &str, session: &str, dashboard: &Dashboard, wall_ms: u64) -> Vec<Block> {
    let mut links = dashboard.workers();
    links.retain(|one| text(one, "name") == name && text(one, "session") == session);
    if links.is_empty() {
        return Vec::new();
    }
    let sum = |field: &str| grouped(links.iter().map(|link| number(link, field)).sum());
    let since = links.iter().filter_map(|link| link["since_ms"].as_u64()).min();
    let since = since.map(|since| seconds(wall_ms.saturating_sub(since) / 1_000));
    let quiet = links.iter().any(|link| link["quiet"] == true);
    let fields = [
        ("leases", sum("leases")),
        ("free", sum("credits")),
        ("connected for", since.unwrap_or_else(|| "-".to_owned())),
        ("quiet", if quiet { "yes" } else { "no" }.to_owned()),
    ];
    let mut table = Table::new(&["publisher", "leases", "free", "takes"]);
    for link in &links {
        table.row([
            text(link, "publisher").to_owned(),
            grouped(number(link, "leases")),
            grouped(number(link, "credits")),
            workers::patterns(link).collect::<Vec<_>>().join(" "),
        ]);
    }
    let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    vec![Block::Fields(fields), Block::table("linked to", &table)]
}

/// Every field of a publisher's or replica's metric; those of maps under both names.
fn metric(base: &str, dashboard: &Dashboard) -> Vec<Block> {
    let Some(metric) = Path::new(base).ok().and_then(|base| dashboard.metric(&base)) else {
        return Vec::new();
    };
    let mut fields = Vec::new();
    for (name, value) in metric.as_object().into_iter().flatten() {
        match value {
            Json::Object(inner) => fields.extend(
                inner.iter().map(|(field, value)| (format!("{name} {field}"), shown(value))),
            ),
            value => fields.push((name.replace('_', " "), shown(value))),
        }
    }
    vec![Block::Fields(fields)]
}

fn shown(value: &Json) -> String {
    match value {
        Json::String(text) => printable(text).into_owned(),
        Json::Array(items) if items.is_empty() => "none".to_owned(),
        Json::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        Json::Null => "-".to_owned(),
        value => value.as_u64().map_or_else(|| value.to_string(), grouped),
    }
}

fn seconds(seconds: u64) -> String {
    show_duration(Duration::from_secs(seconds))
}

/// The blocks as lines of a screen of this width.
pub(super) fn lines(blocks: &[Block], width: usize) -> Vec<DetailLine> {
    let mut lines: Vec<DetailLine> = Vec::new();
    for block in blocks {
        if !lines.is_empty() {
            lines.push((String::new(), false));
        }
        match block {
            Block::Fields(fields) => lines.extend(grid(fields, width)),
            Block::Table { title, lines: table } => {
                lines.push((title.clone(), true));
                lines.extend(table.iter().map(|line| (line.clone(), false)));
            }
            Block::Note(note) => lines.push((note.clone(), false)),
        }
    }
    lines
}

/// Fields in as many columns as fit, filled row by row.
fn grid(fields: &[(String, String)], screen: usize) -> impl Iterator<Item = DetailLine> {
    let name = fields.iter().map(|(name, _)| width(name)).max().unwrap_or_default();
    // A long value takes a line of its own and does not widen the others.
    let short = |value: &str| width(value) <= screen / 4;
    let (short, long): (Vec<_>, Vec<_>) = fields.iter().partition(|(_, value)| short(value));
    let value = short.iter().map(|(_, value)| width(value)).max().unwrap_or_default();
    let columns = ((screen + GAP) / (name + 1 + value + GAP).max(1)).max(1);
    let field = move |(key, content): &(String, String), to: usize| {
        format!("{}{} {content:<to$}", key, " ".repeat(name - width(key)))
    };
    let rows = short.chunks(columns).map(|row| {
        let cells: Vec<String> = row.iter().map(|one| field(one, value)).collect();
        cells.join(&" ".repeat(GAP)).trim_end().to_owned()
    });
    let long = long.iter().map(|one| field(one, 0));
    rows.chain(long).map(|line| (line, false)).collect::<Vec<_>>().into_iter()
}
