//! What `longshore top` lists: four kinds of rows, with their columns.

use std::cmp::Ordering;
use std::time::Duration;

use serde_json::Value as Json;

use super::dashboard::Dashboard;
use crate::commands::sys::{name_of, number, text};
use crate::commands::workers;
use crate::output::{Table, grouped, printable};
use crate::time::show_duration;

/// A list of the view.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Kind {
    #[default]
    Queues,
    Workers,
    Publishers,
    Replicas,
}

/// A column, and which columns a narrow terminal shows: those with the lowest ranks.
pub(super) struct Column {
    pub(super) heading: &'static str,
    pub(super) rank: u8,
    /// Text is aligned left and sorts from A to Z; numbers are aligned right and sort downwards.
    pub(super) is_text: bool,
}

const fn words(heading: &'static str, rank: u8) -> Column {
    Column { heading, rank, is_text: true }
}

const fn numbers(heading: &'static str, rank: u8) -> Column {
    Column { heading, rank, is_text: false }
}

const QUEUES: [Column; 11] = [
    words("queue", 0),
    numbers("ready", 1),
    numbers("running", 2),
    numbers("retrying", 6),
    numbers("scheduled", 8),
    numbers("dead", 3),
    numbers("in/s", 7),
    numbers("done/s", 4),
    numbers("failed/s", 9),
    numbers("oldest", 5),
    numbers("workers", 10),
];
const WORKERS: [Column; 8] = [
    words("worker", 0),
    words("session", 6),
    words("publisher", 5),
    words("takes", 2),
    numbers("free", 3),
    numbers("leases", 1),
    numbers("for", 4),
    words("quiet", 7),
];
const PUBLISHERS: [Column; 12] = [
    words("publisher", 0),
    words("id", 9),
    numbers("up", 5),
    numbers("queues", 6),
    numbers("ready", 1),
    numbers("running", 2),
    numbers("dead", 3),
    numbers("workers", 4),
    numbers("producers", 10),
    numbers("journal", 8),
    words("room", 7),
    numbers("oldest", 11),
];
const REPLICAS: [Column; 11] = [
    words("replica", 0),
    words("state", 1),
    numbers("up", 4),
    numbers("writers", 5),
    numbers("hidden", 9),
    numbers("paths", 2),
    numbers("connections", 3),
    numbers("watches", 6),
    numbers("reads", 7),
    numbers("writes", 8),
    numbers("memory", 10),
];

impl Kind {
    pub(super) const ALL: [Kind; 4] =
        [Kind::Queues, Kind::Workers, Kind::Publishers, Kind::Replicas];

    pub(super) fn title(self) -> &'static str {
        match self {
            Kind::Queues => "Queues",
            Kind::Workers => "Workers",
            Kind::Publishers => "Publishers",
            Kind::Replicas => "Replicas",
        }
    }

    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Kind::Queues => &QUEUES,
            Kind::Workers => &WORKERS,
            Kind::Publishers => &PUBLISHERS,
            Kind::Replicas => &REPLICAS,
        }
    }
}

/// What a row is about, and what opens below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Subject {
    Queue(String),
    Worker { name: String, session: String },
    Publisher(String),
    Replica(String),
}

/// How a cell stands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Tone {
    #[default]
    Plain,
    Warning,
    Bad,
}

/// A cell: its text and its place in the order of its column.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) tone: Tone,
    /// For columns of numbers; unknown numbers are the lowest.
    number: f64,
}

impl Cell {
    fn text(text: &str) -> Cell {
        Cell { text: printable(text).into_owned(), tone: Tone::Plain, number: 0.0 }
    }

    fn unknown() -> Cell {
        Cell { number: -1.0, ..Cell::text("-") }
    }

    fn number(number: Option<u64>) -> Cell {
        number.map_or_else(Cell::unknown, |number| Cell::shown(grouped(number), number as f64))
    }

    fn shown(text: String, number: f64) -> Cell {
        Cell { text, tone: Tone::Plain, number }
    }

    fn seconds(ms: Option<u64>) -> Cell {
        ms.map_or_else(Cell::unknown, |ms| {
            Cell::shown(show_duration(Duration::from_secs(ms / 1_000)), ms as f64)
        })
    }

    fn toned(self, tone: Tone) -> Cell {
        Cell { tone, ..self }
    }

    /// Marks a number above zero.
    fn bad_above_zero(self) -> Cell {
        if self.number > 0.0 { self.toned(Tone::Bad) } else { self }
    }
}

/// A row: one cell for each column of its kind.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Identifies the row while others come and go.
    pub(super) key: String,
    pub(super) subject: Subject,
    pub(super) cells: Vec<Cell>,
}

impl Row {
    /// True if a cell contains the text, which is in lower case.
    pub(super) fn contains(&self, lower_case: &str) -> bool {
        self.cells.iter().any(|cell| cell.text.to_lowercase().contains(lower_case))
    }

    /// The order by a column: text from A to Z, numbers from the highest.
    pub(super) fn compare(&self, other: &Row, column: usize, is_text: bool) -> Ordering {
        let (one, another) = (&self.cells[column], &other.cells[column]);
        if is_text { one.text.cmp(&another.text) } else { another.number.total_cmp(&one.number) }
    }
}

