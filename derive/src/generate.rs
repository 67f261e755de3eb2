//! Generates the implementation.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{Data, DeriveInput, Error, Fields, Ident, LitStr, Result, parse_quote};

use crate::attributes::Attributes;

/// Characters of globs, which paths do not contain. Neither do they contain control characters.
const NOT_IN_PATHS: &[char] = &['*', '?', '{', '}', '[', ']'];
/// Limits of paths, as the crate `longshore-protocol` has them.
const PATH_BYTES_MAX: usize = 1_024;
const PATH_SEGMENTS_MAX: usize = 32;
const SEGMENT_BYTES_MAX: usize = 255;

pub(crate) fn job_kind(input: &DeriveInput) -> Result<TokenStream> {
    let attributes = Attributes::of(input)?;
    let keys = keys(input, &attributes)?;
    let Attributes { path, output, codec, options, longshore, .. } = attributes;
    let parameters = parameters(&path)?;
    let fields = parameters.iter().map(|name| field(input, &path, name));
    let fields = fields.collect::<Result<Vec<Ident>>>()?;
    if let Some(lifetime) = input.generics.lifetimes().next() {
        let borrows = "a job kind owns its payload, which outlives the program that enqueued it: \
                       use owned types, such as String, and no lifetime";
        return Err(Error::new(lifetime.lifetime.span(), borrows));
    }
    let kind = &input.ident;
    let mut generics = input.generics.clone();
    if !generics.params.is_empty() {
        let conditions = generics.make_where_clause();
        conditions.predicates.push(parse_quote!(Self: ::std::marker::Send + 'static));
        let codes = parse_quote!(#codec: #longshore::Codec<Self> + #longshore::Codec<#output>);
        conditions.predicates.push(codes);
    }
    let (generics, arguments, conditions) = generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #generics #longshore::JobKind for #kind #arguments #conditions {
            const PATH: &'static str = #path;
            type Output = #output;
            type Codec = #codec;

            fn path(&self) -> ::std::result::Result<#longshore::Path, #longshore::ParameterError> {
                #longshore::__fill(#path, &[#((#parameters, &self.#fields)),*])
            }

            fn options() -> #longshore::JobOptions {
                #longshore::JobOptions {
                    #(#options,)*
                    ..::std::default::Default::default()
                }
            }

            #keys
        }
    })
}

