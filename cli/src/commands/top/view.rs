//! The state of the screen: which list, in which order, what is selected or open. Pure: an event
//! changes it, and [`draw`](super::draw) shows it.

use std::ops::Range;

use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui::layout::{Position, Rect};

use super::dashboard::Dashboard;
use super::detail::{self, Block};
use super::rows::{Kind, Row, Subject, rows};
use crate::output::width;

/// The longest filter in characters.
const FILTER_CHARS_MAX: usize = 100;
/// Rows that the mouse wheel moves.
const WHEEL_ROWS: isize = 3;
/// The least width of the first column when others have to go.
const NAME_WIDTH_MIN: usize = 16;
/// Blanks between two columns.
const GAP: usize = 2;
/// The most lines of notes below a list.
const NOTES_MAX: usize = 2;

/// What the program has to do after an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    Draw,
    Quit,
    /// Look up more about the subject, for [`View::set_report`].
    Query(Subject),
}

/// The screen.
pub(super) struct View {
    pub(super) area: Rect,
    /// The wall clock in milliseconds since 1970, for ages.
    pub(super) wall_ms: u64,
    pub(super) kind: Kind,
    lists: [List; 4],
    pub(super) is_typing: bool,
    pub(super) is_help: bool,
    pub(super) open: Option<Opened>,
}

/// How a list is shown.
#[derive(Default)]
struct List {
    /// None for the natural order.
    sort: Option<usize>,
    reversed: bool,
    filter: String,
    /// The selected row, which stays selected wherever it moves.
    selected: Option<String>,
    /// Where it was last; what is selected once it is gone.
    index: usize,
    /// The first visible row.
    offset: usize,
}

/// An open subject.
pub(super) struct Opened {
    pub(super) subject: Subject,
    pub(super) scroll: usize,
    /// What was looked up about it; empty until then.
    pub(super) report: Vec<Block>,
}

/// The places of a list on the screen.
pub(super) struct Layout {
    pub(super) tabs: Vec<(Range<u16>, Kind)>,
    pub(super) tabs_row: Option<u16>,
    pub(super) totals_row: Option<u16>,
    pub(super) headings_row: Option<u16>,
    /// The visible columns.
    pub(super) columns: Vec<(Range<u16>, usize)>,
    pub(super) body: Rect,
    pub(super) notes: Rect,
    pub(super) footer_row: Option<u16>,
    pub(super) rows: Vec<Row>,
    /// Rows before the filter.
    pub(super) total: usize,
    pub(super) selected: Option<usize>,
    pub(super) offset: usize,
}

impl View {
    pub(super) fn new(area: Rect, wall_ms: u64) -> View {
        View {
            area,
            wall_ms,
            kind: Kind::default(),
            lists: Default::default(),
            is_typing: false,
            is_help: false,
            open: None,
        }
    }

    fn list(&self) -> &List {
        &self.lists[self.kind as usize]
    }

    fn list_mut(&mut self) -> &mut List {
        &mut self.lists[self.kind as usize]
    }

    pub(super) fn filter(&self) -> &str {
        &self.list().filter
    }

    /// The column that the list is sorted by, and whether it is reversed.
    pub(super) fn sort(&self) -> (Option<usize>, bool) {
        (self.list().sort, self.list().reversed)
    }

    /// Stores what was looked up, unless the subject was closed meanwhile.
    pub(super) fn set_report(&mut self, subject: &Subject, report: Vec<Block>) {
        if let Some(open) = self.open.as_mut().filter(|open| open.subject == *subject) {
            open.report = report;
        }
    }

