//! Output of commands: JSON for programs, tables and lines for people, progress for long
//! operations.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::diagnostics::print_line;

/// Redraws of a progress bar per second.
const BAR_HZ: u8 = 10;
/// The shortest time between two progress lines where standard error is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// The fewest columns of a cell that is cut; of the first in a row, which names it, more.
const CELL_WIDTH_MIN: usize = 6;
const NAME_WIDTH_MIN: usize = 24;

/// Standard output, as JSON or as text.
pub(crate) struct Output {
    json: bool,
    out: BufWriter<Stdout>,
}

/// Standard output. Once its reader has closed it, a command that changes something goes on without
/// it: what it did, and what it could not, is in its exit code and on standard error.
struct Stdout {
    out: io::Stdout,
    goes_on: bool,
}

/// The reader of our output, for example `head`, has closed the pipe.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
pub(crate) struct OutputClosed;

impl Stdout {
    fn unless_closed<T>(&self, written: io::Result<T>, otherwise: T) -> io::Result<T> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => match self.goes_on {
                true => Ok(otherwise),
                false => Err(io::Error::new(io::ErrorKind::BrokenPipe, OutputClosed)),
            },
            written => written,
        }
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.unless_closed(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.unless_closed(flushed, ())
    }
}

impl Output {
    /// Writes JSON if `json`, otherwise text. With `goes_on`, nothing is an error once the reader
    /// has closed the pipe.
    pub(crate) fn new(json: bool, goes_on: bool) -> Output {
        Output { json, out: BufWriter::new(Stdout { out: io::stdout(), goes_on }) }
    }

    /// True if output is JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Writes one JSON value as a line and flushes.
    pub(crate) fn json(&mut self, value: &Value) -> io::Result<()> {
        self.json_row(value)?;
        self.out.flush()
    }

    /// Writes one JSON value of many as a line, without flushing; call
    /// [`Output::flush`] after the last.
    pub(crate) fn json_row(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.out, "{}", printable_json(&value.to_string()))
    }

    /// Flushes buffered output.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes one indented JSON value.
    pub(crate) fn json_pretty(&mut self, value: &Value) -> io::Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        writeln!(self.out, "{}", printable_json(&text))?;
        self.out.flush()
    }

    /// Writes a line of text. Control characters are escaped, line breaks too: it may contain what
    /// a server sent.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        self.out.write_all(printable(text.as_ref()).as_bytes())?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    /// Writes the lines of a text; control characters in them are escaped.
    pub(crate) fn lines(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        text.as_ref().split('\n').try_for_each(|line| self.line(line))
    }

    /// Writes raw bytes.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.out.flush()
    }

    /// Writes a table. On a terminal it fits the width; elsewhere nothing is cut.
    pub(crate) fn table(&mut self, table: &Table) -> io::Result<()> {
        for line in table.lines_within(terminal_width()) {
            writeln!(self.out, "{line}")?;
        }
        self.out.flush()
    }
}

/// JSON in which the control characters that a terminal obeys are escaped; those below U+0020 are
/// already.
pub(crate) fn printable_json(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| ('\u{7f}'..='\u{9f}').contains(&c);
    if !text.contains(is_control) {
        return text.into();
    }
    let escaped = text.chars().map(|c| match is_control(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    });
    escaped.collect::<String>().into()
}

