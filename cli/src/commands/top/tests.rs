//! Pictures of the screen, and what keys and the mouse change.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use longshore::Path;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{
    Event, KeyCode, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};
use serde_json::json;

use super::dashboard::Dashboard;
use super::detail::Block;
use super::draw::{Look, draw};
use super::rows::Subject;
use super::view::{Effect, View};
use crate::output::Table;

const UNICODE: Look = Look { ascii: false, colour: true };
const NOW_MS: u64 = 1_800_000_000_000;

/// A system of two publishers, a lost one, two replicas, seven queues and three workers.
fn system() -> Dashboard {
    let mut dashboard = Dashboard::default();
    let path = |text: &str| Path::new(text).unwrap();
    let start = Instant::now();
    for second in 0..3u64 {
        for p in 1..=2u64 {
            let base = format!("/sys/publishers/publisher-{p}");
            dashboard.add_source(&path(&base));
            let states = json!({ "ready": 19_600 * p, "running": 56, "dead": 4 });
            dashboard.update(
                &path(&base),
                json!({ "name": format!("publisher-{p}"), "id": format!("{p}f2e3d4c5b6a7988"),
                    "uptime_s": 93_600, "queues": 7, "states": states, "room": "open",
                    "links": { "workers": 3, "producers": 2 }, "journal_bytes": 64 << 20,
                    "oldest_uncommitted_ms": 3, "paused": ["/jobs/video/**"] }),
            );
            let queue = |n: u64, path: &str| {
                json!({ "path": path, "ready": 700 * n * p, "running": 2 * n, "retrying": n,
                    "scheduled": 10 * n, "dead": n % 2, "enqueued_ever": 1_000 + 90 * n * second,
                    "completed_ever": 900 + 80 * n * second, "failed_ever": n * second,
                    "died_ever": n % 2, "redelivered_ever": 0, "oldest_ready_ms": 1_500 * n,
                    "subscriptions": 3, "credits": 40, "paused": n == 4, "closed": false })
            };
            let paths = [
                "/jobs/mail/welcome",
                "/jobs/mail/invoices/with-a-long-name-that-no-column-shows",
                "/jobs/thumbnails",
                "/jobs/video/transcode",
                "/jobs/größe/日本語",
                "/jobs/reports",
                "/jobs/search",
            ];
            let queues: Vec<_> = (1..).zip(paths).map(|(n, path)| queue(n, path)).collect();
            dashboard.update(&path(&format!("{base}/queues")), json!({ "queues": queues }));
            let worker = |n: u64| {
                json!({ "name": format!("worker-{n}"), "session": format!("{n}a2b3c4d"),
                    "patterns": ["/jobs/**"], "credits": 10 - n, "leases": 3 * n,
                    "since_ms": NOW_MS - 60_000 * n, "quiet": n == 3 })
            };
            let workers = json!({ "workers": [worker(1), worker(2), worker(3)], "more": 0 });
            dashboard.update(&path(&format!("{base}/workers")), workers);
        }
        dashboard.sample(start + Duration::from_secs(second));
    }
    let lost = path("/sys/publishers/publisher-3");
    dashboard.add_source(&lost);
    dashboard.lost(&lost, "the link ended");
    for r in 1..=2u64 {
        let base = path(&format!("/sys/replicas/replica-{r}"));
        dashboard.add_source(&base);
        dashboard.update(
            &base,
            json!({ "name": format!("replica-{r}"), "uptime_s": 7_200, "warming": r == 2,
                "publishers": 3, "hidden": 0, "paths": 21, "connections": 9, "watches": 4,
                "reads": 12_345, "writes": 678, "memory_bytes": 5 << 20 }),
        );
    }
    dashboard.set_publishers(Vec::new());
    dashboard
}

struct Screen {
    view: View,
    dashboard: Dashboard,
    look: Look,
}

impl Screen {
    fn new(width: u16, height: u16) -> Screen {
        let view = View::new(Rect::new(0, 0, width, height), NOW_MS);
        Screen { view, dashboard: system(), look: UNICODE }
    }

    fn press(&mut self, code: KeyCode) -> Effect {
        self.view.step(&Event::Key(code.into()), &self.dashboard)
    }

    fn type_keys(&mut self, keys: &str) {
        keys.chars().for_each(|key| {
            self.press(KeyCode::Char(key));
        });
    }

