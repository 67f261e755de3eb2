//! The hello's bytes: magic and one frame each way, read to the byte, so that what follows belongs
//! to the link.

use std::future::poll_fn;
use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use longshore_protocol::frame::FRAME_HEADER_BYTES;
use longshore_protocol::hello::MAGIC;
use longshore_protocol::limits::{HELLO_FRAME_BYTES_MAX, REASON_BYTES_MAX};
use longshore_protocol::{
    Decode, Encode, FrameWriter, Hello, HelloAnswer, HelloRefusal, Reader, WireError,
};

use crate::socket::Connection;

/// Why there was no hello to be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GreetingError {
    #[error("not Longshore's protocol: it begins with {0:02x?}")]
    Magic([u8; 4]),
    #[error("a hello of {0} bytes; the limit is {HELLO_FRAME_BYTES_MAX}")]
    TooLong(usize),
    #[error("malformed hello: {0}")]
    Malformed(#[from] WireError),
    #[error("closed before the hello had ended")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Says what this side has come for.
pub(crate) async fn write_hello(connection: &mut Connection, hello: &Hello) -> io::Result<()> {
    write(connection, &encoded(hello)).await
}

/// Reads what the other side has come for.
pub(crate) async fn read_hello(connection: &mut Connection) -> Result<Hello, GreetingError> {
    Ok(Hello::decode(&mut Reader::new(read(connection).await?))?)
}

/// Answers a hello.
pub(crate) async fn write_answer(
    connection: &mut Connection,
    answer: &HelloAnswer,
) -> io::Result<()> {
    write(connection, &encoded(answer)).await
}

/// Reads the answer to a hello.
pub(crate) async fn read_answer(connection: &mut Connection) -> Result<HelloAnswer, GreetingError> {
    Ok(HelloAnswer::decode(&mut Reader::new(read(connection).await?))?)
}

/// A refusal whose reason is cut to what the wire takes.
pub(crate) fn refusal(code: HelloRefusal, reason: impl Into<String>) -> HelloAnswer {
    let mut reason = reason.into();
    while reason.len() > REASON_BYTES_MAX {
        reason.pop();
    }
    HelloAnswer::Refused { code, reason }
}

/// The magic and one frame.
pub(crate) fn encoded(message: &impl Encode) -> Bytes {
    let mut out = FrameWriter::new();
    message.encode(&mut out);
    let mut bytes = BytesMut::from(&MAGIC[..]);
    for part in out.finish().parts() {
        bytes.extend_from_slice(part);
    }
    bytes.freeze()
}

async fn write(connection: &mut Connection, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        let written =
            poll_fn(|cx| connection.writes.poll_write(cx, &[io::IoSlice::new(rest)])).await?;
        rest = &rest[written..];
    }
    poll_fn(|cx| connection.writes.poll_flush(cx)).await
}

async fn read(connection: &mut Connection) -> Result<Bytes, GreetingError> {
    let magic = read_exact(connection, MAGIC.len()).await?;
    if magic[..] != MAGIC {
        return Err(GreetingError::Magic([magic[0], magic[1], magic[2], magic[3]]));
    }
    let mut field = Reader::new(read_exact(connection, FRAME_HEADER_BYTES).await?);
    let length = field.u32_fixed()? as usize;
    if length > HELLO_FRAME_BYTES_MAX {
        return Err(GreetingError::TooLong(length));
    }
    read_exact(connection, length).await
}

async fn read_exact(connection: &mut Connection, length: usize) -> Result<Bytes, GreetingError> {
    let mut bytes = BytesMut::with_capacity(length);
    while bytes.len() < length {
        let left = length - bytes.len();
        let mut room = (&mut bytes).limit(left);
        if connection.reads.read(&mut room, &connection.pulse).await? == 0 {
            return Err(GreetingError::Closed);
        }
    }
    Ok(bytes.freeze())
}
