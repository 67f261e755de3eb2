//! How payloads and outputs are written.

use std::error::Error;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes and reads values of `T`. A type without values of its own, named by
/// [`JobKind::Codec`](crate::JobKind::Codec).
///
/// JSON is [`JsonCodec`]. Another format is an implementation for a type of yours, for every `T`
/// that the format can write:
///
/// ```
/// use bytes::Bytes;
/// use longshore_kinds::{Codec, CodecError};
///
/// /// A job without anything but its bytes.
/// struct Raw;
///
/// impl Codec<Vec<u8>> for Raw {
///     const CONTENT_TYPE: &'static str = "application/octet-stream";
///
///     fn encode(value: &Vec<u8>) -> Result<Bytes, CodecError> {
///         Ok(Bytes::copy_from_slice(value))
///     }
///
///     fn decode(bytes: &Bytes) -> Result<Vec<u8>, CodecError> {
///         Ok(bytes.to_vec())
///     }
/// }
/// ```
pub trait Codec<T> {
    /// The format's media type, for people and other programs; `application/json` for JSON.
    const CONTENT_TYPE: &'static str;

    /// The value's bytes.
    fn encode(value: &T) -> Result<Bytes, CodecError>;

    /// The value in these bytes.
    fn decode(bytes: &Bytes) -> Result<T, CodecError>;
}

/// A value that a [`Codec`] cannot write, or bytes that it cannot read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(Box<dyn Error + Send + Sync>);

impl CodecError {
    /// For that reason.
    pub fn new(reason: impl Into<Box<dyn Error + Send + Sync>>) -> CodecError {
        CodecError(reason.into())
    }
}

/// JSON, by serde.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JsonCodec;

impl<T: Serialize + DeserializeOwned> Codec<T> for JsonCodec {
    const CONTENT_TYPE: &'static str = "application/json";

    fn encode(value: &T) -> Result<Bytes, CodecError> {
        serde_json::to_vec(value).map(Bytes::from).map_err(CodecError::new)
    }

    fn decode(bytes: &Bytes) -> Result<T, CodecError> {
        serde_json::from_slice(bytes).map_err(CodecError::new)
    }
}
