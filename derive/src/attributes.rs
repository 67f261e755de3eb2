//! Parses `#[job(…)]`.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{DeriveInput, Error, LitInt, LitStr, Path, Result, Token, Type, parse_quote};

use crate::time::{backoff, milliseconds};

/// A hundred years, the longest that anything may take.
const YEARS_100_MS: u64 = 100 * 365 * 86_400_000;
/// The longest period of a unique key.
const DAYS_30_MS: u64 = 30 * 86_400_000;
/// The most units of a job, and the largest weight of a fair key.
const UNITS_MAX: u16 = 1_000;

/// The attributes of a kind.
pub(crate) struct Attributes {
    pub(crate) path: LitStr,
    pub(crate) output: Type,
    pub(crate) codec: Type,
    /// Fields of `JobOptions` that differ from their defaults.
    pub(crate) options: Vec<TokenStream>,
    /// Calls of methods of `Unique`; none for a kind that is not unique.
    pub(crate) unique: Option<TokenStream>,
    /// The texts of its other keys, by name of their attribute, with parameters like a path's.
    pub(crate) keys: Vec<(String, LitStr)>,
    pub(crate) fair_weight: u16,
    pub(crate) cost: Option<u16>,
    /// Where the crate `longshore` is.
    pub(crate) longshore: Path,
}

/// The attributes parsed so far.
#[derive(Default)]
struct Parser {
    path: Option<LitStr>,
    output: Option<Type>,
    codec: Option<Type>,
    backoff: Option<LitStr>,
    options: Vec<TokenStream>,
    unique: Option<TokenStream>,
    on_conflict: Option<(Span, TokenStream)>,
    keys: Vec<(String, LitStr)>,
    fair_weight: Option<(Span, u16)>,
    cost: Option<u16>,
    longshore: Option<Path>,
    seen: Vec<Option<String>>,
    /// All errors so far, as one.
    error: Option<Error>,
}

