//! Who a client is, by its certificate.
//!
//! The identity is the first URI among the subject alternative names; without a URI the first DNS
//! name; without either the subject's common name. A name that cannot serve is an error, and never
//! makes way for the next kind: else an authority that limits URIs would not limit identities.
//!
//! This is for certificates whose signatures are verified. It reads no other extension, so that the
//! parsers of all others are out of a stranger's reach.

use x509_parser::certificate::{X509Certificate, X509CertificateParser};
use x509_parser::extensions::{GeneralName, SubjectAlternativeName};
use x509_parser::nom::Parser as _;
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::FromDer as _;

use crate::identity::{IDENTITY_BYTES_MAX, Identity, NameKind};

/// The tags of general names, for those whose text is invalid.
const TAG_DNS: u32 = 2;
const TAG_URI: u32 = 6;

/// Why a certificate gives no usable identity.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CertificateError {
    /// The bytes are no certificate, or more than one.
    #[error("not a certificate: {why}")]
    NotACertificate {
        /// The parser's error.
        why: String,
    },
    /// The subject alternative names cannot be read, or stand there twice.
    #[error("its subject alternative names are invalid")]
    AlternativeNames,
    /// The subject has several common names.
    #[error("its subject has more than one common name")]
    CommonNames,
    /// The name is not ASCII, or, for a common name, not UTF-8.
    #[error("its {} is not text", label(*.0))]
    NotText(NameKind),
    /// The name is empty.
    #[error("its {} is empty", label(*.0))]
    Empty(NameKind),
    /// The name is longer than [`IDENTITY_BYTES_MAX`].
    #[error(
        "its {} has {bytes} bytes; an identity has at most {IDENTITY_BYTES_MAX}",
        label(*.kind)
    )]
    TooLong {
        /// Where it stands.
        kind: NameKind,
        /// Its length.
        bytes: usize,
    },
    /// The name contains a control character, such as NUL.
    #[error("its {} contains a control character", label(*.0))]
    ControlCharacter(NameKind),
}

/// The identity that a certificate gives to a client; none if it has no such name.
pub fn identity_of(der: &[u8]) -> Result<Option<Identity>, CertificateError> {
    named_in(&parsed(der)?)
}

/// The identity, and the time in milliseconds since 1970 from which on the certificate is no longer
/// valid.
pub(crate) fn identity_and_end(der: &[u8]) -> Result<(Option<Identity>, u64), CertificateError> {
    let certificate = parsed(der)?;
    // The last valid second is a whole one.
    let end = certificate.validity().not_after.timestamp().saturating_add(1);
    let end_ms = u64::try_from(end).unwrap_or(0).saturating_mul(1_000);
    Ok((named_in(&certificate)?, end_ms))
}

fn parsed(der: &[u8]) -> Result<X509Certificate<'_>, CertificateError> {
    let not_a_certificate = |why: String| CertificateError::NotACertificate { why };
    let (rest, certificate) = X509CertificateParser::new()
        .with_deep_parse_extensions(false)
        .parse(der)
        .map_err(|why| not_a_certificate(why.to_string()))?;
    if !rest.is_empty() {
        return Err(not_a_certificate(format!("{} bytes follow it", rest.len())));
    }
    Ok(certificate)
}

fn named_in(certificate: &X509Certificate<'_>) -> Result<Option<Identity>, CertificateError> {
    let names = alternative_names(certificate)?;
    for kind in [NameKind::Uri, NameKind::Dns] {
        if let Some(name) = names.iter().find_map(|name| bytes_of(name, kind)) {
            return checked(name, kind).map(Some);
        }
    }
    let mut common_names = certificate.subject().iter_common_name();
    let Some(name) = common_names.next() else { return Ok(None) };
    if common_names.next().is_some() {
        return Err(CertificateError::CommonNames);
    }
    let text = name.as_str().map_err(|_| CertificateError::NotText(NameKind::CommonName))?;
    checked(text.as_bytes(), NameKind::CommonName).map(Some)
}

fn alternative_names<'a>(
    certificate: &X509Certificate<'a>,
) -> Result<Vec<GeneralName<'a>>, CertificateError> {
    let extension = certificate
        .get_extension_unique(&OID_X509_EXT_SUBJECT_ALT_NAME)
        .map_err(|_| CertificateError::AlternativeNames)?;
    let Some(extension) = extension else { return Ok(Vec::new()) };
    match SubjectAlternativeName::from_der(extension.value) {
        Ok(([], names)) => Ok(names.general_names),
        _ => Err(CertificateError::AlternativeNames),
    }
}