/// The method that makes a job's keys; none for a kind without keys.
fn keys(input: &DeriveInput, attributes: &Attributes) -> Result<Option<TokenStream>> {
    let Attributes { unique, keys, fair_weight, cost, longshore, .. } = attributes;
    let mut fields = Vec::new();
    let some = |value: TokenStream| quote!(::std::option::Option::Some(#value));
    if let Some(calls) = unique {
        let unique = some(quote!(#longshore::Unique::by_payload()#calls));
        fields.push(quote!(unique: #unique));
    }
    for (name, literal) in keys {
        let text = key(input, literal)?;
        fields.push(match name.as_str() {
            "order_key" => {
                let order = some(text);
                quote!(order: #order)
            }
            "limit_key" => {
                let limit = some(text);
                quote!(limit: #limit)
            }
            "fair_key" => {
                let fair = some(quote!(#longshore::FairKey { key: #text, weight: #fair_weight }));
                quote!(fair: #fair)
            }
            _ => {
                let none = quote!(::std::option::Option::None);
                let key = some(quote!(#longshore::Idempotency { key: #text, for_ms: #none }));
                quote!(idempotency: #key)
            }
        });
    }
    if let Some(cost) = cost {
        let cost = some(quote!(#cost));
        fields.push(quote!(cost: #cost));
    }
    if fields.is_empty() {
        return Ok(None);
    }
    let made = some(quote! {
        #longshore::JobKeys { #(#fields,)* ..::std::default::Default::default() }
    });
    Ok(Some(quote! {
        #[allow(clippy::needless_update)]
        fn keys(&self) -> ::std::option::Option<#longshore::JobKeys> {
            #made
        }
    }))
}

/// The text of a key, with its parameters filled in.
fn key(input: &DeriveInput, literal: &LitStr) -> Result<TokenStream> {
    let text = literal.value();
    let mut names: Vec<&str> = Vec::new();
    let mut rest = text.as_str();
    while let Some((_, from)) = rest.split_once('{') {
        let Some((name, after)) = from.split_once('}') else {
            return Err(Error::new(literal.span(), "a '{' of the key is not closed"));
        };
        if !names.contains(&name) {
            names.push(name);
        }
        rest = after;
    }
    let fields = names.iter().map(|name| field(input, literal, name));
    let fields = fields.collect::<Result<Vec<Ident>>>()?;
    let names = fields.iter();
    Ok(quote!(::std::format!(#literal, #(#names = self.#fields),*)))
}

/// Checks a path, and returns its parameters.
fn parameters(literal: &LitStr) -> Result<Vec<String>> {
    let path = literal.value();
    let wrong = |why: String| Error::new(literal.span(), why);
    let Some(below) = path.strip_prefix('/') else {
        return Err(wrong(format!("the path '{path}' does not begin with '/'")));
    };
    if path.len() > PATH_BYTES_MAX || below.split('/').count() > PATH_SEGMENTS_MAX {
        return Err(wrong(format!(
            "the path is too long: at most {PATH_BYTES_MAX} bytes and {PATH_SEGMENTS_MAX} segments"
        )));
    } else if below == "sys" || below.starts_with("sys/") {
        return Err(wrong("paths at and below /sys are reserved; use another path".to_owned()));
    }
    let mut parameters = Vec::new();
    for segment in below.split('/') {
        let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let text = name.unwrap_or(segment);
        let is_bad = |c: char| c.is_control() || NOT_IN_PATHS.contains(&c);
        if text.is_empty() {
            return Err(wrong(format!("the path '{path}' has an empty segment")));
        } else if segment.len() > SEGMENT_BYTES_MAX {
            return Err(wrong(format!(
                "a segment of {} bytes is over the limit of {SEGMENT_BYTES_MAX}",
                segment.len()
            )));
        } else if text.contains(is_bad) || matches!(text, "." | "..") {
            return Err(wrong(format!(
                "'{segment}' is no segment of a path: control characters and * ? {{ }} [ ] are \
                 not allowed, and a parameter is a whole segment: /tenants/{{tenant}}/mail"
            )));
        }
        parameters.extend(name.map(str::to_owned));
    }
    Ok(parameters)
}

/// The field that a parameter is filled from.
fn field(input: &DeriveInput, literal: &LitStr, name: &str) -> Result<Ident> {
    let fields: Vec<Ident> = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => fields.named.iter().filter_map(|f| f.ident.clone()).collect(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    fields.iter().find(|ident| ident.unraw() == name).cloned().ok_or_else(|| {
        let (kind, fields) = (&input.ident, fields.iter().map(|ident| ident.unraw().to_string()));
        let fields = match fields.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => "it has no named fields".to_owned(),
            fields => format!("its fields: {fields}"),
        };
        let text = literal.value();
        let error = format!("'{kind}' has no field '{name}' for {{{name}}} in '{text}'; {fields}");
        Error::new(literal.span(), error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived(input: &str) -> std::result::Result<String, String> {
        let input = syn::parse_str(input).expect("Rust");
        job_kind(&input).map(|tokens| tokens.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn attributes_become_options() {
        let kind = r#"#[job(path = "/t/{tenant}/mail", max_attempts = 5, timeout = "30s",
            backoff = "exponential:2s..10m", priority = -1, keep = "7d", keep_result, output = u32)]
            struct Welcome { tenant: String }"#;
        let derived = derived(kind).unwrap();
        for part in [
            "max_attempts : :: std :: option :: Option :: Some (5u16)",
            "run_timeout_ms : :: std :: option :: Option :: Some (30000u64)",
            "Exponential { base_ms : 2000u32 , max_ms : 600000u32 }",
            "priority : - 1",
            "keep_result : true",
            "type Output = u32",
            r#"("tenant" , & self . tenant)"#,
        ] {
            assert!(derived.contains(part), "{part} is not in {derived}");
        }
    }

    #[test]
    fn a_kind_may_be_unique_by_its_payload() {
        let unique = |attributes: &str| {
            derived(&format!(r#"#[job(path = "/a", {attributes})] struct Job {{ a: u8 }}"#))
        };
        for (attributes, calls) in [
            (r#"unique = "end""#, "Unique :: by_payload ())"),
            (r#"unique = "start", on_conflict = "replace""#, ". until_start () . replace ()"),
            (r#"unique = "10m", on_conflict = "refuse""#, "from_millis (600000u64)) . refuse ()"),
        ] {
            let derived = unique(attributes).unwrap();
            assert!(derived.contains(calls), "{attributes}: {derived}");
        }
        assert!(!unique("keep_result").unwrap().contains("unique"));
    }

    #[test]
    fn keys_are_made_of_fields() {
        let keys = |attributes: &str| {
            let kind = "struct Job { tenant: String, account: u64 }";
            derived(&format!(r#"#[job(path = "/a", {attributes})] {kind}"#))
        };
        for (attributes, expected) in [
            (
                r#"order_key = "{tenant}/{account}""#,
                r#"{account}" , tenant = self . tenant , account = self . account)"#,
            ),
            (
                r#"limit_key = "smtp", cost = 3"#,
                r#"cost : :: std :: option :: Option :: Some (3u16)"#,
            ),
            (r#"fair_key = "{tenant}", fair_weight = 5"#, "weight : 5u16"),
            (r#"fair_key = "{tenant}""#, "weight : 1u16"),
            (r#"idempotency_key = "{account}""#, "Idempotency { key : "),
        ] {
            let derived = keys(attributes).unwrap();
            assert!(derived.contains(expected), "{attributes}: {derived}");
        }
        for (attributes, expected) in [
            (r#"order_key = "{city}""#, "no field 'city'"),
            (r#"order_key = "{city""#, "not closed"),
            (r#"limit_key = """#, "1 to 80 bytes"),
            ("cost = 0", "1 to 1000"),
            ("fair_weight = 2", "needs fair_key"),
        ] {
            let refused = keys(attributes).unwrap_err();
            assert!(refused.contains(expected), "{attributes}: {refused}");
        }
    }

    #[test]
    fn a_parameter_may_be_a_raw_identifier() {
        let derived = derived(r#"#[job(path = "/a/{type}")] struct Job { r#type: u8 }"#).unwrap();
        assert!(derived.contains(r#"("type" , & self . r#type)"#), "{derived}");
    }

    #[test]
    fn a_kind_with_a_lifetime_is_refused() {
        let refused = derived(r#"#[job(path = "/a")] struct Job<'a> { b: &'a str }"#).unwrap_err();
        assert!(refused.contains("owns its payload"), "{refused}");
    }

    #[test]
    fn all_wrong_attributes_are_reported_at_once() {
        let kind = r#"#[job(path = "/a", timeout = "1 s", retries = 3, keep = 7, backoff = "no")]
            struct Job { a: u8 }"#;
        let errors = job_kind(&syn::parse_str(kind).expect("Rust")).unwrap_err();
        let errors: Vec<String> = errors.into_iter().map(|error| error.to_string()).collect();
        let expected = ["no duration", "not an attribute", "string literal", "no back-off"];
        assert_eq!(errors.len(), expected.len(), "{errors:?}");
        assert!(
            errors.iter().zip(expected).all(|(error, text)| error.contains(text)),
            "{errors:?}"
        );
    }

    #[test]
    fn errors_name_the_fault_and_the_remedy() {
        for (attribute, expected) in [
            ("", "needs its queue"),
            (r#"path = "jobs""#, "does not begin with '/'"),
            (r#"path = "/jobs/""#, "empty segment"),
            (r#"path = "/sys/jobs""#, "reserved"),
            (r#"path = "/jobs/a-{b}""#, "whole segment"),
            (r#"path = "/jobs/{b}""#, "has no field 'b'"),
            (r#"path = "/a", timeout = "30 seconds""#, "no duration: write a whole number"),
            (r#"path = "/a", lease = "1ms""#, "out of its range"),
            (r#"path = "/a", backoff = "sometimes""#, "no back-off: write exponential:2s..10m"),
            (r#"path = "/a", unique = "31d""#, "out of its range"),
            (r#"path = "/a", on_conflict = "keep""#, "on_conflict needs unique"),
            (r#"path = "/a", unique = "end", on_conflict = "ask""#, "keep, replace nor refuse"),
            (r#"path = "/a", max_attempts = 0"#, "1 to 65535"),
            (r#"path = "/a", retries = 3"#, "there are path, output"),
            (r#"path = "/a", path = "/b""#, "given twice"),
        ] {
            let error =
                derived(&format!("#[job({attribute})] struct Job {{ a: u8 }}")).unwrap_err();
            assert!(error.contains(expected), "{attribute}: {error}");
        }
    }
}