impl Attributes {
    pub(crate) fn of(input: &DeriveInput) -> Result<Attributes> {
        let mut read = Parser::default();
        for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("job")) {
            attribute.parse_nested_meta(|meta| {
                if let Err(error) = read.add(&meta) {
                    read.add_error(error);
                    // What is wrong with the next attribute is reported, too.
                    while !meta.input.is_empty() && !meta.input.peek(Token![,]) {
                        meta.input.parse::<TokenTree>()?;
                    }
                }
                Ok(())
            })?;
        }
        let longshore = read.longshore.take().unwrap_or_else(|| parse_quote!(::longshore));
        match read.backoff.take().map(|literal| backoff(&literal, &longshore)) {
            Some(Ok(backoff)) => {
                read.options.push(quote!(backoff: ::std::option::Option::Some(#backoff)));
            }
            Some(Err(error)) => read.add_error(error),
            None => {}
        }
        let unique = match (read.unique.take(), read.on_conflict.take()) {
            (Some(unique), on_conflict) => {
                let on_conflict = on_conflict.map(|(_, call)| call);
                Some(quote!(#unique #on_conflict))
            }
            (None, Some((span, _))) => {
                let why = "on_conflict needs unique = \"end\", \"start\" or a duration";
                read.add_error(Error::new(span, why));
                None
            }
            (None, None) => None,
        };
        if let Some((span, _)) = read.fair_weight
            && !read.keys.iter().any(|(name, _)| name == "fair_key")
        {
            read.add_error(Error::new(span, "fair_weight needs fair_key = \"{field}\""));
        }
        let path = read.path.take();
        if path.is_none() && !read.seen.contains(&Some("path".to_owned())) {
            let missing = "a job kind needs its queue: #[job(path = \"/jobs/mail/welcome\")]";
            read.add_error(Error::new(Span::call_site(), missing));
        }
        let path = match (read.error.take(), path) {
            (None, Some(path)) => path,
            (error, _) => {
                let unread = || Error::new(Span::call_site(), "the path cannot be read");
                return Err(error.unwrap_or_else(unread));
            }
        };
        Ok(Attributes {
            path,
            output: read.output.unwrap_or_else(|| parse_quote!(())),
            codec: read.codec.unwrap_or_else(|| parse_quote!(#longshore::JsonCodec)),
            options: read.options,
            unique,
            keys: read.keys,
            fair_weight: read.fair_weight.map_or(1, |(_, weight)| weight),
            cost: read.cost,
            longshore,
        })
    }
}

impl Parser {
    fn add_error(&mut self, error: Error) {
        match &mut self.error {
            Some(errors) => errors.combine(error),
            None => self.error = Some(error),
        }
    }

    fn add(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        let name = meta.path.get_ident().map(ToString::to_string);
        if self.seen.contains(&name) {
            return Err(meta.error("given twice"));
        }
        self.seen.push(name.clone());
        let some = |value: TokenStream| quote!(::std::option::Option::Some(#value));
        let option = match name.as_deref() {
            Some("path") => return set(&mut self.path, meta),
            Some("output") => return set(&mut self.output, meta),
            Some("codec") => return set(&mut self.codec, meta),
            Some("backoff") => return set(&mut self.backoff, meta),
            Some("unique") => {
                let literal: LitStr = meta.value()?.parse()?;
                self.unique = Some(match literal.value().as_str() {
                    "end" => quote!(),
                    "start" => quote!(.until_start()),
                    _ => {
                        let ms = milliseconds(&literal, 1, DAYS_30_MS).map_err(|mut error| {
                            let texts = "a unique kind is so until \"end\", until \"start\", or \
                                         for a duration of 1ms to 30d";
                            error.combine(Error::new(literal.span(), texts));
                            error
                        })?;
                        quote!(.during(::std::time::Duration::from_millis(#ms)))
                    }
                });
                return Ok(());
            }
            Some("on_conflict") => {
                let literal: LitStr = meta.value()?.parse()?;
                let call = match literal.value().as_str() {
                    "keep" => quote!(),
                    "replace" => quote!(.replace()),
                    "refuse" => quote!(.refuse()),
                    other => {
                        let wrong = format!("'{other}' is neither keep, replace nor refuse");
                        return Err(Error::new(literal.span(), wrong));
                    }
                };
                self.on_conflict = Some((literal.span(), call));
                return Ok(());
            }
            Some(name @ ("idempotency_key" | "order_key" | "limit_key" | "fair_key")) => {
                let literal: LitStr = meta.value()?.parse()?;
                if literal.value().is_empty() {
                    return Err(Error::new(literal.span(), "a key has 1 to 80 bytes"));
                }
                self.keys.push((name.to_owned(), literal));
                return Ok(());
            }
            Some("fair_weight") => {
                self.fair_weight = Some((meta.path.span(), units(meta)?));
                return Ok(());
            }
            Some("cost") => {
                self.cost = Some(units(meta)?);
                return Ok(());
            }
            Some("crate") => {
                self.longshore = Some(meta.value()?.call(Path::parse_mod_style)?);
                return Ok(());
            }
            Some("max_attempts") => {
                let literal: LitInt = meta.value()?.parse()?;
                let attempts: u16 = literal.base10_parse()?;
                if attempts == 0 {
                    return Err(Error::new(literal.span(), "1 to 65535 attempts are possible"));
                }
                let attempts = some(quote!(#attempts));
                quote!(max_attempts: #attempts)
            }
            Some("priority") => {
                let priority: syn::Expr = meta.value()?.parse()?;
                quote!(priority: #priority)
            }
            Some("timeout") => {
                let ms = some(duration(meta, 0, YEARS_100_MS)?);
                quote!(run_timeout_ms: #ms)
            }
            Some("lease") => {
                // In its range it fits 32 bits.
                let ms = milliseconds(&meta.value()?.parse()?, 1_000, 43_200_000)? as u32;
                let ms = some(quote!(#ms));
                quote!(lease_ms: #ms)
            }
            Some("keep") => {
                let ms = some(duration(meta, 0, YEARS_100_MS)?);
                quote!(keep_ms: #ms)
            }
            Some("keep_result") => quote!(keep_result: true),
            _ => {
                return Err(meta.error(
                    "not an attribute of a job kind; there are path, output, codec, max_attempts, \
                     timeout, lease, backoff, priority, keep, keep_result, unique, on_conflict, \
                     idempotency_key, order_key, limit_key, cost, fair_key, fair_weight and crate",
                ));
            }
        };
        self.options.push(option);
        Ok(())
    }
}

fn set<T: syn::parse::Parse>(slot: &mut Option<T>, meta: &ParseNestedMeta<'_>) -> Result<()> {
    *slot = Some(meta.value()?.parse()?);
    Ok(())
}

/// A number of units, 1 to 1,000.
fn units(meta: &ParseNestedMeta<'_>) -> Result<u16> {
    let literal: LitInt = meta.value()?.parse()?;
    match literal.base10_parse()? {
        units @ 1..=UNITS_MAX => Ok(units),
        _ => Err(Error::new(literal.span(), format!("1 to {UNITS_MAX} are possible"))),
    }
}

fn duration(meta: &ParseNestedMeta<'_>, least: u64, most: u64) -> Result<TokenStream> {
    let ms = milliseconds(&meta.value()?.parse()?, least, most)?;
    Ok(quote!(#ms))
}
