//! A terminal that is drawn over, and left as it was found.

use std::io::{self, Read, Write, stdin, stdout};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr,
};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::oneshot;

/// The alternate screen, without a cursor, and without wrapping lines.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// The other way round.
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// What a terminal has that does not say.
const ROWS_USUAL: usize = 24;
/// The key that ends it, as Ctrl-C does.
const QUIT: u8 = b'q';
/// Nothing is drawn for so long after a stop was asked for: a process ends its last steps beside
/// the signal that stops it. One that still goes on then was not stopped, as nobody could have it
/// go on again.
const STOPS_WITHIN: Duration = Duration::from_millis(500);

/// Dropped, the terminal is as it was; so it is while the process is stopped by Ctrl-Z.
pub(super) struct Screen {
    found: Found,
    /// Told, or closed, by whoever reads the keys.
    quit: oneshot::Receiver<()>,
    /// SIGTSTP and SIGCONT.
    stop: Signals,
    go_on: Signals,
    /// The terminal is as it was since then, for somebody else.
    away: Option<Instant>,
    /// What it showed last.
    lines: Vec<String>,
}

impl Screen {
    pub(super) fn open() -> io::Result<Screen> {
        let (told, quit) = oneshot::channel();
        let stop = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
        let go_on = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        let found = Found(keys_at_once());
        if found.0.is_some() {
            std::thread::spawn(move || until_quit(told));
        }
        let screen = Screen { found, quit, stop, go_on, away: None, lines: Vec::new() };
        write(ENTER)?;
        Ok(screen)
    }

    /// How its keys were found: to be put back also where this is not dropped.
    pub(super) fn found(&self) -> Found {
        self.found.clone()
    }

    /// Waits until somebody wants no more of it; for ever where nobody types. Meanwhile it leaves
    /// the terminal and comes back to it as SIGTSTP and SIGCONT have it. Cancel safe.
    pub(super) async fn quit(&mut self) {
        loop {
            tokio::select! {
                told = &mut self.quit, if !self.quit.is_terminated() => if told.is_ok() {
                    return;
                },
                Some(()) = self.stop.recv() => self.leave(),
                Some(()) = self.go_on.recv() => self.come_back(),
                // Without keys, or after the last one, there is nobody who could.
                else => std::future::pending().await,
            }
        }
    }

    /// How many lines it has now.
    pub(super) fn rows(&self) -> usize {
        let rows = tcgetwinsize(stdout()).map_or(0, |size| usize::from(size.ws_row));
        if rows == 0 { ROWS_USUAL } else { rows }
    }

    /// Draws these lines over those before.
    pub(super) fn show(&mut self, lines: &[String]) -> io::Result<()> {
        self.lines = lines.to_vec();
        match self.away {
            None => write(&drawn(lines, self.rows())),
            Some(since) => {
                if since.elapsed() >= STOPS_WITHIN {
                    self.come_back();
                }
                Ok(())
            }
        }
    }

    /// Stops the process, with the terminal as it was.
    fn leave(&mut self) {
        self.found.restore();
        if self.away.is_none() {
            // A terminal that is gone needs nothing.
            let _ = write(LEAVE);
        }
        self.away = Some(Instant::now());
        // It stops as SIGTSTP would, were that not listened for: not where no shell is left that
        // could have it go on.
        let _ = kill_process(getpid(), Signal::TTOU);
    }

    /// It goes on. Somebody else may have the terminal for as long as this is in the background,
    /// and may have set its modes.
    fn come_back(&mut self) {
        if !in_foreground() {
            return;
        }
        if self.found.0.is_some() {
            keys_at_once();
        }
        if self.away.take().is_some() {
            // If it does not take this, it does not take the next picture either, and that is told.
            let _ = write(&format!("{ENTER}{}", drawn(&self.lines, self.rows())));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.found.restore();
        if self.away.is_none() {
            // A terminal that is gone needs nothing.
            let _ = write(LEAVE);
        }
    }
}

/// The modes of the terminal that keys come from, as they were found; none where they do not come
/// from one.
#[derive(Clone)]
pub(super) struct Found(Option<Termios>);

impl Found {
    /// Puts them back, also while the terminal takes no output.
    pub(super) fn restore(&self) {
        if let Some(modes) = &self.0
            && in_foreground()
        {
            let _ = tcsetattr(stdin(), OptionalActions::Now, modes);
        }
    }
}

/// Whether the terminal is this process's to change. Otherwise (`top &`, `timeout 10 longshore
/// top`, or after Ctrl-Z) whoever tries is stopped by SIGTTOU. A terminal that controls nobody here
/// stops nobody.
fn in_foreground() -> bool {
    let group = tcgetpgrp(stdin()).or_else(|_| tcgetpgrp(stdout()));
    group.map_or(true, |group| group == getpgrp())
}

/// Has keys come one by one and not be drawn into the picture; Ctrl-C stays a signal. The modes as
/// they were, if it could.
fn keys_at_once() -> Option<Termios> {
    if !in_foreground() {
        return None;
    }
    let found = tcgetattr(stdin()).ok()?;
    let mut modes = found.clone();
    modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
    tcsetattr(stdin(), OptionalActions::Now, &modes).ok()?;
    Some(found)
}

/// Reads keys, on a thread of its own, up to the one that ends it.
fn until_quit(told: oneshot::Sender<()>) {
    if stdin().lock().bytes().map_while(Result::ok).any(|key| key == QUIT) {
        // Nobody may want to know any more.
        let _ = told.send(());
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// From the upper left: each line up to its end, then nothing below. No line break after the last:
/// it would move them all up.
fn drawn(lines: &[String], rows: usize) -> String {
    let mut text = String::from("\x1b[H");
    for (place, line) in lines.iter().take(rows).enumerate() {
        if place > 0 {
            text.push_str("\r\n");
        }
        text.push_str(line);
        text.push_str("\x1b[K");
    }
    text.push_str("\x1b[J");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_lines_are_drawn_than_there_is_room_for() {
        let lines: Vec<String> = (1..=3).map(|n| n.to_string()).collect();
        assert_eq!(drawn(&lines, 2), "\x1b[H1\x1b[K\r\n2\x1b[K\x1b[J");
        assert_eq!(drawn(&[], 2), "\x1b[H\x1b[J");
    }
}
