//! The macro that declares the commands with their encoding, from one list of fields.
//!
//! A field `name: Type` uses the encoding of its type. `name: Type = kind(…)` changes that:
//!
//! | Kind | The field |
//! |---|---|
//! | `text(what, limit)` | text; over `limit` bytes it is an error, in which `what` names it |
//! | `at_most(what, limit)` | a number; over `limit` it is an invalid `what` |
//! | `list(what)` | a list of any length; `what` names it in errors |
//! | `fixed()`, `fixed(LinkId)` | a number of eight bytes: what follows has a known offset |
//! | `sized()` | bytes after their length, of four bytes |
//! | `rest()` | the last field: bytes to the end of the body |
//! | `body()` | the same, of a client's message: written from `Type::body` without a copy |

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
        $out.u64_fixed(*$value)
    };
    ($out:ident, $rest:ident, $value:expr, fixed($name:ident)) => {
        $out.u64_fixed($value.0)
    };
    ($out:ident, $rest:ident, $value:expr, sized()) => {{
        $out.u32_fixed($value.len() as u32);
        $out.put_shared($value.clone());
    }};
    ($out:ident, $rest:ident, $value:expr, rest()) => {
        $rest = $value.clone()
    };
    ($out:ident, $rest:ident, $value:expr, body()) => {
        $rest = $value.body().clone()
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
        $r.u64_fixed()?
    };
    ($r:ident, $type:ty, fixed($name:ident)) => {
        $name($r.u64_fixed()?)
    };
    ($r:ident, $type:ty, sized()) => {{
        let length = $r.u32_fixed()? as usize;
        $r.take(length)?
    }};
    ($r:ident, $type:ty, rest()) => {
        $r.take_rest()
    };
    ($r:ident, $type:ty, body()) => {
        <$type>::decode($r.take_rest())?
    };
}

pub(super) use {commands, put, read};
