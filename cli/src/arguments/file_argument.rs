//! Files on the command line. Shells expand `~` at the beginning of a word, not in `--data=~/jobs`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, StringValueParser, TypedValueParser};

/// Parses a file or folder.
pub(crate) fn file_argument() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|file| expanded(file, std::env::var_os("HOME")))
}

/// Parses a file that is stored as text, or a word in its place.
pub(crate) fn file_text() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().try_map(|file| {
        let expanded = expanded(PathBuf::from(file), std::env::var_os("HOME"))?;
        let not_utf_8 = |file| format!("{file:?} is not UTF-8");
        expanded.into_os_string().into_string().map_err(not_utf_8)
    })
}

/// The file, below the home directory if it begins with `~/`.
fn expanded(file: PathBuf, home: Option<OsString>) -> Result<PathBuf, String> {
    let Ok(rest) = file.strip_prefix("~") else { return Ok(file) };
    match home.filter(|home| !home.is_empty()) {
        Some(home) => Ok(Path::new(&home).join(rest)),
        None => Err(format!(
            "'{}' begins with ~, and there is no $HOME; write an absolute path",
            file.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_at_the_beginning_is_the_home_directory() {
        let home = || Some(OsString::from("/home/ann"));
        for (file, expected) in [
            ("~/jobs", "/home/ann/jobs"),
            ("~", "/home/ann"),
            ("/srv/~/jobs", "/srv/~/jobs"),
            ("~ann/jobs", "~ann/jobs"),
            ("jobs", "jobs"),
        ] {
            assert_eq!(expanded(file.into(), home()), Ok(expected.into()), "{file}");
        }
        assert!(expanded("~/jobs".into(), None).unwrap_err().contains("no $HOME"));
        assert_eq!(expanded("jobs".into(), None), Ok("jobs".into()));
    }
}
