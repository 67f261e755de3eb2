//! The last value of a subscription, stored without retaining more memory than it needs.

use bytes::Bytes;
use longshore_protocol::{Text, Value};

/// A slice is retained without a copy if it is at least this fraction of its frame. Shorter slices
/// are copied.
const SHARE_DIVISOR: usize = 4;
/// The least size to assume for a frame, in bytes: short values are copied into a buffer that is
/// reused.
const FRAME_BYTES_MIN: usize = 128 * 1024;

/// A value that may be retained for long. Numbers are stored as they are. Short texts and bytes are
/// copied into a reused buffer, so that an update costs a copy and no allocation.
#[derive(Debug, Default)]
pub(crate) enum RetainedValue {
    #[default]
    Nothing,
    Plain(Value),
    Text(Vec<u8>),
    Bytes(Vec<u8>),
}

impl RetainedValue {
    /// Stores `value`, which arrived in a frame of `frame_bytes`.
    #[inline]
    pub(crate) fn store(&mut self, value: &Value, frame_bytes: usize) {
        match (value, &mut *self) {
            (Value::U64(v), RetainedValue::Plain(Value::U64(own))) => *own = *v,
            (Value::I64(v), RetainedValue::Plain(Value::I64(own))) => *own = *v,
            (Value::F64(v), RetainedValue::Plain(Value::F64(own))) => *own = *v,
            (value, _) => self.replace(value, frame_bytes),
        }
    }

    #[inline(never)]
    fn replace(&mut self, value: &Value, frame_bytes: usize) {
        let memory = frame_bytes.max(FRAME_BYTES_MIN);
        let long = |bytes: &Bytes| bytes.len() * SHARE_DIVISOR >= memory;
        match (value, &mut *self) {
            (Value::String(text), RetainedValue::Text(own)) if !long(text.as_bytes()) => {
                refill(own, text.as_bytes());
            }
            (Value::Bytes(bytes), RetainedValue::Bytes(own)) if !long(bytes) => refill(own, bytes),
            (Value::String(text), _) if !long(text.as_bytes()) => {
                *self = RetainedValue::Text(text.as_bytes().to_vec());
            }
            (Value::Bytes(bytes), _) if !long(bytes) => {
                *self = RetainedValue::Bytes(bytes.to_vec())
            }
            (value @ (Value::List(_) | Value::Map(_)), _) => {
                *self = RetainedValue::Plain(value.copied_from_frame())
            }
            (value, _) => *self = RetainedValue::Plain(value.clone()),
        }
    }

    /// A copy of the value, if there is one.
    pub(crate) fn value(&self) -> Option<Value> {
        match self {
            RetainedValue::Nothing => None,
            RetainedValue::Plain(value) => Some(value.clone()),
            // The bytes come from a valid text, so the conversion succeeds.
            RetainedValue::Text(bytes) => {
                Text::new(Bytes::copy_from_slice(bytes)).ok().map(Value::String)
            }
            RetainedValue::Bytes(bytes) => Some(Value::Bytes(Bytes::copy_from_slice(bytes))),
        }
    }
}

fn refill(own: &mut Vec<u8>, bytes: &[u8]) {
    own.clear();
    own.extend_from_slice(bytes);
    // A single long value must not retain its memory for ever.
    if own.capacity() > 4 * bytes.len().max(1_024) {
        own.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if the retained value is a slice of `frame`.
    fn shares(retained: &RetainedValue, frame: &Bytes) -> bool {
        let range = frame.as_ptr_range();
        let within = |bytes: &Bytes| range.contains(&bytes.as_ptr());
        match retained {
            RetainedValue::Plain(Value::Bytes(bytes)) => within(bytes),
            RetainedValue::Plain(Value::String(text)) => within(text.as_bytes()),
            RetainedValue::Plain(Value::List(values)) => {
                values.iter().any(|value| matches!(value, Value::Bytes(bytes) if within(bytes)))
            }
            _ => false,
        }
    }

    #[test]
    fn small_slices_are_copied_and_large_ones_share_the_frame() {
        let frame = Bytes::from(vec![b'x'; 1024 * 1024]);
        let mut retained = RetainedValue::default();
        for value in [
            Value::Bytes(frame.slice(..256)),
            Value::Bytes(frame.slice(..1024 * 1024 / SHARE_DIVISOR - 1)),
            Value::String(Text::new(frame.slice(..256)).unwrap()),
            Value::list([Value::Bytes(frame.slice(..256))]),
        ] {
            retained.store(&value, frame.len());
            assert_eq!(retained.value(), Some(value));
            assert!(!shares(&retained, &frame));
        }
        let most = Value::Bytes(frame.slice(..1024 * 1024 / SHARE_DIVISOR));
        retained.store(&most, frame.len());
        assert!(shares(&retained, &frame));
        assert_eq!(retained.value(), Some(most));
    }

    #[test]
    fn a_short_frame_is_copied() {
        let frame = Bytes::from(vec![1; 300]);
        let mut retained = RetainedValue::default();
        retained.store(&Value::Bytes(frame.clone()), frame.len());
        assert!(!shares(&retained, &frame));
    }

    #[test]
    fn the_buffer_is_reused_and_shrinks_after_long_values() {
        let mut retained = RetainedValue::default();
        retained.store(&Value::from(&[1u8; 300][..]), 0);
        let RetainedValue::Bytes(own) = &retained else { panic!("copied") };
        let at = own.as_ptr();
        retained.store(&Value::from(&[2u8; 256][..]), 0);
        let RetainedValue::Bytes(own) = &retained else { panic!("copied") };
        assert_eq!((own.as_ptr(), &own[..]), (at, &[2u8; 256][..]));

        retained.store(&Value::from(&[3u8; 20_000][..]), 0);
        retained.store(&Value::from(&[4u8; 10][..]), 0);
        let RetainedValue::Bytes(own) = &retained else { panic!("copied") };
        assert!(own.capacity() < 4_096);
    }
}
