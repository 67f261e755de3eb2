//! SHA-256 of files, and the format of `sha256sum`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// Bytes per read.
const CHUNK_BYTES: usize = 64 * 1024;

/// The digest of a file's contents, as 64 hexadecimal digits.
pub(crate) fn sha256_of(file: &Path) -> io::Result<String> {
    let mut file = File::open(file)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(HEXLOWER.encode(&hash.finalize())),
            Ok(n) => hash.update(&chunk[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// One line in the format of `sha256sum`. If a name contains a backslash, a newline or a carriage
/// return, it is escaped, and a backslash precedes the digest.
pub(crate) fn line(digest: &str, name: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(digest.len() + name.len() + 4);
    if name.iter().any(|byte| b"\\\n\r".contains(byte)) {
        line.push(b'\\');
    }
    line.extend_from_slice(digest.as_bytes());
    line.extend_from_slice(b"  ");
    for &byte in name {
        match byte {
            b'\\' => line.extend_from_slice(b"\\\\"),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            _ => line.push(byte),
        }
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_file_is_its_sha256() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("abc");
        std::fs::write(&file, "abc").unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_of(&file).unwrap(), expected);

        // Longer than a chunk, and not a multiple of one.
        std::fs::write(&file, vec![b'a'; 1_000_000]).unwrap();
        let expected = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        assert_eq!(sha256_of(&file).unwrap(), expected);
    }

    #[test]
    fn awkward_names_are_written_as_sha256sum_writes_them() {
        for (name, expected) in [
            (&b"plain name"[..], &b"d  plain name\n"[..]),
            (b"a'\"b \xff*", b"d  a'\"b \xff*\n"),
            (b"new\nline", b"\\d  new\\nline\n"),
            (b"back\\slash\r", b"\\d  back\\\\slash\\r\n"),
        ] {
            assert_eq!(line("d", name), expected);
        }
    }
}
