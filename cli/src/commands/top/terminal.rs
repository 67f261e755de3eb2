//! A terminal in the alternate screen, restored on exit, at a panic, and while suspended.

use std::io::{self, Stdout, Write, stdin, stdout};
use std::time::{Duration, Instant};

use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event};
use ratatui::layout::Rect;
use ratatui::{TerminalOptions, Viewport};
use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr,
};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::mpsc;

use super::draw::Look;

/// Enters the alternate screen, hides the cursor, disables line wrapping, and asks for clicks and
/// the wheel of the mouse, but not for its movements.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[?1000h\x1b[?1006h";
/// Reverts [`ENTER`].
const LEAVE: &str = "\x1b[?1006l\x1b[?1000l\x1b[?7h\x1b[?25h\x1b[?1049l";
/// The size of a terminal that does not report it.
const SIZE_DEFAULT: (u16, u16) = (80, 24);
/// Events that may wait to be handled.
const EVENTS_WAITING_MAX: usize = 64;
/// Nothing is drawn for this long after SIGTSTP: the process may still run until the stop takes
/// effect. A process that still runs afterwards was not stopped, because no shell could resume it.
const SUSPEND_TIMEOUT: Duration = Duration::from_millis(500);

/// The terminal of `longshore top`. It is restored on drop, and while Ctrl-Z has stopped the
/// process.
pub(super) struct Terminal {
    saved: SavedModes,
    screen: ratatui::Terminal<CrosstermBackend<Stdout>>,
    /// Keys, the mouse, new sizes; closed when the input ends.
    events: mpsc::Receiver<Event>,
    /// SIGTSTP, SIGCONT and SIGWINCH.
    suspend_signal: Signals,
    continue_signal: Signals,
    resize_signal: Signals,
    /// The time since which the terminal is restored for other programs.
    suspended_since: Option<Instant>,
}

impl Terminal {
    pub(super) fn open() -> io::Result<Terminal> {
        let (sender, events) = mpsc::channel(EVENTS_WAITING_MAX);
        let suspend_signal = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
        let continue_signal = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        let resize_signal = signal(SignalKind::window_change())?;
        let saved = SavedModes(enable_raw_keys());
        if saved.0.is_some() {
            std::thread::spawn(move || read_events(&sender));
        }
        let viewport = Viewport::Fixed(size());
        let backend = CrosstermBackend::new(stdout());
        let screen = ratatui::Terminal::with_options(backend, TerminalOptions { viewport })?;
        let terminal = Terminal {
            saved: saved.clone(),
            screen,
            events,
            suspend_signal,
            continue_signal,
            resize_signal,
            suspended_since: None,
        };
        restore_at_panic(saved);
        write(ENTER)?;
        Ok(terminal)
    }

    /// The saved modes, to restore them on an exit that runs no destructors.
    pub(super) fn saved_modes(&self) -> SavedModes {
        self.saved.clone()
    }

    /// The next event; without keyboard input only new sizes. Meanwhile it suspends and resumes the
    /// terminal at SIGTSTP and SIGCONT. Cancel safe.
    pub(super) async fn event(&mut self) -> Event {
        loop {
            tokio::select! {
                // This process reads the size itself.
                Some(event) = self.events.recv() => if !matches!(event, Event::Resize(..)) {
                    return event;
                },
                Some(()) = self.resize_signal.recv() => return self.resized(),
                Some(()) = self.suspend_signal.recv() => self.suspend(),
                Some(()) = self.continue_signal.recv() => {
                    self.resume();
                    return self.resized();
                }
                else => std::future::pending().await,
            }
        }
    }

    fn resized(&self) -> Event {
        let size = size();
        Event::Resize(size.width, size.height)
    }

    /// Draws what `draw` puts into an empty buffer; only changes are sent to the terminal.
    pub(super) fn draw(&mut self, area: Rect, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        if let Some(since) = self.suspended_since {
            if since.elapsed() >= SUSPEND_TIMEOUT {
                self.resume();
            }
            if self.suspended_since.is_some() {
                return Ok(());
            }
        }
        if self.screen.get_frame().area() != area {
            self.screen.resize(area)?;
        }
        self.screen.draw(|frame| draw(frame.buffer_mut()))?;
        Ok(())
    }

