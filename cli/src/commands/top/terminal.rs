//! A terminal in the alternate screen, restored on exit and while suspended.

use std::io::{self, Read, Write, stdin, stdout};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr,
};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::oneshot;

/// Enters the alternate screen, hides the cursor, and disables line wrapping.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// Reverts [`ENTER`].
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// The height of a terminal that does not report it.
const ROWS_DEFAULT: usize = 24;
/// The key that quits, as Ctrl-C does.
const QUIT_KEY: u8 = b'q';
/// Nothing is drawn for this long after SIGTSTP: the process may still run until the stop takes
/// effect. A process that still runs afterwards was not stopped, because no shell could resume it.
const SUSPEND_TIMEOUT: Duration = Duration::from_millis(500);

/// The terminal of `longshore top`. It is restored on drop, and while Ctrl-Z has stopped the
/// process.
pub(super) struct Terminal {
    saved: SavedModes,
    /// Receives a message at the quit key; closed when the input ends.
    quit: oneshot::Receiver<()>,
    /// SIGTSTP and SIGCONT.
    suspend_signal: Signals,
    continue_signal: Signals,
    /// The time since which the terminal is restored for other programs.
    suspended_since: Option<Instant>,
    /// The lines shown last.
    lines: Vec<String>,
}

impl Terminal {
    pub(super) fn open() -> io::Result<Terminal> {
        let (quit_sender, quit) = oneshot::channel();
        let suspend_signal = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
        let continue_signal = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        let saved = SavedModes(enable_raw_keys());
        if saved.0.is_some() {
            std::thread::spawn(move || read_keys_until_quit(quit_sender));
        }
        let terminal = Terminal {
            saved,
            quit,
            suspend_signal,
            continue_signal,
            suspended_since: None,
            lines: Vec::new(),
        };
        write(ENTER)?;
        Ok(terminal)
    }

    /// The saved modes, to restore them on an exit that runs no destructors.
    pub(super) fn saved_modes(&self) -> SavedModes {
        self.saved.clone()
    }

    /// Waits for the quit key; forever without keyboard input. Meanwhile it suspends and resumes
    /// the terminal at SIGTSTP and SIGCONT. Cancel safe.
    pub(super) async fn quit(&mut self) {
        loop {
            tokio::select! {
                quit = &mut self.quit, if !self.quit.is_terminated() => if quit.is_ok() {
                    return;
                },
                Some(()) = self.suspend_signal.recv() => self.suspend(),
                Some(()) = self.continue_signal.recv() => self.resume(),
                // Without keyboard input there is no quit key.
                else => std::future::pending().await,
            }
        }
    }

    /// The current height.
    pub(super) fn rows(&self) -> usize {
        let rows = tcgetwinsize(stdout()).map_or(0, |size| usize::from(size.ws_row));
        if rows == 0 { ROWS_DEFAULT } else { rows }
    }

    /// Draws these lines over the previous ones.
    pub(super) fn show(&mut self, lines: &[String]) -> io::Result<()> {
        self.lines = lines.to_vec();
        match self.suspended_since {
            None => write(&frame(lines, self.rows())),
            Some(since) => {
                if since.elapsed() >= SUSPEND_TIMEOUT {
                    self.resume();
                }
                Ok(())
            }
        }
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
            let _ = write(&format!("{ENTER}{}", frame(&self.lines, self.rows())));
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

/// Whether this process may change the terminal. A background process (`top &`, `timeout 10
/// longshore top`, or after Ctrl-Z) that tries is stopped by SIGTTOU. A terminal that is not the
/// controlling one stops no process.
fn in_foreground() -> bool {
    let group = tcgetpgrp(stdin()).or_else(|_| tcgetpgrp(stdout()));
    group.map_or(true, |group| group == getpgrp())
}

/// Disables line buffering and echo; Ctrl-C remains a signal. Returns the original modes on
/// success.
fn enable_raw_keys() -> Option<Termios> {
    if !in_foreground() {
        return None;
    }
    let saved = tcgetattr(stdin()).ok()?;
    let mut modes = saved.clone();
    modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
    tcsetattr(stdin(), OptionalActions::Now, &modes).ok()?;
    Some(saved)
}

/// Reads keys, on its own thread, up to the quit key.
fn read_keys_until_quit(quit: oneshot::Sender<()>) {
    if stdin().lock().bytes().map_while(Result::ok).any(|key| key == QUIT_KEY) {
        // The receiver may be gone.
        let _ = quit.send(());
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Draws from the upper left corner, clearing the rest of each line and of the screen. No line
/// break follows the last line: it would scroll the screen.
fn frame(lines: &[String], rows: usize) -> String {
    let mut text = String::from("\x1b[H");
    for (row, line) in lines.iter().take(rows).enumerate() {
        if row > 0 {
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
    fn a_frame_has_no_more_lines_than_the_terminal() {
        let lines: Vec<String> = (1..=3).map(|n| n.to_string()).collect();
        assert_eq!(frame(&lines, 2), "\x1b[H1\x1b[K\r\n2\x1b[K\x1b[J");
        assert_eq!(frame(&[], 2), "\x1b[H\x1b[J");
    }
}