/// Rows under headings. Columns fit their content; columns of numbers are right-aligned.
pub(crate) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub(crate) fn new(headings: &[&'static str]) -> Table {
        Table { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, one cell per heading.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell).into_owned()).collect());
    }

    /// True if there is no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The heading line and one line per row, of at most so many columns. Wide text is cut and
    /// ended by `…`: first the columns after the first, which names the row, down to their
    /// headings; then the first; then every line.
    pub(crate) fn lines_within(&self, most: Option<usize>) -> Vec<String> {
        let columns = self.headings.len();
        let mut widths: Vec<usize> = self.headings.iter().map(|heading| width(heading)).collect();
        let mut least: Vec<usize> =
            widths.iter().map(|width| (*width).max(CELL_WIDTH_MIN)).collect();
        least[0] = least[0].max(NAME_WIDTH_MIN);
        let mut numeric = vec![true; columns];
        for row in &self.rows {
            for (column, cell) in row.iter().enumerate().take(columns) {
                widths[column] = widths[column].max(width(cell));
                numeric[column] &= is_number(cell);
            }
        }
        if let Some(most) = most {
            let gaps = 2 * columns.saturating_sub(1);
            while widths.iter().sum::<usize>() + gaps > most {
                let shrinks =
                    |column: &usize| !numeric[*column] && widths[*column] > least[*column];
                let widest = (1..columns).filter(shrinks).max_by_key(|column| widths[*column]);
                match widest.or(Some(0).filter(shrinks)) {
                    Some(column) => widths[column] -= 1,
                    None => break,
                }
            }
        }
        let headings = self.headings.iter().map(|h| (*h).to_owned()).collect();
        let mut lines = Vec::with_capacity(1 + self.rows.len());
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate().take(columns) {
                let cell = cut_to(cell, widths[column], '…');
                let pad = widths[column].saturating_sub(width(&cell));
                let (before, after) = if numeric[column] { (pad, 0) } else { (0, pad) };
                line.extend(std::iter::repeat_n(' ', before));
                line.push_str(&cell);
                line.extend(std::iter::repeat_n(' ', after + 2));
            }
            let line = line.trim_end();
            lines.push(cut_to(line, most.unwrap_or(usize::MAX), '…').into_owned());
        }
        lines
    }
}

/// The width of the terminal that standard output goes to; none elsewhere.
fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// The columns that a text takes on a terminal.
pub(crate) fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// A text of at most `most` columns: cut and ended by `mark`, if it is wider.
pub(crate) fn cut_to(text: &str, most: usize, mark: char) -> Cow<'_, str> {
    if width(text) <= most {
        return Cow::Borrowed(text);
    }
    let mut cut = String::new();
    for c in text.chars() {
        cut.push(c);
        if width(&cut) >= most {
            cut.pop();
            break;
        }
    }
    if most > 0 {
        cut.push(mark);
    }
    Cow::Owned(cut)
}

fn is_number(cell: &str) -> bool {
    cell == "-"
        || (!cell.is_empty() && cell.bytes().all(|b| b.is_ascii_digit() || b",.%".contains(&b)))
}

/// Escapes control characters, which could control a terminal.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_control) {
        Cow::Owned(text.chars().flat_map(escaped).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// The same for a text of several lines.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

fn escaped(c: char) -> Vec<char> {
    if c.is_control() { c.escape_default().collect() } else { vec![c] }
}

/// Bytes as text, cut after `limit` characters, with invalid UTF-8 replaced.
pub(crate) fn shown(bytes: &[u8], limit: usize) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(limit.saturating_mul(4))]);
    let mut shown: String = printable(&text).chars().take(limit).collect();
    if text.chars().count() > limit || bytes.len() > limit.saturating_mul(4) {
        shown.push('…');
    }
    shown
}

/// Bytes as JSON: a string if they are UTF-8, otherwise `{"base64": "…"}`.
pub(crate) fn bytes_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => serde_json::json!({ "base64": BASE64.encode(bytes) }),
    }
}

/// Quotes a word for a shell, if needed.
pub(crate) fn shell_word(text: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("'{}'", text.replace('\'', "'\\''")))
    }
}

/// A count of jobs: `1 job`, `12,345 jobs`.
pub(crate) fn jobs(count: u64) -> String {
    counted(count, "job")
}

/// A count with its noun: `1 file`, `12,345 files`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// A number with thousands separators.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Progress on stderr: a bar on a terminal, occasional lines elsewhere, nothing with JSON output.
pub(crate) struct Progress {
    kind: Kind,
}

enum Kind {
    Bar(ProgressBar),
    Lines { label: String, unit: &'static str, total: Option<u64>, at: u64, last_printed: Instant },
    Silent,
}

impl Progress {
    /// Progress towards `total`, or a plain count.
    pub(crate) fn new(
        label: &str,
        unit: &'static str,
        total: Option<u64>,
        output: &Output,
    ) -> Progress {
        let kind = if output.is_json() {
            Kind::Silent
        } else if io::stderr().is_terminal() {
            Kind::Bar(bar(label, unit, total))
        } else {
            Kind::Lines {
                label: label.to_owned(),
                unit,
                total,
                at: 0,
                last_printed: Instant::now(),
            }
        };
        Progress { kind }
    }

