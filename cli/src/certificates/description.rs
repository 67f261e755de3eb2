//! What a certificate says, for people and programs.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::{SubjectPublicKeyInfo, X509Name};

use crate::output::counted;
use crate::time::show_duration;
use longshore_access::{CertificateError, Identity, identity_of};

pub(crate) const DAY: i64 = 24 * 60 * 60;
/// How long before its end a certificate counts as expiring.
const EXPIRING_DAYS: i64 = 14;

/// A certificate's fields. Texts come from its author: escape them before a terminal gets them.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub(crate) subject: String,
    pub(crate) issuer: String,
    pub(crate) identity: Result<Option<Identity>, CertificateError>,
    pub(crate) dns: Vec<String>,
    pub(crate) ip: Vec<String>,
    pub(crate) uri: Vec<String>,
    /// Alternative names of other kinds.
    pub(crate) other_names: Vec<String>,
    /// In hexadecimal, as openssl prints it.
    pub(crate) serial: String,
    /// In seconds since 1970, as the next one.
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
    pub(crate) key_type: String,
    pub(crate) is_ca: bool,
    /// The SHA-256 digest of the certificate, as openssl prints it.
    pub(crate) sha256: String,
    /// The public key in DER.
    pub(crate) public_key: Vec<u8>,
}

/// Whether a certificate is valid at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Validity {
    NotYet,
    Valid,
    /// Valid for less than [`EXPIRING_DAYS`].
    Expiring,
    Expired,
}

impl Validity {
    /// Its word in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Validity::NotYet => "not_yet_valid",
            Validity::Valid => "valid",
            Validity::Expiring => "expiring",
            Validity::Expired => "expired",
        }
    }
}

impl Description {
    /// Describes a certificate in DER.
    pub(crate) fn of(der: &[u8]) -> Result<Description, String> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|why| why.to_string())?;
        if !rest.is_empty() {
            return Err(format!("{} bytes follow it", rest.len()));
        }
        let (mut dns, mut ip, mut uri, mut other_names) = (vec![], vec![], vec![], vec![]);
        // Damaged names have no identity, which is shown with the reason.
        let names = certificate.subject_alternative_name().ok().flatten();
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => dns.push((*name).to_owned()),
                GeneralName::URI(name) => uri.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => ip.push(address(bytes)),
                other => other_names.push(other.to_string()),
            }
        }
        let serial = certificate.raw_serial();
        let serial = match serial {
            [0, rest @ ..] if !rest.is_empty() => rest,
            _ => serial,
        };
        Ok(Description {
            subject: name(certificate.subject()),
            issuer: name(certificate.issuer()),
            identity: identity_of(der),
            dns,
            ip,
            uri,
            other_names,
            serial: hexadecimal(serial).to_lowercase(),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            key_type: key_type(certificate.public_key()),
            is_ca: certificate.is_ca(),
            sha256: hexadecimal(&Sha256::digest(der)),
            public_key: certificate.public_key().raw.to_vec(),
        })
    }

    /// Whether it is valid at `now`, in seconds since 1970.
    pub(crate) fn validity(&self, now: i64) -> Validity {
        match self.not_after.saturating_sub(now) {
            _ if now < self.not_before => Validity::NotYet,
            left if left < 0 => Validity::Expired,
            left if left < EXPIRING_DAYS * DAY => Validity::Expiring,
            _ => Validity::Valid,
        }
    }

    /// How long it is still valid, or since when not: `364 days left`, `EXPIRED 3 days ago`.
    pub(crate) fn time_left(&self, now: i64) -> String {
        match self.validity(now) {
            Validity::NotYet => {
                format!("NOT YET VALID for {}", span(self.not_before.saturating_sub(now)))
            }
            Validity::Valid => format!("{} left", span(self.not_after.saturating_sub(now))),
            Validity::Expiring => {
                format!("EXPIRES in {}", span(self.not_after.saturating_sub(now)))
            }
            Validity::Expired => {
                format!("EXPIRED {} ago", span(now.saturating_sub(self.not_after)))
            }
        }
    }

    /// All fields as JSON.
    pub(crate) fn json(&self, now: i64) -> Map<String, Value> {
        let (identity, error) = match &self.identity {
            Ok(identity) => (json!(identity.as_ref().map(Identity::to_string)), Value::Null),
            Err(why) => (Value::Null, json!(why.to_string())),
        };
        let fields = json!({
            "subject": self.subject, "identity": identity, "identity_error": error,
            "dns": self.dns, "ip": self.ip, "uri": self.uri, "other_names": self.other_names,
            "issuer": self.issuer, "serial": self.serial,
            "valid_from": show_time(self.not_before), "valid_until": show_time(self.not_after),
            "days_left": self.not_after.saturating_sub(now).div_euclid(DAY),
            "validity": self.validity(now).word(), "key_type": self.key_type, "ca": self.is_ca,
            "sha256": self.sha256,
        });
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

/// Seconds since 1970 as `2026-11-20T21:30:00Z`.
pub(crate) fn show_time(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}

/// A length of time: whole days, or below two of them hours and minutes.
fn span(seconds: i64) -> String {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    match seconds / DAY.unsigned_abs() {
        0 | 1 => show_duration(Duration::from_secs(seconds)),
        days => counted(days, "day"),
    }
}

/// A distinguished name, like `CN=worker-1, O=Example`.
fn name(name: &X509Name<'_>) -> String {
    name.to_string()
}

fn address(bytes: &[u8]) -> String {
    match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
        (Ok(four), _) => Ipv4Addr::from(four).to_string(),
        (_, Ok(sixteen)) => Ipv6Addr::from(sixteen).to_string(),
        _ => format!("invalid ({})", hexadecimal(bytes)),
    }
}

