//! Conversion of a payload to a handler's argument.

use std::any::Any;
use std::string::FromUtf8Error;

use bytes::Bytes;
use serde::de::DeserializeOwned;

/// A type that a handler can accept as its job's payload.
///
/// `Bytes`, `Vec<u8>` and `String` are the raw payload (a `String` must be UTF-8); every other type
/// that serde can deserialize is decoded from JSON. Implement this trait for a type that is not
/// `Deserialize` to decode another format.
pub trait FromPayload: Sized + Send + 'static {
    /// Decodes the payload. An error buries the job: it would not decode the next time either.
    fn from_payload(payload: Bytes) -> Result<Self, PayloadError>;
}

/// Why a payload does not decode. Its job is buried with this as the reason.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    /// It is not JSON, or not JSON of the expected type.
    #[error("the payload is not JSON of the handler's type: {0}")]
    Json(#[from] serde_json::Error),
    /// It is not UTF-8.
    #[error("the payload is not UTF-8: {0}")]
    Utf8(#[from] FromUtf8Error),
    /// A custom [`FromPayload`] rejected it.
    #[error("{0}")]
    Other(String),
}

impl<T: DeserializeOwned + Send + 'static> FromPayload for T {
    fn from_payload(payload: Bytes) -> Result<T, PayloadError> {
        let mut as_is: Option<T> = None;
        let slot = &mut as_is as &mut dyn Any;
        if let Some(slot) = slot.downcast_mut::<Option<Bytes>>() {
            *slot = Some(payload);
        } else if let Some(slot) = slot.downcast_mut::<Option<Vec<u8>>>() {
            *slot = Some(payload.into());
        } else if let Some(slot) = slot.downcast_mut::<Option<String>>() {
            *slot = Some(String::from_utf8(payload.into())?);
        } else {
            return Ok(serde_json::from_slice(&payload)?);
        }
        as_is.ok_or_else(|| PayloadError::Other("the payload was not converted".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, PartialEq, Debug)]
    struct Welcome {
        to: String,
    }

    #[test]
    fn bytes_and_text_are_raw_and_other_types_are_json() {
        let payload = Bytes::from_static(br#"{"to":"ada"}"#);
        assert_eq!(Bytes::from_payload(payload.clone()).unwrap(), payload);
        assert_eq!(<Vec<u8>>::from_payload(payload.clone()).unwrap(), payload);
        assert_eq!(String::from_payload(payload.clone()).unwrap(), r#"{"to":"ada"}"#);
        assert_eq!(Welcome::from_payload(payload).unwrap(), Welcome { to: "ada".into() });
    }

    #[test]
    fn bytes_are_not_copied() {
        let payload = Bytes::from(vec![1, 2, 3]);
        assert_eq!(Bytes::from_payload(payload.clone()).unwrap().as_ptr(), payload.as_ptr());
    }

    #[test]
    fn a_payload_that_does_not_decode_reports_why() {
        let error = Welcome::from_payload(Bytes::from_static(b"{}")).unwrap_err();
        assert!(error.to_string().contains("missing field `to`"), "{error}");
        let error = String::from_payload(Bytes::from_static(b"\xff")).unwrap_err();
        assert!(error.to_string().contains("not UTF-8"), "{error}");
    }
}
