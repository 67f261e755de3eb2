//! Draws the screen into a buffer. Pure.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::dashboard::Dashboard;
use super::detail;
use super::rows::{Kind, Row, Tone};
use super::view::{Layout, Opened, View};
use crate::output::{cut_to, grouped, printable, width};

/// The keys, as the help lists them; it fits a terminal of 40 by 12.
const HELP: [(&str, &str); 10] = [
    ("1-4 Tab", "the lists"),
    ("Up Down", "select; or k j, wheel"),
    ("PgUp PgDn", "by a page; Home, End"),
    ("Enter Esc", "open; close"),
    ("s S", "sort by the next column"),
    ("r", "reverse the order"),
    ("/", "filter; Esc clears it"),
    ("click", "select, open, sort"),
    ("Shift-drag", "select text to copy"),
    ("q Ctrl-C", "quit; Ctrl-Z suspends"),
];

/// How a terminal shows things.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Only ASCII, for a locale without UTF-8.
    pub(super) ascii: bool,
    /// Colours; bold and reversed text need none.
    pub(super) colour: bool,
}

impl Look {
    fn tone(self, tone: Tone) -> Style {
        match tone {
            _ if !self.colour => Style::new(),
            Tone::Plain => Style::new(),
            Tone::Warning => Style::new().fg(Color::Yellow),
            Tone::Bad => Style::new().fg(Color::Red),
        }
    }

    fn heading(self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colour { style.fg(Color::Cyan) } else { style }
    }

    /// A text that fits: cut, if it is too wide, and without what the locale cannot show.
    fn fit(self, text: &str, most: usize) -> String {
        let text = if self.ascii && !text.is_ascii() {
            text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
        } else {
            text.to_owned()
        };
        cut_to(&text, most, if self.ascii { '~' } else { '…' }).into_owned()
    }
}

/// Draws everything.
pub(super) fn draw(view: &View, dashboard: &Dashboard, look: Look, buffer: &mut Buffer) {
    let layout = view.layout(dashboard);
    tabs(view, dashboard, &layout, look, buffer);
    match &view.open {
        Some(open) => opened(view, open, dashboard, look, buffer),
        None => list(view, dashboard, &layout, look, buffer),
    }
    if let Some(y) = layout.footer_row {
        let line = footer(view, &layout);
        put(buffer, 0, y, &look.fit(&line, usize::from(view.area.width)), Style::new());
    }
    if view.is_help {
        help(view.area, look, buffer);
    }
}

fn put(buffer: &mut Buffer, x: u16, y: u16, text: &str, style: Style) {
    if buffer.area.contains((x, y).into()) {
        buffer.set_string(x, y, text, style);
    }
}