/// The bytes of a name of this kind, also of one that is not text.
fn bytes_of<'a>(name: &GeneralName<'a>, kind: NameKind) -> Option<&'a [u8]> {
    match (name, kind) {
        (GeneralName::URI(text), NameKind::Uri) | (GeneralName::DNSName(text), NameKind::Dns) => {
            Some(text.as_bytes())
        }
        (GeneralName::Invalid(tag, bytes), NameKind::Uri) if tag.0 == TAG_URI => Some(*bytes),
        (GeneralName::Invalid(tag, bytes), NameKind::Dns) if tag.0 == TAG_DNS => Some(*bytes),
        _ => None,
    }
}

fn checked(name: &[u8], kind: NameKind) -> Result<Identity, CertificateError> {
    // A DNS name may end with a dot, which is no part of it.
    if name.is_empty() || kind == NameKind::Dns && name == b"." {
        return Err(CertificateError::Empty(kind));
    }
    if name.len() > IDENTITY_BYTES_MAX {
        return Err(CertificateError::TooLong { kind, bytes: name.len() });
    }
    let text = std::str::from_utf8(name).map_err(|_| CertificateError::NotText(kind))?;
    // URIs and DNS names are IA5 strings.
    if kind != NameKind::CommonName && !text.is_ascii() {
        return Err(CertificateError::NotText(kind));
    }
    if text.chars().any(char::is_control) {
        return Err(CertificateError::ControlCharacter(kind));
    }
    Ok(Identity::new(kind, kind.normal(text)))
}