    /// Restores the terminal and stops the process.
    fn suspend(&mut self) {
        self.saved.restore();
        if self.suspended_since.is_none() {
            // A closed terminal needs no restoring.
            let _ = write(LEAVE);
        }
        self.suspended_since = Some(Instant::now());
        // Stops the process as an unhandled SIGTSTP would, which has no effect if no shell could
        // resume it.
        let _ = kill_process(getpid(), Signal::TTOU);
    }

    /// Takes over the terminal again, unless the process is in the background. Other programs may
    /// have changed the terminal's modes in the meantime.
    fn resume(&mut self) {
        if !in_foreground() {
            return;
        }
        if self.saved.0.is_some() {
            enable_raw_keys();
        }
        if self.suspended_since.take().is_some() {
            // If this fails, drawing the next frame fails too and is reported.
            let _ = write(ENTER);
            // All is drawn anew. (`clear` would ask the terminal for its cursor, and take keys for
            // the answer.)
            let _ = self.screen.resize(size());
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.saved.restore();
        if self.suspended_since.is_none() {
            // A closed terminal needs no restoring.
            let _ = write(LEAVE);
        }
    }
}

/// The current size.
pub(super) fn size() -> Rect {
    let size = tcgetwinsize(stdout()).map_or((0, 0), |size| (size.ws_col, size.ws_row));
    let (width, height) = if size.0 == 0 || size.1 == 0 { SIZE_DEFAULT } else { size };
    Rect::new(0, 0, width, height)
}

/// Whether standard output is a terminal that can move its cursor.
pub(super) fn is_screen() -> bool {
    let dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    io::IsTerminal::is_terminal(&stdout()) && !dumb
}

/// How to show things here: by the locale and <https://no-color.org>.
pub(super) fn look() -> Look {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    let locale = locale.unwrap_or_default().to_ascii_lowercase();
    let ascii = !(locale.contains("utf-8") || locale.contains("utf8"));
    Look { ascii, colour: set("NO_COLOR").is_none() }
}

/// The original modes of the input terminal; none if standard input is not a terminal.
#[derive(Clone)]
pub(super) struct SavedModes(Option<Termios>);

impl SavedModes {
    /// Restores the modes, also while the terminal blocks output.
    pub(super) fn restore(&self) {
        if let Some(modes) = &self.0
            && in_foreground()
        {
            let _ = tcsetattr(stdin(), OptionalActions::Now, modes);
        }
    }
}

/// Restores the terminal before a panic is printed: the alternate screen would hide the message.
fn restore_at_panic(saved: SavedModes) {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        saved.restore();
        let _ = write(LEAVE);
        print(panic);
    }));
}

/// Whether this process may change the terminal. A background process (`top &`, `timeout 10
/// longshore top`, or after Ctrl-Z) that tries is stopped by SIGTTOU. A terminal that is not the
/// controlling one stops no process.
fn in_foreground() -> bool {
    let group = tcgetpgrp(stdin()).or_else(|_| tcgetpgrp(stdout()));
    group.map_or(true, |group| group == getpgrp())
}

/// Disables line buffering and echo; Ctrl-C and Ctrl-Z remain signals, unlike in crossterm's raw
/// mode. Returns the original modes on success.
fn enable_raw_keys() -> Option<Termios> {
    if !in_foreground() {
        return None;
    }
    let saved = tcgetattr(stdin()).ok()?;
    let mut modes = saved.clone();
    modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
    // Ctrl-\ would end the program without restoring the terminal.
    modes.special_codes[SpecialCodeIndex::VQUIT] = 0;
    tcsetattr(stdin(), OptionalActions::Now, &modes).ok()?;
    Some(saved)
}

/// Reads events, on their own thread, until the input or the program ends.
fn read_events(events: &mpsc::Sender<Event>) {
    while let Ok(event) = event::read() {
        if events.blocking_send(event).is_err() {
            return;
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