/// The rows of a kind: the busiest queues first, the others by name.
pub(super) fn rows(kind: Kind, dashboard: &Dashboard, wall_ms: u64) -> Vec<Row> {
    match kind {
        Kind::Queues => dashboard.queues().iter().map(|one| queue_row(one, dashboard)).collect(),
        Kind::Workers => dashboard.workers().iter().map(|one| worker_row(one, wall_ms)).collect(),
        Kind::Publishers => of_kind(dashboard, "publishers", publisher_cells, Subject::Publisher),
        Kind::Replicas => of_kind(dashboard, "replicas", replica_cells, Subject::Replica),
    }
}

/// The rows as a table for lines of text.
pub(super) fn table(kind: Kind, dashboard: &Dashboard, wall_ms: u64) -> Table {
    let headings: Vec<&'static str> = kind.columns().iter().map(|column| column.heading).collect();
    let mut table = Table::new(&headings);
    for row in rows(kind, dashboard, wall_ms) {
        table.row(row.cells.into_iter().map(|cell| cell.text));
    }
    table
}

fn queue_row(queue: &Json, dashboard: &Dashboard) -> Row {
    let path = text(queue, "path");
    let rates = dashboard.rates(path);
    let rate = |nth: usize| {
        rates.map_or_else(Cell::unknown, |rates| {
            Cell::shown(grouped(rates[nth].round() as u64), rates[nth])
        })
    };
    let count = |field: &str| Cell::number(queue[field].as_u64());
    let name = if queue["paused"] == true {
        Cell::text(&format!("{path} (paused)")).toned(Tone::Warning)
    } else {
        Cell::text(path)
    };
    Row {
        key: path.to_owned(),
        subject: Subject::Queue(path.to_owned()),
        cells: vec![
            name,
            count("ready"),
            count("running"),
            count("retrying"),
            count("scheduled"),
            count("dead").bad_above_zero(),
            rate(0),
            rate(1),
            rate(2).bad_above_zero(),
            Cell::seconds(queue["oldest_ready_ms"].as_u64()),
            count("workers"),
        ],
    }
}

fn worker_row(worker: &Json, wall_ms: u64) -> Row {
    let (name, session) = (text(worker, "name"), text(worker, "session"));
    let patterns: Vec<&str> = workers::patterns(worker).collect();
    let quiet = worker["quiet"] == true;
    Row {
        key: format!("{name}\0{session}\0{}", text(worker, "publisher")),
        subject: Subject::Worker { name: name.to_owned(), session: session.to_owned() },
        cells: vec![
            Cell::text(name),
            Cell::text(session),
            Cell::text(text(worker, "publisher")),
            Cell::text(&if patterns.is_empty() { "-".to_owned() } else { patterns.join(" ") }),
            Cell::number(Some(number(worker, "credits"))),
            Cell::number(Some(number(worker, "leases"))),
            Cell::seconds(worker["since_ms"].as_u64().map(|since| wall_ms.saturating_sub(since))),
            if quiet { Cell::text("quiet").toned(Tone::Warning) } else { Cell::text("-") },
        ],
    }
}

/// The rows of publishers or replicas. One that is lost has only its name.
fn of_kind(
    dashboard: &Dashboard,
    kind: &str,
    cells: fn(&Json) -> Vec<Cell>,
    subject: fn(String) -> Subject,
) -> Vec<Row> {
    let bases = dashboard.of_kind(kind);
    let row = bases.map(|(path, metric)| {
        let mut all = vec![Cell::text(name_of(path))];
        match metric {
            Some(metric) => all.extend(cells(metric)),
            None => {
                all[0].tone = Tone::Bad;
                let columns = if kind == "publishers" { PUBLISHERS.len() } else { REPLICAS.len() };
                all.resize_with(columns, Cell::unknown);
            }
        }
        Row { key: path.to_string(), subject: subject(path.to_string()), cells: all }
    });
    row.collect()
}

/// The cells after the name.
fn publisher_cells(p: &Json) -> Vec<Cell> {
    // A publisher with too many queues does not sum their counts.
    let state = |field: &str| Cell::number(p["states"][field].as_u64());
    let (room, oldest) = (text(p, "room"), number(p, "oldest_uncommitted_ms"));
    vec![
        Cell::text(&text(p, "id").chars().take(8).collect::<String>()),
        Cell::seconds(Some(number(p, "uptime_s").saturating_mul(1_000))),
        Cell::number(Some(number(p, "queues"))),
        state("ready"),
        state("running"),
        state("dead").bad_above_zero(),
        Cell::number(Some(number(&p["links"], "workers"))),
        Cell::number(Some(number(&p["links"], "producers"))),
        mebibytes(number(p, "journal_bytes")),
        Cell::text(room).toned(if room == "open" { Tone::Plain } else { Tone::Bad }),
        Cell::shown(format!("{} ms", grouped(oldest)), oldest as f64),
    ]
}

/// The cells after the name.
fn replica_cells(r: &Json) -> Vec<Cell> {
    let count = |field: &str| Cell::number(r[field].as_u64());
    vec![
        if r["warming"] == true {
            Cell::text("warming").toned(Tone::Warning)
        } else {
            Cell::text("complete")
        },
        Cell::seconds(Some(number(r, "uptime_s").saturating_mul(1_000))),
        count("publishers"),
        count("hidden"),
        count("paths"),
        count("connections"),
        count("watches"),
        count("reads"),
        count("writes"),
        mebibytes(number(r, "memory_bytes")),
    ]
}

fn mebibytes(bytes: u64) -> Cell {
    Cell::shown(format!("{} MiB", grouped(bytes.div_ceil(1 << 20))), bytes as f64)
}
