//! The macro that declares the commands with their encoding, from one list of fields.
//!
//! A field `name: Type` uses the encoding of its type. `name: Type = kind(…)` changes that:
//!
//! | Kind | The field |
//! |---|---|
//! | `text(what, limit)` | text; over `limit` bytes it is an error, in which `what` names it |
//! | `at_most(what, limit)` | a number; over `limit` it is an error |
//! | `list(what)` | a list of any length |
//! | `fixed()` | a number of eight bytes, so that what follows has a known offset |
//! | `sized()` | bytes after their length, of four bytes |
//! | `rest()` | the rest of the body: a client's own bytes, which are not copied |

use bytes::Bytes;
use longshore_protocol::messages::work::{Checkpoint, EnqueueBatch, SettleBatch};
use longshore_protocol::{LinkId, WireError};

/// Declares the enum of commands, each with its number in the log. Numbers are never reused; the
/// journal itself uses 0.
macro_rules! commands {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $(
                $(#[$variant_meta:meta])*
                $number:literal = $variant:ident
                $(($inner:ident: $inner_type:ty))?
                $({
                    $($(#[$field_meta:meta])* $field:ident: $type:ty $(= $kind:ident $args:tt)?,)*
                })?,
            )*
        }
    ) => {
        $(#[$meta])*
        pub enum $name {
            $(
                $(#[$variant_meta])*
                $variant $(($inner_type))? $({ $($(#[$field_meta])* $field: $type,)* })?,
            )*
        }

        impl $name {
            /// Its kind's number in the log.
            pub fn kind(&self) -> u8 {
                match self { $($name::$variant { .. } => $number,)* }
            }

            /// The body in two parts, which are consecutive in the log: the encoded fields, and the
            /// client's raw batch.
            pub fn encode(&self) -> (bytes::Bytes, bytes::Bytes) {
                let mut out = longshore_protocol::FrameWriter::with_capacity(64);
                let mut rest = bytes::Bytes::new();
                match self {
                    $($name::$variant $(($inner))? $({ $($field,)* })? => {
                        $($crate::command::fields::put!(out, rest, $inner);)?
                        $($($crate::command::fields::put!(out, rest, $field $(, $kind $args)?);)*)?
                    })*
                }
                (out.into_body(), rest)
            }

            /// Decodes the output of `encode`. Ignores fields after the known ones.
            pub fn decode(
                kind: u8,
                body: bytes::Bytes,
            ) -> Result<$name, longshore_protocol::WireError> {
                let r = &mut longshore_protocol::Reader::new(body);
                Ok(match kind {
                    $($number => $name::$variant
                        $(($crate::command::fields::read!(r, $inner_type)))?
                        $({
                            $($field: $crate::command::fields::read!(r, $type $(, $kind $args)?),)*
                        })?,)*
                    _ => return Err(r.invalid("kind of command that this version does not know")),
                })
            }
        }
    };
}

macro_rules! put {
    ($out:ident, $rest:ident, $value:expr, fixed()) => {
        $out.u64_fixed($crate::command::fields::Fixed::get(*$value))
    };
    ($out:ident, $rest:ident, $value:expr, sized()) => {{
        $out.u32_fixed($value.len() as u32);
        $out.put_shared($value.clone());
    }};
    ($out:ident, $rest:ident, $value:expr, rest()) => {
        $rest = $crate::command::fields::Rest::bytes($value).clone()
    };
    ($out:ident, $rest:ident, $value:expr $(, $kind:ident $args:tt)?) => {
        longshore_protocol::Encode::encode($value, &mut $out)
    };
}

macro_rules! read {
    ($r:ident, $type:ty) => {
        <$type as longshore_protocol::Decode>::decode($r)?
    };
    ($r:ident, $type:ty, text($what:literal, $limit:expr)) => {
        $r.string($what, $limit)?
    };
    ($r:ident, $type:ty, at_most($what:literal, $limit:expr)) => {{
        let too_many = $r.invalid($what);
        let number = <$type as longshore_protocol::Decode>::decode($r)?;
        if number as usize > $limit {
            return Err(too_many);
        }
        number
    }};
    ($r:ident, $type:ty, list($what:literal)) => {
        $r.list($what, usize::MAX)?
    };
    ($r:ident, $type:ty, fixed()) => {
        <$type as $crate::command::fields::Fixed>::of($r.u64_fixed()?)
    };
    ($r:ident, $type:ty, sized()) => {{
        let length = $r.u32_fixed()? as usize;
        $r.take(length)?
    }};
    ($r:ident, $type:ty, rest()) => {
        <$type as $crate::command::fields::Rest>::of($r.take_rest())?
    };
}

pub(super) use {commands, put, read};

/// What is written in eight bytes.
pub(super) trait Fixed {
    fn get(self) -> u64;
    fn of(number: u64) -> Self;
}

impl Fixed for u64 {
    fn get(self) -> u64 {
        self
    }

    fn of(number: u64) -> u64 {
        number
    }
}

impl Fixed for LinkId {
    fn get(self) -> u64 {
        self.0
    }

    fn of(number: u64) -> LinkId {
        LinkId(number)
    }
}

/// What is written as the rest of a body.
pub(super) trait Rest: Sized {
    fn bytes(&self) -> &Bytes;
    fn of(bytes: Bytes) -> Result<Self, WireError>;
}

impl Rest for Bytes {
    fn bytes(&self) -> &Bytes {
        self
    }

    fn of(bytes: Bytes) -> Result<Bytes, WireError> {
        Ok(bytes)
    }
}

macro_rules! rest_is_body {
    ($($type:ty),*) => {$(
        impl Rest for $type {
            fn bytes(&self) -> &Bytes {
                self.body()
            }

            fn of(bytes: Bytes) -> Result<$type, WireError> {
                <$type>::decode(bytes)
            }
        }
    )*};
}

rest_is_body!(EnqueueBatch, SettleBatch, Checkpoint);