    /// Handles an event.
    pub(super) fn step(&mut self, event: &Event, dashboard: &Dashboard) -> Effect {
        let effect = match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.key(*key, dashboard),
            Event::Mouse(mouse) => self.mouse(*mouse, dashboard),
            Event::Resize(width, height) => {
                self.area = Rect::new(0, 0, *width, *height);
                Effect::Draw
            }
            _ => Effect::Draw,
        };
        let offset = self.layout(dashboard).offset;
        self.list_mut().offset = offset;
        effect
    }

    fn key(&mut self, key: KeyEvent, dashboard: &Dashboard) -> Effect {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Effect::Quit;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Effect::Draw;
        }
        if self.is_help {
            self.is_help = false;
            return if key.code == KeyCode::Char('q') { Effect::Quit } else { Effect::Draw };
        }
        let page = isize::from(i16::try_from(self.area.height).unwrap_or(i16::MAX)) - 5;
        match key.code {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Char('?') | KeyCode::F(1) => self.is_help = true,
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1, dashboard),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1, dashboard),
            KeyCode::PageUp => self.move_by(-page.max(1), dashboard),
            KeyCode::PageDown | KeyCode::Char(' ') => self.move_by(page.max(1), dashboard),
            KeyCode::Home | KeyCode::Char('g') => self.move_by(isize::MIN, dashboard),
            KeyCode::End | KeyCode::Char('G') => self.move_by(isize::MAX, dashboard),
            KeyCode::Esc | KeyCode::Backspace if self.open.is_some() => self.open = None,
            KeyCode::Esc => self.list_mut().filter.clear(),
            KeyCode::Char(digit @ '1'..='4') => {
                self.show(Kind::ALL[digit as usize - '1' as usize]);
            }
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.turn(1),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => self.turn(3),
            _ if self.open.is_some() => {}
            KeyCode::Enter => return self.open_selected(dashboard),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => self.sort_by_next(true),
            KeyCode::Char('S') => self.sort_by_next(false),
            KeyCode::Char('r') => self.list_mut().reversed ^= true,
            _ => {}
        }
        Effect::Draw
    }

    fn type_filter(&mut self, code: KeyCode) {
        let filter = &mut self.list_mut().filter;
        match code {
            KeyCode::Char(c) if filter.chars().count() < FILTER_CHARS_MAX => filter.push(c),
            KeyCode::Backspace => {
                filter.pop();
            }
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                filter.clear();
                self.is_typing = false;
            }
            _ => {}
        }
    }

    fn mouse(&mut self, mouse: MouseEvent, dashboard: &Dashboard) -> Effect {
        match mouse.kind {
            MouseEventKind::ScrollUp => self.move_by(-WHEEL_ROWS, dashboard),
            MouseEventKind::ScrollDown => self.move_by(WHEEL_ROWS, dashboard),
            MouseEventKind::Down(MouseButton::Left) if self.is_help => self.is_help = false,
            MouseEventKind::Down(MouseButton::Left) => {
                return self.click(Position::new(mouse.column, mouse.row), dashboard);
            }
            _ => {}
        }
        Effect::Draw
    }

    /// A click shows a list, sorts by a heading, selects a row, or opens the selected row.
    fn click(&mut self, at: Position, dashboard: &Dashboard) -> Effect {
        let layout = self.layout(dashboard);
        if layout.tabs_row == Some(at.y) {
            if let Some((_, kind)) = layout.tabs.iter().find(|(span, _)| span.contains(&at.x)) {
                self.show(*kind);
            }
        } else if self.open.is_some() {
        } else if layout.headings_row == Some(at.y) {
            if let Some((_, column)) = layout.columns.iter().find(|(span, _)| span.contains(&at.x))
            {
                let list = self.list_mut();
                list.reversed = list.sort == Some(*column) && !list.reversed;
                list.sort = Some(*column);
            }
        } else if layout.body.contains(at) {
            let index = layout.offset + usize::from(at.y - layout.body.y);
            if let Some(row) = layout.rows.get(index) {
                if layout.selected == Some(index) {
                    return self.open(row.subject.clone());
                }
                let list = self.list_mut();
                (list.selected, list.index) = (Some(row.key.clone()), index);
            }
        }
        Effect::Draw
    }

    fn show(&mut self, kind: Kind) {
        (self.kind, self.open) = (kind, None);
    }

    fn turn(&mut self, by: usize) {
        self.show(Kind::ALL[(self.kind as usize + by) % Kind::ALL.len()]);
    }

    fn open_selected(&mut self, dashboard: &Dashboard) -> Effect {
        let layout = self.layout(dashboard);
        match layout.selected.and_then(|index| layout.rows.get(index)) {
            Some(row) => self.open(row.subject.clone()),
            None => Effect::Draw,
        }
    }

    fn open(&mut self, subject: Subject) -> Effect {
        self.open = Some(Opened { subject: subject.clone(), scroll: 0, report: Vec::new() });
        Effect::Query(subject)
    }

    /// Moves the selection, or scrolls what is open.
    fn move_by(&mut self, by: isize, dashboard: &Dashboard) {
        if self.open.is_some() {
            let most = self.detail_lines(dashboard).saturating_sub(self.detail_height());
            if let Some(open) = &mut self.open {
                open.scroll = open.scroll.saturating_add_signed(by).min(most);
            }
            return;
        }
        let layout = self.layout(dashboard);
        let Some(selected) = layout.selected else { return };
        let index = selected.saturating_add_signed(by).min(layout.rows.len() - 1);
        let list = self.list_mut();
        (list.selected, list.index) = (Some(layout.rows[index].key.clone()), index);
    }

    /// The natural order, each column, and around.
    fn sort_by_next(&mut self, forward: bool) {
        let columns = self.kind.columns().len();
        let list = self.list_mut();
        list.sort = match (list.sort, forward) {
            (None, true) => Some(0),
            (None, false) => Some(columns - 1),
            (Some(column), true) => Some(column + 1).filter(|next| *next < columns),
            (Some(column), false) => column.checked_sub(1),
        };
        list.reversed = false;
    }

    fn detail_lines(&self, dashboard: &Dashboard) -> usize {
        let Some(open) = &self.open else { return 0 };
        let blocks = detail::blocks(open, dashboard, self.wall_ms);
        detail::lines(&blocks, usize::from(self.area.width)).len()
    }

    /// Rows of an open subject: all but the tabs, its name and the footer.
    pub(super) fn detail_height(&self) -> usize {
        usize::from(self.area.height).saturating_sub(3)
    }

    /// The list's rows in their order, without those that the filter excludes.
    fn rows(&self, dashboard: &Dashboard) -> (Vec<Row>, usize) {
        let mut all = rows(self.kind, dashboard, self.wall_ms);
        let total = all.len();
        let list = self.list();
        if let Some(column) = list.sort {
            let is_text = self.kind.columns()[column].is_text;
            all.sort_by(|a, b| a.compare(b, column, is_text));
        }
        if list.reversed {
            all.reverse();
        }
        if !list.filter.is_empty() {
            let filter = list.filter.to_lowercase();
            all.retain(|row| row.contains(&filter));
        }
        (all, total)
    }

    /// The places of everything on the screen. A low screen has no totals, notes or footer.
    pub(super) fn layout(&self, dashboard: &Dashboard) -> Layout {
        let area = self.area;
        let (rows, total) = self.rows(dashboard);
        let mut top = area.y;
        let mut row_if = |shown: bool| {
            shown.then(|| {
                top += 1;
                top - 1
            })
        };
        let tabs_row = row_if(area.height >= 4);
        let totals_row = row_if(area.height >= 8);
        let headings_row = row_if(area.height >= 2);
        let footer = u16::from(area.height >= 3);
        let notes = dashboard.notes().len().min(NOTES_MAX) as u16;
        let notes = if area.height >= 10 { notes } else { 0 };
        let height = (area.bottom() - top).saturating_sub(footer + notes);
        let body = Rect::new(area.x, top, area.width, height);
        let list = self.list();
        let by_key = |key: &String| rows.iter().position(|row| row.key == *key);
        let last = rows.len().checked_sub(1);
        let selected = list.selected.as_ref().and_then(by_key).or(last.map(|l| list.index.min(l)));
        let visible = usize::from(height).max(1);
        let index = selected.unwrap_or_default();
        let offset = list.offset.min(index).max((index + 1).saturating_sub(visible));
        Layout {
            tabs: self.tabs(dashboard),
            tabs_row,
            totals_row,
            headings_row,
            columns: columns(self.kind, &rows, usize::from(area.width)),
            body,
            notes: Rect::new(area.x, body.bottom(), area.width, notes),
            footer_row: (footer == 1).then(|| area.bottom() - 1),
            offset: offset.min(rows.len().saturating_sub(visible)),
            rows,
            total,
            selected,
        }
    }

    /// The text of a list's tab.
    pub(super) fn tab(&self, kind: Kind, dashboard: &Dashboard) -> String {
        let key = kind as usize + 1;
        match self.area.width {
            72.. => format!(" {key} {} {} ", kind.title(), dashboard.len(kind)),
            48..72 => format!(" {key} {} ", kind.title()),
            _ => format!("{key} {} ", kind.title().get(..7).unwrap_or(kind.title())),
        }
    }

    fn tabs(&self, dashboard: &Dashboard) -> Vec<(Range<u16>, Kind)> {
        let mut x = self.area.x;
        let place = |kind: Kind| {
            let from = x;
            x = x.saturating_add(self.tab(kind, dashboard).len() as u16);
            (from..x, kind)
        };
        Kind::ALL.into_iter().map(place).collect()
    }
}

