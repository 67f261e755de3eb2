//! How payloads and outputs are encoded.

use std::error::Error;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Encodes and decodes values of `T`: payloads and outputs of a kind
/// ([`JobKind::Codec`](crate::JobKind::Codec)).
///
/// [`JsonCodec`] is the default. For another format, implement it for a type of your own and every
/// `T` that the format supports:
///
/// ```
/// # mod longshore { pub use longshore_kinds::*; }
/// use bytes::Bytes;
/// use longshore::{Codec, CodecError};
/// use serde::{Serialize, de::DeserializeOwned};
///
/// /// JSON that people can read.
/// struct Pretty;
///
/// impl<T: Serialize + DeserializeOwned> Codec<T> for Pretty {
///     fn encode(value: &T) -> Result<Bytes, CodecError> {
///         serde_json::to_vec_pretty(value).map(Bytes::from).map_err(CodecError::new)
///     }
///
///     fn decode(bytes: &Bytes) -> Result<T, CodecError> {
///         serde_json::from_slice(bytes).map_err(CodecError::new)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot encode `{T}`",
    note = "for JSON, the default codec, `{T}` needs `serde::Serialize` and `serde::Deserialize`"
)]
pub trait Codec<T> {
    /// Encodes a value.
    fn encode(value: &T) -> Result<Bytes, CodecError>;

    /// Decodes a value.
    fn decode(bytes: &Bytes) -> Result<T, CodecError>;
}

/// A value that a [`Codec`] cannot encode, or bytes that it cannot decode.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(Box<dyn Error + Send + Sync>);

impl CodecError {
    /// An error with this reason.
    pub fn new(reason: impl Into<Box<dyn Error + Send + Sync>>) -> CodecError {
        CodecError(reason.into())
    }
}

/// JSON, by serde.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JsonCodec;

impl<T: Serialize + DeserializeOwned> Codec<T> for JsonCodec {
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        serde_json::to_vec(value).map(Bytes::from).map_err(CodecError::new)
    }

    fn decode(bytes: &Bytes) -> Result<T, CodecError> {
        serde_json::from_slice(bytes).map_err(CodecError::new)
    }
}
