//! The golden vectors: files of comment lines with the decoded content, followed by the bytes in
//! hex, 16 per line. A file's name begins with the kind of its content.

use std::fmt::{Debug, Write as _};
use std::path::PathBuf;

use bytes::Bytes;
use longshore_protocol::frame::FrameWriter;
use longshore_protocol::messages::HEARTBEAT;
use longshore_protocol::messages::resolver::{FromReplica, ToReplica};
use longshore_protocol::messages::values::{FromValuePublisher, ToValuePublisher};
use longshore_protocol::messages::work::*;
use longshore_protocol::*;

pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

pub fn from_text(text: &str) -> Vec<u8> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .map(|hex| u8::from_str_radix(hex, 16).expect("two hex digits"))
        .collect()
}

/// Formats a vector's file: its title, its content as printed by `Debug`, its bytes.
pub fn to_text(title: &str, content: &str, bytes: &[u8]) -> String {
    let mut text = format!("{title}\n#");
    let mut column = 1;
    for word in content.split(' ') {
        if column > 1 && column + word.len() >= 100 {
            text.push_str("\n#");
            column = 1;
        }
        write!(text, " {word}").expect("a String takes all");
        column += 1 + word.len();
    }
    text.push('\n');
    for line in bytes.chunks(16) {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{}", hex.join(" ")).expect("a String takes all");
    }
    text
}

/// The text of every file, by its name without `.hex`.
pub fn files() -> Vec<(String, String)> {
    let files = std::fs::read_dir(folder()).expect("the folder of golden vectors");
    let paths = files.map(|file| file.expect("a directory entry").path());
    let mut files: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "hex"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).expect("a text"))
        })
        .collect();
    files.sort();
    files
}

/// The bytes of every vector, by its name.
pub fn vectors() -> Vec<(String, Vec<u8>)> {
    files().into_iter().map(|(name, text)| (name, from_text(&text))).collect()
}

/// The decoded content of every vector, by its name.
pub fn samples() -> Vec<(String, Sample)> {
    let sample = |(name, bytes): (String, Vec<u8>)| {
        let sample = Sample::decode(&name, bytes.into()).expect("a vector decodes");
        (name, sample)
    };
    vectors().into_iter().map(sample).collect()
}

/// The decoded content of that vector.
pub fn sample(name: &str) -> Sample {
    let named = samples().into_iter().find(|(other, _)| other == name);
    named.unwrap_or_else(|| panic!("no vector {name}")).1
}

/// A job with the content of an entry's vector.
pub fn job(name: &str) -> NewJob {
    let Sample::Entry(entry) = sample(name) else { panic!("{name} is not an entry") };
    job_of(Path::new("/jobs/mail").expect("a path"), entry)
}

fn job_of(path: Path, entry: Entry) -> NewJob {
    let Entry { id, payload, headers, options, keys, .. } = entry;
    NewJob { path, id, payload, headers, options, keys }
}

/// Content with its own encoding on the wire or on disk.
#[derive(Clone, PartialEq, Debug)]
pub enum Sample {
    Handshake(Handshake),
    HandshakeAnswer(HandshakeAnswer),
    Heartbeat {
        age_ms: Option<u64>,
    },
    Entry(Entry),
    ToPublisher(ToPublisher),
    FromPublisher(FromPublisher),
    ToReplica(ToReplica),
    FromReplica(FromReplica),
    ToValues(ToValuePublisher),
    FromValues(FromValuePublisher),
    /// A whole frame, its length included.
    Frame(Vec<FromPublisher>),
}

impl Sample {
    /// Encodes it as its sender does, batches by their builders.
    pub fn encode(&self) -> Bytes {
        let mut out = FrameWriter::new();
        match self {
            Sample::Handshake(handshake) => handshake.encode(&mut out),
            Sample::HandshakeAnswer(answer) => answer.encode(&mut out),
            Sample::Heartbeat { age_ms } => {
                out.message(HEARTBEAT, |out| age_ms.iter().for_each(|ms| out.u64(*ms)));
            }
            Sample::Entry(entry) => {
                job_of(Path::root(), entry.clone()).encode_entry_head(&mut out);
                out.put_shared(entry.payload.clone());
            }
            Sample::ToPublisher(ToPublisher::Enqueue(batch)) => {
                let mut builder = BatchBuilder::new();
                for entry in entries(batch) {
                    builder.push(&entry);
                }
                builder.seal(batch.atomic).encode(batch.sequence, &mut out);
            }
            Sample::ToPublisher(ToPublisher::Settle(batch)) => {
                let mut builder = SettleBatchBuilder::new();
                for (token, settle) in settles(batch) {
                    builder.push(token, &settle);
                }
                SettleBatchBuilder::encode(&builder.seal(batch.sequence), &mut out);
            }
            Sample::ToPublisher(ToPublisher::Checkpoint(checkpoint)) => {
                let Checkpoint { token, sequence, at, length, .. } = *checkpoint;
                let bytes = checkpoint.body().slice(at as usize..(at + length) as usize);
                Checkpoint::encode(&Checkpoint::body_of(token, sequence, &bytes), &mut out);
            }
            Sample::ToPublisher(message) => message.encode(&mut out),
            Sample::FromPublisher(message) => message.encode(&mut out),
            Sample::ToReplica(message) => message.encode(&mut out),
            Sample::FromReplica(message) => message.encode(&mut out),
            Sample::ToValues(message) => message.encode(&mut out),
            Sample::FromValues(FromValuePublisher::Updates(updates)) => {
                let read: Vec<_> = updates.iter().flatten().collect();
                let updates = read.iter().map(|(number, value)| (*number, value)).collect();
                FromValuePublisher::Updates(updates).encode(&mut out);
            }
            Sample::FromValues(message) => message.encode(&mut out),
            Sample::Frame(messages) => {
                messages.iter().for_each(|message| message.encode(&mut out));
                return Bytes::from(out.finish().parts().concat());
            }
        }
        out.into_body()
    }

