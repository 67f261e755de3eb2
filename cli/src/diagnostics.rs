//! Lines on standard error: errors, warnings and notes; with `--json` one JSON object each.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::{Value, json};

use crate::output::{printable_json, printable_lines};

/// Whether lines are JSON. Commands, and tasks without a context, print them.
static JSON: AtomicBool = AtomicBool::new(false);
/// Whether an error was printed.
static ERROR_PRINTED: AtomicBool = AtomicBool::new(false);

/// From here on, lines are JSON if `json`.
pub(crate) fn set_json(json: bool) {
    JSON.store(json, Relaxed);
}

/// Whether lines are JSON.
pub(crate) fn are_json() -> bool {
    JSON.load(Relaxed)
}

/// Whether an error was printed.
pub(crate) fn error_was_printed() -> bool {
    ERROR_PRINTED.load(Relaxed)
}

/// The kind of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Line {
    Error,
    Warning,
    Note,
    /// A note that has no prefix as text.
    Plain,
}

impl Line {
    /// The name of its kind; empty where the text has no prefix.
    fn prefix(self) -> &'static str {
        match self {
            Line::Error => "error",
            Line::Warning => "warning",
            Line::Note => "note",
            Line::Plain => "",
        }
    }

    fn text(self, message: &str) -> String {
        match self.prefix() {
            "" => message.to_owned(),
            prefix => format!("{prefix}: {message}"),
        }
    }

    fn json(self, message: &str) -> Value {
        match self {
            Line::Error => error_json("failed", message, None),
            Line::Warning => json!({ "warning": { "message": message } }),
            Line::Note | Line::Plain => json!({ "note": { "message": message } }),
        }
    }
}

/// Prints one line.
pub(crate) fn print(line: Line, message: fmt::Arguments<'_>) {
    let message = message.to_string();
    if line == Line::Error {
        ERROR_PRINTED.store(true, Relaxed);
    }
    print_line(match are_json() {
        true => printable_json(&line.json(&message).to_string()).into_owned(),
        false => printable_lines(&line.text(&message)),
    });
}

/// Writes a line to standard error. Nobody can be informed of an error.
pub(crate) fn print_line(text: String) {
    let _ = write_line(&mut io::stderr(), text);
}

/// Writes a whole line by one call: at any time this process may end, or another one write.
fn write_line(out: &mut impl io::Write, mut text: String) -> io::Result<()> {
    text.push('\n');
    out.write_all(text.as_bytes())
}

/// An error as JSON.
pub(crate) fn error_json(code: &str, message: &str, hint: Option<&str>) -> Value {
    let mut error = json!({ "code": code, "message": message });
    if let Some(hint) = hint {
        error["hint"] = hint.into();
    }
    json!({ "error": error })
}

/// Prints an error; the command continues, and returns `AlreadyReported` at its end.
macro_rules! report_error {
    ($($message:tt)*) => {
        $crate::diagnostics::print($crate::diagnostics::Line::Error, format_args!($($message)*))
    };
}

/// Prints a warning.
macro_rules! report_warning {
    ($($message:tt)*) => {
        $crate::diagnostics::print($crate::diagnostics::Line::Warning, format_args!($($message)*))
    };
}

/// Prints a note.
macro_rules! report_note {
    ($($message:tt)*) => {
        $crate::diagnostics::print($crate::diagnostics::Line::Note, format_args!($($message)*))
    };
}

/// Prints a note without a prefix.
macro_rules! report {
    ($($message:tt)*) => {
        $crate::diagnostics::print($crate::diagnostics::Line::Plain, format_args!($($message)*))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_text_with_its_kind_or_one_json_object() {
        assert_eq!(Line::Error.text("no queue"), "error: no queue");
        assert_eq!(Line::Plain.text("following"), "following");
        assert_eq!(
            Line::Error.json("a\nb").to_string(),
            r#"{"error":{"code":"failed","message":"a\nb"}}"#
        );
        assert_eq!(Line::Note.json("new").to_string(), r#"{"note":{"message":"new"}}"#);
    }

    #[test]
    fn a_line_is_written_by_one_call() {
        /// The bytes of each call.
        struct Calls(Vec<String>);
        impl io::Write for Calls {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(String::from_utf8_lossy(bytes).into_owned());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut calls = Calls(Vec::new());
        write_line(&mut calls, Line::Error.json("no \"queue\"").to_string()).unwrap();
        let expected = "{\"error\":{\"code\":\"failed\",\"message\":\"no \\\"queue\\\"\"}}\n";
        assert_eq!(calls.0, [expected]);
    }
}