    fn mouse(&mut self, kind: MouseEventKind, column: u16, row: u16) -> Effect {
        let mouse = MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE };
        self.view.step(&Event::Mouse(mouse), &self.dashboard)
    }

    fn click(&mut self, column: u16, row: u16) -> Effect {
        self.mouse(MouseEventKind::Down(MouseButton::Left), column, row)
    }

    fn buffer(&self) -> Buffer {
        let area = self.view.area;
        let mut terminal = Terminal::new(TestBackend::new(area.width, area.height)).unwrap();
        let drawn = |frame: &mut ratatui::Frame<'_>| {
            draw(&self.view, &self.dashboard, self.look, frame.buffer_mut());
        };
        terminal.draw(drawn).unwrap();
        terminal.backend().buffer().clone()
    }

    fn lines(&self) -> Vec<String> {
        let buffer = self.buffer();
        let row = |y: u16| {
            let mut line = String::new();
            let mut x = 0;
            while x < buffer.area.width {
                let symbol = buffer[(x, y)].symbol();
                line.push_str(symbol);
                x += crate::output::width(symbol).max(1) as u16;
            }
            line.trim_end().to_owned()
        };
        (0..buffer.area.height).map(row).collect()
    }

    /// The reversed row below the tabs.
    fn selected(&self) -> String {
        let buffer = self.buffer();
        let is_selected = |y: &usize| buffer[(0, *y as u16)].modifier.contains(Modifier::REVERSED);
        let row = (1..usize::from(buffer.area.height)).find(is_selected);
        row.map(|y| self.lines()[y].clone()).unwrap_or_default()
    }

    /// Compares the screen with the picture of this name; `LONGSHORE_BLESS=1` rewrites it.
    #[track_caller]
    fn is_as(&self, name: &str) {
        let file = FilePath::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("src/commands/top/pictures/{name}.txt"));
        let shown = self.lines().join("\n") + "\n";
        if std::env::var_os("LONGSHORE_BLESS").is_some() {
            std::fs::write(&file, &shown).unwrap();
        }
        let wanted = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(shown == wanted, "{name} differs; shown:\n{shown}\nexpected:\n{wanted}");
    }
}

#[test]
fn every_list_is_as_pictured_at_three_sizes() {
    for (width, height) in [(120, 40), (80, 24), (40, 12)] {
        let mut screen = Screen::new(width, height);
        for (key, list) in
            [('1', "queues"), ('2', "workers"), ('3', "publishers"), ('4', "replicas")]
        {
            screen.type_keys(&key.to_string());
            screen.is_as(&format!("{list}-{width}x{height}"));
        }
        screen.type_keys("1?");
        screen.is_as(&format!("help-{width}x{height}"));
    }
}

#[test]
fn an_open_queue_and_worker_are_as_pictured() {
    for (width, height) in [(120, 40), (80, 24), (40, 12)] {
        let mut screen = Screen::new(width, height);
        screen.press(KeyCode::Enter);
        let subject = Subject::Queue("/jobs/search".to_owned());
        assert_eq!(screen.view.open.as_ref().unwrap().subject, subject, "the busiest is first");
        let mut jobs = Table::new(&["job", "state", "attempt", "age", "outcome"]);
        jobs.row(
            ["01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6", "running", "1/20", "5s", "at worker-1"]
                .map(str::to_owned),
        );
        let dead = Table::new(&["jobs"]);
        let report = vec![Block::table("running jobs", &jobs), Block::table("dead letters", &dead)];
        screen.view.set_report(&subject, report);
        screen.is_as(&format!("queue-{width}x{height}"));
        screen.press(KeyCode::End);
        assert!(screen.lines().iter().any(|line| line == "dead letters: none"));
        screen.type_keys("2");
        screen.press(KeyCode::Enter);
        screen.is_as(&format!("worker-{width}x{height}"));
        screen.press(KeyCode::Esc);
        assert!(screen.view.open.is_none());
    }
}

#[test]
fn a_c_locale_gets_ascii_and_no_color_gets_none() {
    let mut screen = Screen::new(80, 24);
    screen.look = Look { ascii: true, colour: false };
    for keys in ["s", "3", "4", "2", "1?"] {
        screen.type_keys(keys);
        let lines = screen.lines();
        assert!(lines.iter().all(|line| line.is_ascii()), "{lines:?}");
        let buffer = screen.buffer();
        assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset), "{keys}");
    }
    screen.look = UNICODE;
    assert!(screen.buffer().content.iter().any(|cell| cell.fg != Color::Reset));
}

