//! The identity file: a small text file that names the journal and its publisher.
//!
//! ```text
//! longshore journal 5
//! journal ID          the id in its files' headers and checksums
//! publisher ID        its publisher's id; a copy has another one
//! losses N            how often loss was accepted, and 16 for each copy; no line for 0
//! crc32c XXXXXXXX     of the lines before
//! ```
//! The first line and the last are the same in every format.

use std::io;
use std::path::{Path, PathBuf};

use longshore_protocol::PublisherId;

use crate::journal::files::Files;
use crate::journal::wal::format::FORMAT_VERSION;

/// The name of the file.
pub(crate) const IDENTITY_FILE: &str = "publisher";
pub(crate) const TEMPORARY: &str = "publisher.new";
const BYTES_MAX: usize = 4096;
/// Most losses of a directory: an epoch has 32 bits, and each loss uses up 2^20 of them.
pub(crate) const LOSSES_MAX: u64 = 4_095;

/// The content of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) journal: PublisherId,
    pub(crate) publisher: PublisherId,
    /// How often records may have been lost: by an accepted loss, or because the directory is a
    /// copy. Starts, and so their epochs, may be among them. Each loss has its own range of epochs,
    /// so none is used twice.
    pub(crate) losses: u64,
}

impl Identity {
    /// With more losses; none if no epochs are left for them.
    pub(crate) fn after_losses(self, more: u64) -> Option<Identity> {
        let losses = self.losses + more;
        (losses <= LOSSES_MAX).then_some(Identity { losses, ..self })
    }
}

/// Why the identity cannot be read or written.
#[derive(Debug)]
pub(crate) enum IdentityError {
    Io(PathBuf, io::Error),
    /// The file exists and is damaged.
    Damaged(PathBuf),
    /// A program of another format made it.
    OtherFormat(PathBuf, u16),
}

/// Reads the ids; none in a directory without them.
pub(crate) fn read(files: &dyn Files, dir: &Path) -> Result<Option<Identity>, IdentityError> {
    let path = dir.join(IDENTITY_FILE);
    let file = match files.open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(IdentityError::Io(path, error)),
    };
    let mut bytes = vec![0; BYTES_MAX];
    let length = match file.read_at(&mut bytes, 0) {
        Ok(length) => length,
        Err(error) => return Err(IdentityError::Io(path, error)),
    };
    match std::str::from_utf8(&bytes[..length]).ok().and_then(parse) {
        Some(Parsed::Identity(identity)) => Ok(Some(identity)),
        Some(Parsed::OtherFormat(version)) => Err(IdentityError::OtherFormat(path, version)),
        None => Err(IdentityError::Damaged(path)),
    }
}

/// Writes the ids atomically and durably.
pub(crate) fn write(
    files: &dyn Files,
    dir: &Path,
    identity: Identity,
) -> Result<(), IdentityError> {
    let path = dir.join(TEMPORARY);
    let last = dir.join(IDENTITY_FILE);
    let text = text(identity);
    let written = (|| {
        let file = files.create(&path)?;
        file.write_at(text.as_bytes(), 0)?;
        file.sync_data()?;
        files.rename(&path, &last)?;
        files.sync_dir(dir)
    })();
    written.map_err(|error| IdentityError::Io(last, error))
}

fn text(identity: Identity) -> String {
    let Identity { journal, publisher, losses } = identity;
    let losses = if losses > 0 { format!("losses {losses}\n") } else { String::new() };
    with_crc(format!(
        "longshore journal {FORMAT_VERSION}\njournal {journal}\npublisher {publisher}\n{losses}"
    ))
}

fn with_crc(body: String) -> String {
    let crc = crc32c::crc32c(body.as_bytes());
    format!("{body}crc32c {crc:08x}\n")
}

#[derive(PartialEq, Eq, Debug)]
enum Parsed {
    Identity(Identity),
    OtherFormat(u16),
}

fn parse(content: &str) -> Option<Parsed> {
    let last = content.trim_end_matches('\n').rfind('\n')? + 1;
    if content != with_crc(content[..last].to_owned()) {
        return None;
    }
    let mut lines = content.lines();
    let version = lines.next()?.strip_prefix("longshore journal ")?.parse().ok()?;
    let mut id = |name| lines.next()?.strip_prefix(name)?.parse::<PublisherId>().ok();
    if version != FORMAT_VERSION {
        return Some(Parsed::OtherFormat(version));
    }
    let (journal, publisher) = (id("journal ")?, id("publisher ")?);
    let losses = lines.next()?.strip_prefix("losses ").map_or(Some(0), |n| n.parse().ok())?;
    let identity = Identity { journal, publisher, losses };
    (losses <= LOSSES_MAX && content == text(identity)).then_some(Parsed::Identity(identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_round_trips_and_rejects_every_flipped_bit() {
        let (journal, publisher) = (PublisherId([0xab; 16]), PublisherId([0xcd; 16]));
        for losses in [0, 1, LOSSES_MAX] {
            let identity = Identity { journal, publisher, losses };
            let good = text(identity);
            assert_eq!(parse(&good), Some(Parsed::Identity(identity)));
            for at in 0..good.len() {
                for bit in 0..8 {
                    let mut bad = good.clone().into_bytes();
                    bad[at] ^= 1 << bit;
                    let read = std::str::from_utf8(&bad).ok().and_then(parse);
                    assert_eq!(read, None, "byte {at}");
                }
                assert_eq!(parse(&good[..at]), None, "cut at {at}");
            }
        }
    }

    #[test]
    fn loss_count_is_limited_by_available_epochs() {
        let (journal, publisher) = (PublisherId([1; 16]), PublisherId([2; 16]));
        let last = Identity { journal, publisher, losses: LOSSES_MAX };
        let before = Identity { losses: LOSSES_MAX - 1, ..last };
        assert_eq!(before.after_losses(1), Some(last));
        assert_eq!(last.after_losses(1), None);
        assert_eq!(parse(&text(Identity { losses: LOSSES_MAX + 1, ..last })), None);
    }

    #[test]
    fn identity_file_matches_golden_text() {
        let body = "longshore journal 5\njournal abababab-abab-abab-abab-abababababab\n\
            publisher cdcdcdcd-cdcd-cdcd-cdcd-cdcdcdcdcdcd\n";
        let (journal, publisher) = (PublisherId([0xab; 16]), PublisherId([0xcd; 16]));
        let identity = Identity { journal, publisher, losses: 0 };
        assert_eq!(text(identity), with_crc(body.to_owned()));
        let after = Identity { losses: 2, ..identity };
        assert_eq!(text(after), with_crc(body.to_owned() + "losses 2\n"));
    }

    #[test]
    fn other_format_is_reported_whatever_the_other_lines() {
        for version in [1, 3, 77] {
            let text = with_crc(format!("longshore journal {version}\nwhatever\nlater\n"));
            assert_eq!(parse(&text), Some(Parsed::OtherFormat(version)));
        }
    }
}
