//! A terminal that is drawn over, and left as it was found.

use std::io::{self, Write, stdout};

/// The alternate screen, without a cursor, and without wrapping lines.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// The other way round.
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// What a terminal has that does not say.
const ROWS_USUAL: usize = 24;

/// Dropped, the terminal is as it was.
pub(super) struct Screen(());

impl Screen {
    pub(super) fn open() -> io::Result<Screen> {
        let screen = Screen(());
        write(ENTER)?;
        Ok(screen)
    }

    /// How many lines it has now.
    pub(super) fn rows(&self) -> usize {
        let size = rustix::termios::tcgetwinsize(stdout());
        size.map_or(ROWS_USUAL, |size| usize::from(size.ws_row)).max(8)
    }

    /// Draws these lines over those before.
    pub(super) fn show(&mut self, lines: &[String]) -> io::Result<()> {
        write(&drawn(lines, self.rows()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = write(LEAVE);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// From the upper left: each line up to its end, then nothing below. No line break after the last: it would move them all up.
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
