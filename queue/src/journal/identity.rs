//! Whose directory this is: a small text file, made once.

use std::io;
use std::path::{Path, PathBuf};

use longshore_protocol::PublisherId;

use super::files::Files;
use super::format::FORMAT_VERSION;

/// The name of the file.
pub(crate) const IDENTITY_FILE: &str = "publisher";
const TEMPORARY: &str = "publisher.new";
const BYTES_MAX: usize = 4096;

/// Why the id is not known.
#[derive(Debug)]
pub(crate) enum IdentityError {
    Io(PathBuf, io::Error),
    /// The file is there and is not what was written.
    Damaged(PathBuf),
    /// A program of another format made it.
    OtherFormat(PathBuf, u16),
}

/// Reads the id; none in a directory without one.
pub(crate) fn read(files: &dyn Files, dir: &Path) -> Result<Option<PublisherId>, IdentityError> {
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
        Some((FORMAT_VERSION, id)) => Ok(Some(id)),
        Some((version, _)) => Err(IdentityError::OtherFormat(path, version)),
        None => Err(IdentityError::Damaged(path)),
    }
}

/// Writes the id so that it is there whole or not at all, and lasts.
pub(crate) fn write(files: &dyn Files, dir: &Path, id: PublisherId) -> Result<(), IdentityError> {
    let path = dir.join(TEMPORARY);
    let last = dir.join(IDENTITY_FILE);
    let written = (|| {
        let file = files.create(&path)?;
        file.write_at(text(FORMAT_VERSION, id).as_bytes(), 0)?;
        file.sync_data()?;
        files.rename(&path, &last)?;
        files.sync_dir(dir)
    })();
    written.map_err(|error| IdentityError::Io(last, error))
}

fn text(version: u16, id: PublisherId) -> String {
    let says = format!("longshore journal {version}\npublisher {id}\n");
    let crc = crc32c::crc32c(says.as_bytes());
    format!("{says}crc32c {crc:08x}\n")
}

/// The format's version and the publisher's id. These lines stay the same in every version.
fn parse(said: &str) -> Option<(u16, PublisherId)> {
    let version = said.lines().next()?.strip_prefix("longshore journal ")?.parse().ok()?;
    let id = said.lines().nth(1)?.strip_prefix("publisher ")?.parse().ok()?;
    (said == text(version, id)).then_some((version, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written_and_never_with_a_wrong_byte() {
        let id = PublisherId([0xab; 16]);
        let good = text(7, id);
        assert_eq!(parse(&good), Some((7, id)));
        for at in 0..good.len() {
            let mut bad = good.clone().into_bytes();
            bad[at] ^= 1;
            let read = std::str::from_utf8(&bad).ok().and_then(parse);
            assert_eq!(read, None, "byte {at}");
        }
    }
}