/// A kind of name as a certificate has it.
fn label(kind: NameKind) -> &'static str {
    match kind {
        NameKind::Uri => "first URI",
        NameKind::Dns => "first DNS name",
        NameKind::CommonName => "common name",
        NameKind::Token => "token",
        NameKind::Jwt => "JWT",
        NameKind::Unix => "user",
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    /// A name that tests replace in the bytes of a certificate, as rcgen writes valid text only.
    const PLACEHOLDER: &str = "PLACEHOLDER";

    fn common(name: &str) -> DistinguishedName {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, name);
        subject
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    fn dns(text: &str) -> SanType {
        SanType::DnsName(text.try_into().unwrap())
    }

    fn certificate(subject: DistinguishedName, names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject;
        params.subject_alt_names = names;
        der(&params)
    }

    fn der(params: &CertificateParams) -> Vec<u8> {
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    /// Replaces each [`PLACEHOLDER`] by bytes of its length.
    fn with(der: &[u8], bytes: &[u8; PLACEHOLDER.len()]) -> Vec<u8> {
        let mut der = der.to_vec();
        let mut at = 0;
        let mut replaced = 0;
        while at + bytes.len() <= der.len() {
            if der[at..].starts_with(PLACEHOLDER.as_bytes()) {
                der[at..at + bytes.len()].copy_from_slice(bytes);
                replaced += 1;
            }
            at += 1;
        }
        assert!(replaced > 0, "no placeholder");
        der
    }

    /// The text of the certificate's identity.
    fn identity_of(der: &[u8]) -> Result<Option<String>, CertificateError> {
        super::identity_of(der).map(|identity| identity.map(|identity| identity.to_string()))
    }

    #[test]
    fn a_uri_comes_before_a_dns_name_before_the_common_name() {
        let address = SanType::IpAddress("10.0.0.5".parse().unwrap());
        let mail = SanType::Rfc822Name("ann@example.com".try_into().unwrap());
        let spiffe = "spiffe://example.com/worker";
        let as_uri = "uri:spiffe://example.com/worker";
        for (names, identity) in [
            (vec![dns("b.test"), uri(spiffe), uri("urn:x:2")], as_uri),
            (vec![address.clone(), mail.clone(), dns("b.test"), dns("a.test")], "dns:b.test"),
            (vec![address, mail], "cn:worker-1"),
            (vec![], "cn:worker-1"),
        ] {
            let der = certificate(common("worker-1"), names);
            assert_eq!(identity_of(&der), Ok(Some(identity.to_owned())));
        }
        let der = certificate(common("grüße 日本"), vec![]);
        assert_eq!(identity_of(&der), Ok(Some("cn:grüße 日本".to_owned())));
    }

    #[test]
    fn without_any_such_name_there_is_no_identity() {
        assert_eq!(identity_of(&certificate(DistinguishedName::new(), vec![])), Ok(None));
        let mut organisation = DistinguishedName::new();
        organisation.push(DnType::OrganizationName, "Example");
        let address = SanType::IpAddress("10.0.0.5".parse().unwrap());
        assert_eq!(identity_of(&certificate(organisation, vec![address])), Ok(None));
    }

    #[test]
    fn a_name_that_cannot_serve_is_an_error_and_never_skipped() {
        use CertificateError::{ControlCharacter, Empty, NotText, TooLong};
        use NameKind::{CommonName as Common, Dns, Uri};
        let fallback = || vec![dns("fallback.test"), uri("urn:fallback")];
        let bad_uri = |text: &str| [vec![uri(text)], fallback()].concat();
        let bad_dns = |text: &str| vec![dns(text), dns("fallback.test")];
        let long = format!("urn:{}", "x".repeat(IDENTITY_BYTES_MAX - 4));
        assert_eq!(
            identity_of(&certificate(common("c"), bad_uri(&long))),
            Ok(Some(format!("uri:{long}")))
        );
        let longer = format!("{long}x");
        for (names, error) in [
            (bad_uri(""), Empty(Uri)),
            (bad_dns(""), Empty(Dns)),
            (bad_uri("urn:a\0b"), ControlCharacter(Uri)),
            (bad_dns("a.test\0.evil.test"), ControlCharacter(Dns)),
            (bad_uri("urn:\x1b[31m"), ControlCharacter(Uri)),
            (bad_uri(&longer), TooLong { kind: Uri, bytes: IDENTITY_BYTES_MAX + 1 }),
        ] {
            assert_eq!(identity_of(&certificate(common("c"), names)), Err(error));
        }
        for (name, error) in [
            ("", Empty(Common)),
            ("admin\0", ControlCharacter(Common)),
            ("admin\u{85}", ControlCharacter(Common)),
            (&longer, TooLong { kind: Common, bytes: IDENTITY_BYTES_MAX + 1 }),
        ] {
            assert_eq!(identity_of(&certificate(common(name), vec![])), Err(error), "{name:?}");
        }
        // Not UTF-8; and UTF-8, where only ASCII is allowed.
        for bytes in [b"ab\xff\xfe5678901", "ä23456789ab".as_bytes().first_chunk().unwrap()] {
            for (names, kind) in [(bad_uri(PLACEHOLDER), Uri), (bad_dns(PLACEHOLDER), Dns)] {
                let der = with(&certificate(common("c"), names), bytes);
                assert_eq!(identity_of(&der), Err(NotText(kind)));
            }
        }
        let der = with(&certificate(common(PLACEHOLDER), vec![]), b"ab\xff\xfe5678901");
        assert_eq!(identity_of(&der), Err(NotText(Common)));
        let mut wide = DistinguishedName::new();
        let utf_16 = rcgen::DnValue::BmpString("admin".try_into().unwrap());
        wide.push(DnType::CommonName, utf_16);
        assert_eq!(identity_of(&certificate(wide, vec![])), Err(NotText(Common)));
    }

    #[test]
    fn two_common_names_are_ambiguous() {
        let mut subject = common("worker-1");
        // The same attribute, which rcgen takes for another.
        subject.push(DnType::CustomDnType(vec![2, 5, 4, 3]), "admin");
        let named = |names| identity_of(&certificate(subject.clone(), names));
        assert_eq!(named(vec![]), Err(CertificateError::CommonNames));
        assert_eq!(named(vec![dns("a.test")]), Ok(Some("dns:a.test".to_owned())));
    }

    #[test]
    fn alternative_names_that_are_given_twice_or_damaged_are_refused() {
        let extended = |contents: &[&[u8]]| {
            let mut params = CertificateParams::default();
            params.distinguished_name = common("c");
            params.custom_extensions = contents
                .iter()
                .map(|content| CustomExtension::from_oid_content(&[2, 5, 29, 17], content.to_vec()))
                .collect();
            identity_of(&der(&params))
        };
        let first = b"\x30\x08\x86\x06urn:ab";
        assert_eq!(extended(&[first]), Ok(Some("uri:urn:ab".to_owned())));
        let damaged: [&[&[u8]]; 5] = [
            &[first, first],
            &[b"\x30\x08\x86\x06urn:abtail"],
            &[b"\x30\x08\x86\x07urn:ab"],
            &[b"\x30\x09\x86\x06urn:ab"],
            &[b""],
        ];
        for contents in damaged {
            assert_eq!(extended(contents), Err(CertificateError::AlternativeNames), "{contents:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_are_refused() {
        let whole = certificate(common("c"), vec![uri("urn:a")]);
        for end in 0..whole.len() {
            assert!(identity_of(&whole[..end]).is_err(), "{end} bytes");
        }
        let two = [whole.as_slice(), &whole].concat();
        for bytes in [two.as_slice(), b"-----BEGIN CERTIFICATE-----", &[0x30, 0x84, 0xff, 0xff]] {
            assert!(matches!(identity_of(bytes), Err(CertificateError::NotACertificate { .. })));
        }
        // No bit makes it panic.
        for at in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            let _ = identity_of(&flipped);
        }
    }
}