    /// Decodes the bytes of a vector of that name.
    pub fn decode(name: &str, bytes: Bytes) -> Result<Sample, WireError> {
        let mut r = Reader::new(bytes.clone());
        let kind = |prefix| name.starts_with(prefix);
        Ok(match name {
            "handshake" | "handshake-credential" => Sample::Handshake(Handshake::decode(&mut r)?),
            _ if kind("handshake-") => Sample::HandshakeAnswer(HandshakeAnswer::decode(&mut r)?),
            _ if kind("heartbeat") => {
                let mut r =
                    Reader::new(message(
                        bytes,
                        |tag, body| Ok((tag == HEARTBEAT).then_some(body)),
                    )?);
                Sample::Heartbeat { age_ms: if r.is_empty() { None } else { Some(r.u64()?) } }
            }
            _ if kind("entry") => Sample::Entry(Entry::read(bytes)?),
            _ if kind("to-publisher-") => Sample::ToPublisher(message(bytes, ToPublisher::decode)?),
            _ if kind("from-publisher-") => {
                Sample::FromPublisher(message(bytes, FromPublisher::decode)?)
            }
            _ if kind("to-replica-") => Sample::ToReplica(message(bytes, ToReplica::decode)?),
            _ if kind("from-replica-") => Sample::FromReplica(message(bytes, FromReplica::decode)?),
            _ if kind("to-values-") => Sample::ToValues(message(bytes, ToValuePublisher::decode)?),
            _ if kind("from-values-") => {
                Sample::FromValues(message(bytes, FromValuePublisher::decode)?)
            }
            "frame" => {
                let length = r.u32_fixed()? as usize;
                assert_eq!(length, r.left());
                let mut messages = Vec::new();
                for message in Messages::new(r.take_rest()) {
                    let (tag, body) = message?;
                    messages.extend(FromPublisher::decode(tag, body)?);
                }
                Sample::Frame(messages)
            }
            _ => panic!("{name} does not begin with a kind"),
        })
    }

    /// Formats the whole content, including parts that are decoded later.
    pub fn show(&self) -> String {
        let with = |parts: &dyn Debug| format!("{self:?} {parts:?}");
        match self {
            Sample::ToPublisher(ToPublisher::Enqueue(batch)) => with(&entries(batch)),
            Sample::ToPublisher(ToPublisher::Settle(batch)) => with(&settles(batch)),
            Sample::FromValues(FromValuePublisher::Updates(updates)) => {
                with(&updates.iter().collect::<Vec<_>>())
            }
            other => format!("{other:?}"),
        }
    }
}

fn entries(batch: &EnqueueBatch) -> Vec<NewJob> {
    let job = |entry: BatchEntry| {
        let bytes = batch.body().slice(entry.at as usize..(entry.at + entry.length) as usize);
        job_of(batch.paths[entry.path].clone(), Entry::read(bytes).expect("an entry"))
    };
    batch.entries().map(job).collect()
}

fn settles(batch: &SettleBatch) -> Vec<(Token, NewSettle)> {
    batch.items().map(|item| (item.token, NewSettle::of(batch.body(), item.verdict))).collect()
}

/// The only message of a frame's body.
fn message<T>(
    body: Bytes,
    decode: fn(u8, Bytes) -> Result<Option<T>, WireError>,
) -> Result<T, WireError> {
    let mut messages = Messages::new(body);
    let (tag, body) = messages.next().expect("a message")?;
    assert!(messages.next().is_none(), "one message only");
    Ok(decode(tag, body)?.expect("a tag of this version"))
}