fn key_type(key: &SubjectPublicKeyInfo<'_>) -> String {
    let parameter = || {
        let parameters = key.algorithm.parameters.as_ref();
        parameters.and_then(|any| any.as_oid().ok()).map(|oid| oid.to_id_string())
    };
    match key.algorithm.algorithm.to_id_string().as_str() {
        "1.2.840.10045.2.1" => match parameter().as_deref() {
            Some("1.2.840.10045.3.1.7") => "ECDSA P-256".to_owned(),
            Some("1.3.132.0.34") => "ECDSA P-384".to_owned(),
            Some("1.3.132.0.35") => "ECDSA P-521".to_owned(),
            other => format!("ECDSA {}", other.unwrap_or("of an unnamed curve")),
        },
        "1.2.840.113549.1.1.1" => match key.parsed() {
            Ok(PublicKey::RSA(rsa)) => format!("RSA {}", rsa.key_size()),
            _ => "RSA".to_owned(),
        },
        "1.3.101.112" => "Ed25519".to_owned(),
        other => format!("algorithm {other}"),
    }
}

/// `4F:2A:…`.
fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn described(key: &KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Description {
        let mut params = CertificateParams::default();
        change(&mut params);
        Description::of(params.self_signed(key).unwrap().der()).unwrap()
    }

    #[test]
    fn all_fields_are_described() {
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let description = described(&key, |params| {
            params.distinguished_name.push(DnType::CommonName, "a\x1b[31m");
            params.distinguished_name.push(DnType::OrganizationName, "Example");
            params.serial_number = Some(vec![0x00, 0x8f, 0x0a].into());
            params.subject_alt_names = vec![
                SanType::DnsName("a.test".try_into().unwrap()),
                SanType::IpAddress("10.0.0.5".parse().unwrap()),
                SanType::IpAddress("fe80::1".parse().unwrap()),
                SanType::URI("urn:a".try_into().unwrap()),
                SanType::Rfc822Name("a@b.test".try_into().unwrap()),
            ];
            params.not_before = rcgen::date_time_ymd(1969, 12, 31);
            params.not_after = rcgen::date_time_ymd(2051, 1, 1);
        });
        assert_eq!(description.subject, "CN=a\x1b[31m, O=Example");
        assert_eq!(description.serial, "8f:0a");
        let json = Value::Object(description.json(1_795_210_200));
        assert_eq!(json["dns"], json!(["a.test"]));
        assert_eq!(json["ip"], json!(["10.0.0.5", "fe80::1"]));
        assert_eq!(json["other_names"], json!(["RFC822Name(a@b.test)"]));
        assert_eq!(json["identity"], "uri:urn:a");
        assert_eq!(json["key_type"], "Ed25519");
        assert_eq!(json["valid_from"], "1969-12-31T00:00:00Z");
        assert_eq!(json["valid_until"], "2051-01-01T00:00:00Z");
        assert_eq!(json["validity"], "valid");
        assert_eq!(json["sha256"].as_str().map(str::len), Some(32 * 3 - 1));
    }

    #[test]
    fn a_name_that_gives_no_identity_is_explained() {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let description = described(&key, |params| {
            params.subject_alt_names = vec![SanType::URI("".try_into().unwrap())];
        });
        assert_eq!(description.key_type, "ECDSA P-384");
        let json = description.json(0);
        assert_eq!(json["identity"], Value::Null);
        assert_eq!(json["identity_error"], "its first URI is empty");
    }

    #[test]
    fn the_end_of_a_certificate_is_announced_two_weeks_ahead() {
        let key = KeyPair::generate().unwrap();
        let start = 1_795_219_200;
        let description = described(&key, |params| {
            params.not_before = rcgen::date_time_ymd(2026, 11, 21);
            params.not_after = rcgen::date_time_ymd(2026, 12, 21);
        });
        assert_eq!(description.not_before, start);
        for (now, validity, text) in [
            (start - 3 * DAY, Validity::NotYet, "NOT YET VALID for 3 days"),
            (start, Validity::Valid, "30 days left"),
            (start + 16 * DAY, Validity::Valid, "14 days left"),
            (start + 16 * DAY + 1, Validity::Expiring, "EXPIRES in 13 days"),
            (start + 29 * DAY, Validity::Expiring, "EXPIRES in 1d"),
            (start + 30 * DAY, Validity::Expiring, "EXPIRES in 0ms"),
            (start + 30 * DAY + 3_600, Validity::Expired, "EXPIRED 1h ago"),
            (start + 33 * DAY, Validity::Expired, "EXPIRED 3 days ago"),
        ] {
            assert_eq!(description.validity(now), validity, "{text}");
            assert_eq!(description.time_left(now), text);
        }
        assert_eq!(description.json(start + 31 * DAY)["days_left"], -1);
    }
}
