//! The handshake's bytes: magic and one frame each way. Reads stop at its last byte, so that what
//! follows belongs to the link.

use std::future::poll_fn;
use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use longshore_protocol::frame::FRAME_HEADER_BYTES;
use longshore_protocol::handshake::MAGIC;
use longshore_protocol::limits::{HANDSHAKE_FRAME_BYTES_MAX, REASON_BYTES_MAX};
use longshore_protocol::{
    Credential, Decode, Encode, FrameWriter, Handshake, HandshakeAnswer, HandshakeRefusal, Reader,
    WireError,
};
use zeroize::Zeroize as _;

use crate::socket::Connection;

/// Why no handshake could be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("not Longshore's protocol: it begins with {0:02x?}")]
    Magic([u8; 4]),
    #[error("a handshake of {0} bytes; the limit is {HANDSHAKE_FRAME_BYTES_MAX}")]
    TooLong(usize),
    #[error("malformed handshake: {0}")]
    Malformed(#[from] WireError),
    #[error("closed before the handshake had ended")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Sends this side's handshake.
pub(crate) async fn write_handshake(
    connection: &mut Connection,
    handshake: &Handshake,
) -> io::Result<()> {
    write(connection, &encoded(handshake)).await
}

/// Reads the other side's handshake.
pub(crate) async fn read_handshake(
    connection: &mut Connection,
) -> Result<Handshake, HandshakeError> {
    Ok(Handshake::decode(&mut Reader::new(read(connection).await?))?)
}

/// Overwrites the credential of a handshake that was read: nobody else has its bytes, which are a
/// part of those that arrived.
pub(crate) fn wipe(credential: Credential) -> Option<BytesMut> {
    let mut bytes = credential.0.try_into_mut().ok()?;
    bytes.as_mut().zeroize();
    Some(bytes)
}

/// Answers a handshake.
pub(crate) async fn write_answer(
    connection: &mut Connection,
    answer: &HandshakeAnswer,
) -> io::Result<()> {
    write(connection, &encoded(answer)).await
}

/// Reads the answer to a handshake.
pub(crate) async fn read_answer(
    connection: &mut Connection,
) -> Result<HandshakeAnswer, HandshakeError> {
    Ok(HandshakeAnswer::decode(&mut Reader::new(read(connection).await?))?)
}

/// A refusal whose reason is cut to the limit of the protocol.
pub(crate) fn refusal(code: HandshakeRefusal, reason: impl Into<String>) -> HandshakeAnswer {
    let mut reason = reason.into();
    while reason.len() > REASON_BYTES_MAX {
        reason.pop();
    }
    HandshakeAnswer::Refused { code, reason }
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

async fn read(connection: &mut Connection) -> Result<Bytes, HandshakeError> {
    let magic = read_exact(connection, MAGIC.len()).await?;
    if magic[..] != MAGIC {
        return Err(HandshakeError::Magic([magic[0], magic[1], magic[2], magic[3]]));
    }
    let mut field = Reader::new(read_exact(connection, FRAME_HEADER_BYTES).await?);
    let length = field.u32_fixed()? as usize;
    if length > HANDSHAKE_FRAME_BYTES_MAX {
        return Err(HandshakeError::TooLong(length));
    }
    read_exact(connection, length).await
}

async fn read_exact(connection: &mut Connection, length: usize) -> Result<Bytes, HandshakeError> {
    let mut bytes = BytesMut::with_capacity(length);
    while bytes.len() < length {
        let left = length - bytes.len();
        let mut room = (&mut bytes).limit(left);
        if connection.reads.read(&mut room, &connection.activity).await? == 0 {
            return Err(HandshakeError::Closed);
        }
    }
    Ok(bytes.freeze())
}

#[cfg(test)]
mod tests {
    use longshore_protocol::{LinkTiming, Role, SessionId};

    use super::*;

    #[test]
    fn a_secret_is_overwritten_where_it_arrived() {
        let credential = Credential(Bytes::from_static(b"secret"));
        let sent = Handshake::new(Role::Worker, SessionId([1; 16]), "worker", LinkTiming::WORK);
        let sent = encoded(&Handshake { credential, ..sent });
        let arrived = BytesMut::from(&sent[MAGIC.len() + FRAME_HEADER_BYTES..]).freeze();
        let place = arrived.as_ptr_range();
        let read = Handshake::decode(&mut Reader::new(arrived)).unwrap();
        assert_eq!(read.credential.0, "secret");
        assert!(place.contains(&read.credential.0.as_ptr()), "a copy would leave what arrived");
        assert_eq!(wipe(read.credential).unwrap(), [0; 6][..]);
        assert_eq!(wipe(Credential::default()).map_or(0, |bytes| bytes.len()), 0);
    }
}
