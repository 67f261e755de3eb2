//! Macros that declare a type together with its encoder and decoder, from one list of fields.
//!
//! A field `name: Type` uses the encoding of its type. `name: Type = kind(…)` changes that:
//!
//! | Kind | The field |
//! |---|---|
//! | `at_most(what, limit)` | a value over `limit` is an error; `what` names the field in it |
//! | `cut(what, limit)` | the writer cuts the text to `limit` bytes; longer text is an error |
//! | `valid(what, holds)` | a value for which `holds(&value)` is false is an invalid `what` |
//! | `read_by(function)` | read and checked by `fn(&mut Reader) -> Result<Type, WireError>` |
//! | `read_by(function, any)` | the same; `any(&mut Source)` generates values for tests |
//! | `with(module)` | written by `module::put`, read by `module::read` |
//! | `body()` | the whole body of a message: read by `Type::decode`, written from `Type::body` |
//!
//! In a struct, a closure given to `read_by` may use the preceding fields. Types that need more
//! than a list of fields (batches, differences, flags) implement the traits by hand.

/// Declares structs and enums with their `Encode` and `Decode`.
///
/// `struct Name as record` writes its length before its fields, so that later versions may add
/// fields; `as record(what, limit)` refuses a length over its limit. An enum variant writes its
/// number first; the literal after the enum's name identifies it in errors.
macro_rules! fields {
    () => {};
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(as $record:ident $(($($limit:tt)*))?)? {
            $($(#[$field_meta:meta])* pub $field:ident: $type:ty $(= $kind:ident $args:tt)?,)*
        }
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut $crate::frame::FrameWriter) {
                $crate::fields::put!(@all out $($record)? {
                    $($crate::fields::put!(out, &self.$field $(, $kind $args)?);)*
                });
            }
        }

        impl $crate::codec::Decode for $name {
            fn decode(r: &mut $crate::codec::Reader) -> Result<$name, $crate::codec::WireError> {
                $crate::fields::read!(@all r $($record $(($($limit)*))?)? {
                    $(let $field = $crate::fields::read!(r, $type $(, $kind $args)?);)*
                    Ok($name { $($field,)* })
                })
            }
        }

        #[cfg(test)]
        impl $crate::tests::Arbitrary for $name {
            fn arbitrary(source: &mut $crate::tests::Source) -> $name {
                $(let $field = $crate::fields::any!(source, $type $(, $kind $args)?);)*
                $name { $($field,)* }
            }
        }

        $crate::fields::fields! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        pub enum $name:ident, $what:literal {
            $(
                $(#[$variant_meta:meta])*
                $number:literal = $variant:ident
                $(($inner:ident: $inner_type:ty $(= $inner_kind:ident $inner_args:tt)?))?
                $({
                    $($(#[$field_meta:meta])* $field:ident: $type:ty $(= $kind:ident $args:tt)?,)*
                })?,
            )*
        }
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum $name {
            $(
                $(#[$variant_meta])*
                $variant $(($inner_type))? $({ $($(#[$field_meta])* $field: $type,)* })?,
            )*
        }

        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut $crate::frame::FrameWriter) {
                match self {
                    $($name::$variant $(($inner))? $({ $($field,)* })? => {
                        out.u8($number);
                        $($crate::fields::put!(out, $inner $(, $inner_kind $inner_args)?);)?
                        $($($crate::fields::put!(out, $field $(, $kind $args)?);)*)?
                    })*
                }
            }
        }

        impl $crate::codec::Decode for $name {
            fn decode(r: &mut $crate::codec::Reader) -> Result<$name, $crate::codec::WireError> {
                let unknown = r.invalid($what);
                Ok(match r.u8()? {
                    $($number => $name::$variant
                        $(($crate::fields::read!(r, $inner_type $(, $inner_kind $inner_args)?)))?
                        $({ $($field: $crate::fields::read!(r, $type $(, $kind $args)?),)* })?,)*
                    _ => return Err(unknown),
                })
            }
        }

        #[cfg(test)]
        impl $crate::tests::Arbitrary for $name {
            #[allow(unused_variables)]
            fn arbitrary(source: &mut $crate::tests::Source) -> $name {
                let variants: &[fn(&mut $crate::tests::Source) -> $name] = &[
                    $(|source| $name::$variant
                        $(($crate::fields::any!(
                            source, $inner_type $(, $inner_kind $inner_args)?
                        )))?
                        $({ $($field: $crate::fields::any!(source, $type $(, $kind $args)?),)* })?,
                    )*
                ];
                variants[source.below(variants.len())](source)
            }
        }

        $crate::fields::fields! { $($rest)* }
    };
}

/// Declares the messages of a link in both directions: their tags, and an enum per direction.
macro_rules! messages {
    (
        $(#[$tags_meta:meta])*
        pub mod tag {
            $($more:item)*
        }
        $(
            $(#[$meta:meta])*
            pub enum $name:ident {
                $(
                    $(#[$variant_meta:meta])*
                    $tag:ident = $number:literal => $variant:ident
                    $(($inner:ident: $inner_type:ty $(= $inner_kind:ident $inner_args:tt)?))?
                    $({
                        $(
                            $(#[$field_meta:meta])*
                            $field:ident: $type:ty $(= $kind:ident $args:tt)?,
                        )*
                    })?,
                )*
            }
        )*
    ) => {
        $(#[$tags_meta])*
        pub mod tag {
            #![allow(missing_docs)]
            $($more)*
            $($(pub const $tag: u8 = $number;)*)*

            /// Every tag of the link with its name, per direction in the order of the enums.
            pub const ALL: &[(u8, &str)] = &[$($(($number, stringify!($tag)),)*)*];
        }

        $(
            $(#[$meta])*
            #[derive(Clone, PartialEq, Eq, Debug)]
            pub enum $name {
                $(
                    $(#[$variant_meta])*
                    $variant $(($inner_type))? $({ $($(#[$field_meta])* $field: $type,)* })?,
                )*
            }

            impl $name {
                /// Decodes the message with that tag. Returns `None` for a tag that this version
                /// does not know, which the caller skips.
                pub fn decode(
                    tag: u8,
                    body: bytes::Bytes,
                ) -> Result<Option<$name>, $crate::codec::WireError> {
                    let r = &mut $crate::codec::Reader::new(body);
                    Ok(Some(match tag {
                        $($number => $name::$variant
                            $(($crate::fields::read!(
                                r, $inner_type $(, $inner_kind $inner_args)?
                            )))?
                            $({ $($field: $crate::fields::read!(r, $type $(, $kind $args)?),)* })?,
                        )*
                        _ => return Ok(None),
                    }))
                }

                /// Writes the message.
                pub fn encode(&self, out: &mut $crate::frame::FrameWriter) {
                    match self {
                        $($name::$variant $(($inner))? $({ $($field,)* })? => {
                            out.message($number, |out| {
                                $($crate::fields::put!(out, $inner $(, $inner_kind $inner_args)?);)?
                                $($($crate::fields::put!(out, $field $(, $kind $args)?);)*)?
                            });
                        })*
                    }
                }
            }

            #[cfg(test)]
            impl $crate::tests::Arbitrary for $name {
                #[allow(unused_variables)]
                fn arbitrary(source: &mut $crate::tests::Source) -> $name {
                    let variants: &[fn(&mut $crate::tests::Source) -> $name] = &[
                        $(|source| $name::$variant
                            $(($crate::fields::any!(
                                source, $inner_type $(, $inner_kind $inner_args)?
                            )))?
                            $({
                                $($field: $crate::fields::any!(source, $type $(, $kind $args)?),)*
                            })?,
                        )*
                    ];
                    variants[source.below(variants.len())](source)
                }
            }
        )*
    };
}

/// Declares enums whose variants are numbers on the wire, each with its text for people.
macro_rules! codes {
    (
        $(#[$doc:meta])*
        $name:ident, $what:literal {
            $($(#[$vdoc:meta])* $variant:ident = $code:literal, $text:literal;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
        pub enum $name {
            $($(#[$vdoc])* #[error($text)] $variant,)*
        }

        impl $name {
            /// The number on the wire.
            pub fn code(self) -> u8 {
                match self { $($name::$variant => $code,)* }
            }

            /// Returns the variant with that number.
            pub fn from_code(code: u8) -> Option<$name> {
                match code { $($code => Some($name::$variant),)* _ => None }
            }

            /// All variants.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
        }

        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut $crate::frame::FrameWriter) {
                out.u8(self.code());
            }
        }

        impl $crate::codec::Decode for $name {
            fn decode(r: &mut $crate::codec::Reader) -> Result<$name, $crate::codec::WireError> {
                let invalid = r.invalid($what);
                $name::from_code(r.u8()?).ok_or(invalid)
            }
        }

        #[cfg(test)]
        impl $crate::tests::Arbitrary for $name {
            fn arbitrary(source: &mut $crate::tests::Source) -> $name {
                source.one_of($name::ALL)
            }
        }
    };
}

/// Writes a bit mask of the options that are present, then those options in order.
macro_rules! put_masked {
    ($out:ident, $($bit:literal => $value:expr,)*) => {
        $out.u64(0 $(| u64::from($value.is_some()) << $bit)*);
        $(if let Some(value) = &$value {
            $crate::codec::Encode::encode(value, $out);
        })*
    };
}

/// Reads into variables what `put_masked` wrote. An unknown bit is an error rather than skipped:
/// ignoring an option would break a promise to the sender.
macro_rules! read_masked {
    ($r:ident, $mask:ident, $unknown:literal, $($bit:literal => $name:ident: $read:expr,)*) => {
        let unknown = $r.invalid($unknown);
        let $mask = $r.u64()?;
        if $mask & !(0 $(| 1 << $bit)*) != 0 {
            return Err(unknown);
        }
        $(let $name = if $mask & 1 << $bit != 0 { Some($read(&mut *$r)?) } else { None };)*
    };
}

/// Reads one field of a kind.
macro_rules! read {
    (@all $r:ident $body:tt) => {
        $body
    };
    (@all $r:ident record $body:tt) => {
        $r.record(|$r| $body)
    };
    (@all $r:ident record($what:expr, $limit:expr) $body:tt) => {
        $r.record_within($what, $limit, |$r| $body)
    };
    ($r:ident, $type:ty) => {
        <$type as $crate::codec::Decode>::decode($r)?
    };
    ($r:ident, $type:ty, at_most($what:expr, $limit:expr)) => {
        <$type as $crate::codec::Bounded>::read($r, $what, $limit)?
    };
    ($r:ident, $type:ty, cut($what:expr, $limit:expr)) => {
        $r.string($what, $limit)?
    };
    ($r:ident, $type:ty, valid($what:expr, $holds:expr)) => {
        $r.valid::<$type>($what, $holds)?
    };
    ($r:ident, $type:ty, read_by($read:expr $(, $any:expr)?)) => {
        $read(&mut *$r)?
    };
    ($r:ident, $type:ty, with($module:ident)) => {
        $module::read($r)?
    };
    ($r:ident, $type:ty, body()) => {
        <$type>::decode($r.take_body())?
    };
}

/// Writes one field of a kind.
macro_rules! put {
    (@all $out:ident { $($body:tt)* }) => { $($body)* };
    (@all $out:ident record $body:tt) => { $out.record(|$out| $body) };
    ($out:ident, $value:expr, cut($what:expr, $limit:expr)) => {
        $out.string_cut($value, $limit)
    };
    ($out:ident, $value:expr, with($module:ident)) => { $module::put($value, $out) };
    ($out:ident, $value:expr, body()) => { $out.put_shared($value.body().clone()) };
    ($out:ident, $value:expr $(, $kind:ident $args:tt)?) => {
        $crate::codec::Encode::encode($value, $out)
    };
}

/// Generates a value of one field of a kind, for tests.
#[cfg(test)]
macro_rules! any {
    ($source:ident, $type:ty, valid($what:expr, $holds:expr)) => {
        $source.satisfying::<$type>($holds)
    };
    ($source:ident, $type:ty, read_by($read:expr)) => {
        $source.decodable::<$type>(|r| $read(r).is_ok())
    };
    ($source:ident, $type:ty, read_by($read:expr, $any:expr)) => {
        $any(&mut *$source)
    };
    ($source:ident, $type:ty $(, $kind:ident $args:tt)?) => {
        $source.of::<$type>()
    };
}

#[cfg(test)]
pub(crate) use any;
pub(crate) use {codes, fields, messages, put, put_masked, read, read_masked};