#[test]
fn keys_sort_reverse_filter_and_select() {
    let mut screen = Screen::new(80, 24);
    let first = |screen: &Screen| screen.lines()[3].split_whitespace().next().unwrap().to_owned();
    assert_eq!(first(&screen), "/jobs/search", "the busiest");
    screen.type_keys("s");
    assert_eq!(first(&screen), "/jobs/größe/日本語", "by name");
    screen.type_keys("r");
    assert_eq!(first(&screen), "/jobs/video/transc…");
    screen.type_keys("ssr");
    assert_eq!(first(&screen), "/jobs/mail/welcome", "the fewest running");
    screen.type_keys("S");
    assert_eq!(first(&screen), "/jobs/search", "the most ready");
    // The selection follows its row.
    screen.type_keys("jj");
    let selected = screen.selected();
    screen.type_keys("r");
    assert_eq!(screen.selected(), selected);
    // Letters are text now, not keys.
    screen.type_keys("/MAILq");
    assert!(screen.lines()[3].starts_with("none of the 7 queues contains 'MAILq'"));
    screen.press(KeyCode::Backspace);
    screen.press(KeyCode::Enter);
    let shown = screen.lines();
    assert_eq!(shown.iter().filter(|line| line.starts_with("/jobs/")).count(), 2, "{shown:?}");
    assert!(shown[23].starts_with("/MAIL  2 of 7"), "{shown:?}");
    screen.press(KeyCode::Esc);
    assert_eq!(screen.lines().iter().filter(|line| line.starts_with("/jobs/")).count(), 7);
    assert_eq!(screen.press(KeyCode::Char('q')), Effect::Quit);
}

#[test]
fn the_mouse_selects_opens_scrolls_and_sorts() {
    let mut screen = Screen::new(80, 12);
    // A heading sorts, once more reverses.
    screen.click(1, 2);
    assert!(screen.lines()[3].starts_with("/jobs/größe"), "{:?}", screen.lines());
    screen.click(1, 2);
    assert!(screen.lines()[3].starts_with("/jobs/video"), "{:?}", screen.lines());
    screen.click(5, 4);
    assert!(screen.selected().starts_with("/jobs/thumbnails"), "{}", screen.selected());
    let opened = screen.click(5, 4);
    assert_eq!(opened, Effect::Query(Subject::Queue("/jobs/thumbnails".to_owned())));
    screen.mouse(MouseEventKind::ScrollDown, 0, 0);
    assert_eq!(screen.view.open.as_ref().unwrap().scroll, 2, "to the end, and no further");
    // A tab closes it.
    let workers = screen.lines()[0].find("2 Workers").unwrap() as u16;
    screen.click(workers, 0);
    assert!(screen.view.open.is_none() && screen.lines()[3].starts_with("worker-1"));
    screen.mouse(MouseEventKind::ScrollDown, 0, 0);
    assert!(screen.selected().contains("publisher-2"), "three rows: {}", screen.selected());
}

#[test]
fn a_gone_row_leaves_the_selection_where_it_was() {
    let mut screen = Screen::new(80, 24);
    screen.type_keys("4G");
    assert!(screen.selected().starts_with("replica-2"));
    screen.press(KeyCode::Enter);
    screen.dashboard.remove(&Path::new("/sys/replicas/replica-2").unwrap());
    assert!(screen.lines().iter().any(|line| line == "It is gone."));
    screen.press(KeyCode::Esc);
    assert!(screen.selected().starts_with("replica-1"));
}

#[test]
fn any_size_is_drawn_and_the_selection_stays_visible() {
    let mut screen = Screen::new(80, 24);
    for width in [0, 1, 2, 7, 20, 40, 300] {
        for height in [0, 1, 2, 3, 4, 7, 9, 100] {
            screen.view.step(&Event::Resize(width, height), &screen.dashboard);
            for keys in ["G", "g", "?", "?", "2G", "3", "1"] {
                screen.type_keys(keys);
                let _ = screen.buffer();
            }
            for code in [KeyCode::Enter, KeyCode::End, KeyCode::Esc] {
                screen.press(code);
                let _ = screen.buffer();
            }
            screen.type_keys("G");
            assert!(height < 4 || width < 7 || !screen.selected().is_empty(), "{width}x{height}");
        }
    }
}