fn tabs(view: &View, dashboard: &Dashboard, layout: &Layout, look: Look, buffer: &mut Buffer) {
    let Some(y) = layout.tabs_row else { return };
    for (span, kind) in &layout.tabs {
        let style = match *kind == view.kind {
            true => look.heading().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        let room = usize::from(view.area.width.saturating_sub(span.start));
        put(buffer, span.start, y, &look.fit(&view.tab(*kind, dashboard), room), style);
    }
}

fn list(view: &View, dashboard: &Dashboard, layout: &Layout, look: Look, buffer: &mut Buffer) {
    let screen = usize::from(view.area.width);
    if let Some(y) = layout.totals_row {
        put(buffer, 0, y, &look.fit(&totals(dashboard), screen), Style::new());
    }
    if let Some(y) = layout.headings_row {
        for (span, column) in &layout.columns {
            heading(view, span, *column, y, look, buffer);
        }
    }
    let visible = layout.rows.iter().enumerate().skip(layout.offset);
    for ((index, row), y) in visible.zip(layout.body.y..layout.body.bottom()) {
        row_at(view.kind, row, layout, y, look, buffer);
        if layout.selected == Some(index) {
            let line = Rect::new(0, y, view.area.width, 1);
            buffer.set_style(line, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
    if layout.rows.is_empty() && layout.body.height > 0 {
        let what = view.kind.title().to_lowercase();
        let none = match layout.total {
            0 => format!("no {what}"),
            _ => format!("none of the {} {what} contains '{}'", layout.total, view.filter()),
        };
        put(buffer, 0, layout.body.y, &look.fit(&none, screen), Style::new());
    }
    for (note, y) in dashboard.notes().iter().zip(layout.notes.y..layout.notes.bottom()) {
        put(buffer, 0, y, &look.fit(note, screen), look.tone(Tone::Bad));
    }
}

/// A heading; the sorted column's has a mark.
fn heading(view: &View, span: &Range<u16>, column: usize, y: u16, look: Look, buffer: &mut Buffer) {
    let shown = &view.kind.columns()[column];
    let (sort, reversed) = view.sort();
    let mark = match (sort == Some(column), shown.is_text == reversed, look.ascii) {
        (false, ..) => "",
        (true, true, false) => "▼",
        (true, false, false) => "▲",
        (true, true, true) => "v",
        (true, false, true) => "^",
    };
    let text = format!("{}{mark}", shown.heading);
    aligned(&text, shown.is_text, span, y, look.heading(), buffer, |text, room| {
        // The heading's mark is no ASCII where the locale has more.
        cut_to(text, room, if look.ascii { '~' } else { '…' }).into_owned()
    });
}

fn row_at(kind: Kind, row: &Row, layout: &Layout, y: u16, look: Look, buffer: &mut Buffer) {
    for (span, column) in &layout.columns {
        let (cell, is_text) = (&row.cells[*column], kind.columns()[*column].is_text);
        let style = look.tone(cell.tone);
        aligned(&cell.text, is_text, span, y, style, buffer, |text, room| look.fit(text, room));
    }
}

/// Text at the left of its span, a number at the right.
fn aligned(
    text: &str,
    is_text: bool,
    span: &Range<u16>,
    y: u16,
    style: Style,
    buffer: &mut Buffer,
    fit: impl Fn(&str, usize) -> String,
) {
    let room = usize::from(span.end - span.start);
    let text = fit(text, room);
    let pad = if is_text { 0 } else { room.saturating_sub(width(&text)) };
    put(buffer, span.start + pad as u16, y, &text, style);
}

/// The sums over all queues.
fn totals(dashboard: &Dashboard) -> String {
    let totals = dashboard.totals();
    let mut line = format!(
        " ready {}  running {}  dead {}",
        grouped(totals.ready),
        grouped(totals.running),
        grouped(totals.dead)
    );
    if let Some([enqueued, completed, failed]) = totals.rates {
        let rate = |rate: f64| grouped(rate.round() as u64);
        line += &format!(
            "  in {}/s  done {}/s  failed {}/s",
            rate(enqueued),
            rate(completed),
            rate(failed)
        );
    }
    line
}

fn opened(view: &View, open: &Opened, dashboard: &Dashboard, look: Look, buffer: &mut Buffer) {
    let screen = usize::from(view.area.width);
    let title = printable(&detail::title(&open.subject)).into_owned();
    put(buffer, 0, 1, &look.fit(&title, screen), look.heading());
    let lines = detail::lines(&detail::blocks(open, dashboard, view.wall_ms), screen);
    let height = view.detail_height();
    // What is open may have become shorter than it was.
    let scroll = open.scroll.min(lines.len().saturating_sub(height));
    for ((line, is_title), y) in lines.iter().skip(scroll).take(height).zip(2..) {
        let style = if *is_title { look.heading() } else { Style::new() };
        put(buffer, 0, y, &look.fit(line, screen), style);
    }
}

fn footer(view: &View, layout: &Layout) -> String {
    if view.is_typing {
        return format!("/{}_  Enter keeps, Esc clears", view.filter());
    }
    if view.open.is_some() {
        return "Esc back  Up Down scroll  ? help  q quit".to_owned();
    }
    if !view.filter().is_empty() {
        let (shown, total) = (layout.rows.len(), layout.total);
        return format!("/{}  {shown} of {total}  Esc clears  ? help", view.filter());
    }
    let hidden = layout.rows.len().saturating_sub(layout.offset + usize::from(layout.body.height));
    let more = if hidden > 0 { format!("{hidden} more  ") } else { String::new() };
    match view.area.width {
        72.. => {
            format!("{more}Enter open  s sort  r reverse  / filter  Tab next list  ? help  q quit")
        }
        _ => format!("{more}Enter open  / filter  ? help  q quit"),
    }
}

/// The keys, over the middle of the screen.
fn help(area: Rect, look: Look, buffer: &mut Buffer) {
    let (corner, across, down) = if look.ascii { ("+", "-", "|") } else { ("", "─", "│") };
    let corner = |unicode| if look.ascii { corner } else { unicode };
    let inner = HELP.iter().map(|(_, does)| 12 + does.len()).max().unwrap_or_default() + 2;
    let (width, height) = (inner as u16 + 2, HELP.len() as u16 + 2);
    let x = area.width.saturating_sub(width) / 2;
    let y = area.height.saturating_sub(height) / 2;
    let rule = across.repeat(inner);
    let mut lines = vec![format!("{}{rule}{}", corner("┌"), corner("┐"))];
    lines.extend(HELP.iter().map(|(keys, does)| {
        let text = format!("{keys:<12}{does}");
        format!("{down} {text:<0$}{down}", inner - 1)
    }));
    lines.push(format!("{}{rule}{}", corner("└"), corner("┘")));
    for (line, y) in lines.iter().zip(y..area.height) {
        let room = usize::from(area.width.saturating_sub(x));
        put(buffer, x, y, &cut_to(line, room, ' '), Style::new());
    }
}