/// The columns that fit: all, or those with the lowest ranks. The first column takes what is left.
fn columns(kind: Kind, rows: &[Row], screen: usize) -> Vec<(Range<u16>, usize)> {
    let columns = kind.columns();
    let natural = |column: usize| {
        let cells = rows.iter().map(|row| width(&row.cells[column].text));
        // With room for the mark of the sorted column.
        cells.max().unwrap_or_default().max(columns[column].heading.len() + 1)
    };
    let widths: Vec<usize> = (0..columns.len()).map(natural).collect();
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let least = |shown: &[usize]| {
        let others: usize = shown.iter().skip(1).map(|column| widths[*column] + GAP).sum();
        (widths[0].min(NAME_WIDTH_MIN), others)
    };
    loop {
        let (name, others) = least(&shown);
        if name + others <= screen || shown.len() == 1 {
            break;
        }
        let worst = (1..shown.len()).max_by_key(|at| columns[shown[*at]].rank);
        worst.map(|at| shown.remove(at));
    }
    let (_, others) = least(&shown);
    let name = widths[0].min(screen.saturating_sub(others));
    let mut x = 0;
    let place = |column: usize| {
        let from = x;
        let to = from + if column == 0 { name } else { widths[column] };
        x = to + GAP;
        (from as u16..to as u16, column)
    };
    shown.into_iter().map(place).collect()
}