    /// Updates the count.
    pub(crate) fn at(&mut self, done: u64) {
        match &mut self.kind {
            Kind::Bar(bar) => bar.set_position(done),
            Kind::Lines { label, unit, total, at, last_printed } => {
                if *at != done && last_printed.elapsed() >= LINE_INTERVAL {
                    *at = done;
                    *last_printed = Instant::now();
                    let of = total.map(|t| format!(" of {}", grouped(t))).unwrap_or_default();
                    // `1 job`, but `1 of 7 jobs`.
                    let unit = match total.unwrap_or(done) {
                        1 => unit.strip_suffix('s').unwrap_or(unit),
                        _ => unit,
                    };
                    print_line(format!("{label}: {}{of} {unit}", grouped(done)));
                }
            }
            Kind::Silent => {}
        }
    }

    /// Prints a line above the progress.
    #[cfg(feature = "demo")]
    pub(crate) fn print(&self, text: &str) {
        match &self.kind {
            Kind::Bar(bar) => bar.println(text),
            Kind::Lines { .. } => report!("{text}"),
            Kind::Silent => {}
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(self) {
        if let Kind::Bar(bar) = self.kind {
            bar.finish_and_clear();
        }
    }
}

fn bar(label: &str, unit: &str, total: Option<u64>) -> ProgressBar {
    let bar = match total {
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::no_length(),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(BAR_HZ));
    let template = match total {
        Some(_) => format!(
            "{{prefix}} [{{bar:40}}] {{human_pos}}/{{human_len}} {unit}, {{per_sec}}, {{eta}} left"
        ),
        None => format!("{{prefix}} {{spinner}} {{human_pos}} {unit}, {{per_sec}}"),
    };
    let style = if total.is_some() {
        ProgressStyle::default_bar()
    } else {
        ProgressStyle::default_spinner()
    };
    let style = style.template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(label.to_owned());
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_words_are_quoted_only_where_needed() {
        for (text, word) in [
            ("/jobs/a-1.b", "/jobs/a-1.b"),
            ("/jobs/with space", "'/jobs/with space'"),
            ("/jobs/**", "'/jobs/**'"),
            ("it's $HOME", "'it'\\''s $HOME'"),
            ("/é", "'/é'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }

    #[test]
    fn tables_align_text_left_and_numbers_right() {
        let mut table = Table::new(&["path", "ready"]);
        table.row(["/jobs/sha".to_owned(), "12".to_owned()]);
        table.row(["/é".to_owned(), "7,812".to_owned()]);
        table.row(["/日本".to_owned(), "7".to_owned()]);
        assert_eq!(
            table.lines_within(None),
            ["path       ready", "/jobs/sha     12", "/é         7,812", "/日本          7"]
        );
    }

    #[test]
    fn tables_are_cut_to_a_terminal_but_never_in_a_pipe() {
        let mut table = Table::new(&["job", "error", "jobs"]);
        let error = "日本語 and a long message";
        table.row(["0123456789:abcdef".to_owned(), error.to_owned(), "12".to_owned()]);
        assert!(table.lines_within(None)[1].contains(error));
        let cut = |most| table.lines_within(Some(most))[1].clone();
        assert_eq!(cut(38), "0123456789:abcdef  日本語 and a…    12");
        assert_eq!(cut(31), "0123456789:abcdef  日本…     12");
        // The first column names the row: the others are cut off before it.
        assert_eq!(cut(30), "0123456789:abcdef  日本…     …");
        for most in 0..80 {
            assert!(table.lines_within(Some(most)).iter().all(|line| width(line) <= most));
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(shown(b"a\x1b[31mb\nc", 100), "a\\u{1b}[31mb\\nc");
        assert_eq!(printable_lines("a\x1b[31mb\nc"), "a\\u{1b}[31mb\nc");
        assert_eq!(shown("ääää".as_bytes(), 3), "äää…");
        assert_eq!(shown(&[0xff, b'a'], 10), "\u{fffd}a");
    }

    #[test]
    fn bytes_that_are_not_utf_8_become_base64_in_json() {
        assert_eq!(bytes_json(b"a\"b").to_string(), r#""a\"b""#);
        assert_eq!(bytes_json(&[0xff, 0x0a]).to_string(), r#"{"base64":"/wo="}"#);
    }

    #[test]
    fn thousands_are_grouped() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(n), text);
        }
    }
}
