//! Sources of payloads: an argument, files, the lines of standard input. A separate thread reads
//! them and sends batches of whatever is available, so that a slow writer's lines are sent as they
//! arrive.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use bytes::Bytes;
use longshore::protocol::limits::PAYLOAD_BYTES_MAX;
use tokio::sync::mpsc;

use super::ranges::Ranges;

/// Bytes per read.
const CHUNK_BYTES: usize = 256 * 1024;
/// Batches that may wait for the producer.
const BATCHES_AHEAD: usize = 4;

/// The source of payloads.
pub(crate) enum Source {
    /// One payload.
    One(Bytes),
    /// All of standard input, as one payload.
    Stdin,
    /// One payload per line of standard input.
    Lines,
    /// One payload per file.
    Files(Vec<PathBuf>),
}

/// One payload, or the reason why it is unusable.
pub(crate) struct Item {
    /// The number of its line or file, from 1.
    pub(crate) number: u64,
    pub(crate) payload: Result<Bytes, String>,
}

/// Reads the requested items. The channel closes at the end of the source; an error is its last
/// item.
pub(crate) fn read(source: Source, only: Option<Ranges>) -> mpsc::Receiver<io::Result<Vec<Item>>> {
    let (sender, batches) = mpsc::channel(BATCHES_AHEAD);
    std::thread::spawn(move || {
        let wanted = |number| only.as_ref().is_none_or(|only| only.contains(number));
        let send = |mut batch: Vec<Item>| {
            batch.retain(|item| wanted(item.number));
            batch.is_empty() || sender.blocking_send(Ok(batch)).is_ok()
        };
        let result = match source {
            Source::One(payload) => {
                send(vec![Item { number: 1, payload: Ok(payload) }]);
                Ok(())
            }
            Source::Stdin => read_payload(io::stdin().lock()).map(|payload| {
                send(vec![Item { number: 1, payload }]);
            }),
            Source::Files(files) => {
                for (number, file) in (1..).zip(files) {
                    let payload = if wanted(number) { read_file(&file) } else { continue };
                    if !send(vec![Item { number, payload }]) {
                        break;
                    }
                }
                Ok(())
            }
            Source::Lines => {
                let mut lines = Lines::new(io::stdin().lock(), PAYLOAD_BYTES_MAX);
                loop {
                    let batch = match lines.next_batch() {
                        Ok(Some(batch)) => batch,
                        Ok(None) => break Ok(()),
                        Err(error) => break Err(error),
                    };
                    if !send(batch) {
                        break Ok(());
                    }
                }
            }
        };
        if let Err(error) = result {
            // The receiver may be gone: the command has ended.
            let _ = sender.blocking_send(Err(error));
        }
    });
    batches
}

fn read_file(file: &PathBuf) -> Result<Bytes, String> {
    let named = |error: io::Error| format!("{}: {error}", file.display());
    let payload = File::open(file).and_then(read_payload).map_err(named)?;
    payload.map_err(|why| format!("{}: {why}", file.display()))
}

fn read_payload(input: impl Read) -> io::Result<Result<Bytes, String>> {
    let mut payload = Vec::new();
    input.take(PAYLOAD_BYTES_MAX as u64 + 1).read_to_end(&mut payload)?;
    Ok(if payload.len() > PAYLOAD_BYTES_MAX {
        Err(too_large(PAYLOAD_BYTES_MAX))
    } else {
        Ok(payload.into())
    })
}

fn too_large(limit: usize) -> String {
    format!("TooLarge: a payload over the limit of {limit} bytes; enqueue a reference instead")
}

/// Splits a stream into lines without their newlines; the last line needs none. Buffers at most the
/// limit of a line plus a chunk.
struct Lines<R> {
    input: R,
    limit: usize,
    /// The start of an incomplete line.
    partial: Vec<u8>,
    /// The incomplete line exceeds the limit and its bytes are discarded.
    overlong: bool,
    number: u64,
}

impl<R: Read> Lines<R> {
    fn new(input: R, limit: usize) -> Lines<R> {
        Lines { input, limit, partial: Vec::new(), overlong: false, number: 0 }
    }

    /// The next complete lines; none at the end of the stream.
    fn next_batch(&mut self) -> io::Result<Option<Vec<Item>>> {
        loop {
            let start = self.partial.len();
            self.partial.resize(start + CHUNK_BYTES, 0);
            let read = match self.input.read(&mut self.partial[start..]) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.partial.truncate(start);
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.partial.truncate(start + read);
            if read == 0 {
                let last = std::mem::take(&mut self.partial);
                let ended = !last.is_empty() || self.overlong;
                return Ok(ended.then(|| vec![self.item(last.into())]));
            }
            let newline = self.partial[start..].iter().rposition(|&byte| byte == b'\n');
            let Some(last) = newline.map(|at| start + at) else {
                if self.partial.len() > self.limit {
                    self.overlong = true;
                    self.partial.clear();
                }
                continue;
            };
            let rest = self.partial.split_off(last + 1);
            let whole = Bytes::from(std::mem::replace(&mut self.partial, rest));
            let mut items = Vec::new();
            let mut start = 0;
            for (end, _) in whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
                items.push(self.item(whole.slice(start..end)));
                start = end + 1;
            }
            return Ok(Some(items));
        }
    }

    fn item(&mut self, line: Bytes) -> Item {
        self.number += 1;
        let overlong = std::mem::take(&mut self.overlong) || line.len() > self.limit;
        let payload = if overlong { Err(too_large(self.limit)) } else { Ok(line) };
        Item { number: self.number, payload }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a limited number of bytes per read.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(self.0.len()).min(buffer.len());
            let (now, rest) = self.0.split_at(n);
            buffer[..n].copy_from_slice(now);
            self.0 = rest;
            Ok(n)
        }
    }

    fn lines(text: &[u8], at_a_time: usize, limit: usize) -> Vec<Result<Vec<u8>, ()>> {
        let mut lines = Lines::new(Slow(text, at_a_time), limit);
        let mut all = Vec::new();
        while let Some(batch) = lines.next_batch().unwrap() {
            for item in batch {
                assert_eq!(item.number, all.len() as u64 + 1);
                all.push(item.payload.map(|payload| payload.to_vec()).map_err(|_| ()));
            }
        }
        all
    }

    #[test]
    fn lines_are_the_same_however_they_arrive() {
        let text = b"one\n\nthree with spaces\nna\xffme\r\nlast";
        let expected: Vec<Result<Vec<u8>, ()>> =
            text.split(|byte| *byte == b'\n').map(|line| Ok(line.to_vec())).collect();
        for at_a_time in 1..=text.len() {
            assert_eq!(lines(text, at_a_time, 1_000), expected, "{at_a_time}");
        }
        assert_eq!(lines(b"", 9, 9), []);
        assert_eq!(lines(b"a\n", 9, 9), [Ok(b"a".to_vec())]);
    }

    #[test]
    fn an_overlong_line_is_refused_without_buffering_it() {
        let text = b"1234\n12345\n123\n123456789012345";
        let expected = [Ok(b"1234".to_vec()), Err(()), Ok(b"123".to_vec()), Err(())];
        for at_a_time in 1..=text.len() {
            assert_eq!(lines(text, at_a_time, 4), expected, "{at_a_time}");
        }
    }
}
