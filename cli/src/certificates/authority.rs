//! A certificate authority in two files, and the certificates that it issues.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use data_encoding::BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use super::description::{DAY, Description, Validity, show_time};
use super::names::{AUTHORITY_FILES, Host};
use super::pair::Pair;
use super::pem::{PemFile, key_fits};
use crate::failure::{Failure, FailureKind};

/// How long before now certificates begin: other machines' clocks may be behind.
const CLOCK_SKEW: i64 = 60 * 60;
/// The columns of a line of PEM.
const PEM_COLUMNS: usize = 64;

/// A new certificate with its key.
pub(crate) struct Issued {
    pub(crate) description: Description,
    /// The certificate in PEM, with those of intermediate authorities.
    pub(crate) certificate: String,
    /// The key in PEM.
    pub(crate) key: String,
}

/// Makes a certificate authority that issues certificates for servers and clients, but no further
/// authorities. `now` is in seconds since 1970.
pub(crate) fn make_authority(name: &str, days: u32, now: i64) -> anyhow::Result<Issued> {
    let mut params = params(name, now.saturating_sub(CLOCK_SKEW), end(now, days));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(Issued {
        description: described(certificate.der())?,
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// A certificate authority that was read from its files.
pub(crate) struct Authority {
    certificate: Description,
    /// Its name as bytes: a certificate names its issuer by the same bytes.
    subject: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
    /// The certificates between the root and those that are issued: clients have the root.
    intermediates: Vec<CertificateDer<'static>>,
}

impl Authority {
    /// Reads `ca.pem` and `ca.key` in a folder. An error if they do not fit each other, or cannot
    /// issue certificates at `now`.
    pub(crate) fn load(folder: &Path, now: i64) -> Result<Authority, Failure> {
        let files = Pair::new(folder, AUTHORITY_FILES);
        for file in [&files.certificate, &files.key] {
            if !file.exists() {
                let hint = format!(
                    "longshore cert ca --dir {} makes an authority; --dir names the folder of one",
                    folder.display()
                );
                let message = format!("there is no {}", file.display());
                return Err(Failure::new(FailureKind::NotFound, message).with_hint(hint));
            }
        }
        Authority::from_files(&files, now).map_err(|why| Failure::new(FailureKind::Failed, why))
    }

    fn from_files(files: &Pair, now: i64) -> Result<Authority, String> {
        let (certificate_file, key_file) = (files.certificate.display(), files.key.display());
        let certificates = PemFile::read_certificates(&files.certificate)?.certificates;
        let unreadable = |why: &str| format!("cannot read {certificate_file}: {why}");
        let Some(der) = certificates.first() else { return Err(unreadable("no certificate")) };
        let certificate = Description::of(der).map_err(|why| unreadable(&why))?;
        let (_, parsed) = X509Certificate::from_der(der).map_err(|e| unreadable(&e.to_string()))?;
        let usage = parsed.key_usage().map_err(|why| unreadable(&why.to_string()))?;
        if !certificate.is_ca || usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err(format!(
                "{certificate_file} is no certificate authority: it may not sign certificates"
            ));
        }
        match certificate.validity(now) {
            Validity::Expired => {
                let ended = show_time(certificate.not_after);
                return Err(format!(
                    "{certificate_file} expired at {ended}: make a new authority, and give its \
                     ca.pem to all servers and clients"
                ));
            }
            Validity::NotYet => {
                let begins = show_time(certificate.not_before);
                return Err(format!(
                    "{certificate_file} is valid only from {begins}: check this machine's clock"
                ));
            }
            Validity::Valid | Validity::Expiring => {}
        }
        let key = PemFile::read(&files.key)?.key;
        let key = key.ok_or_else(|| format!("{key_file} has no private key in PEM"))?;
        if !key_fits(&key, &certificate.public_key).map_err(|why| format!("{key_file}: {why}"))? {
            return Err(format!("{key_file} is not the key of {certificate_file}"));
        }
        let key = KeyPair::try_from(&key).map_err(|_| {
            format!(
                "{key_file} is not in PKCS #8 (BEGIN PRIVATE KEY), the only form that can be used \
                 here; openssl pkcs8 -topk8 -nocrypt converts it"
            )
        })?;
        let issuer =
            Issuer::from_ca_cert_der(der, key).map_err(|why| unreadable(&why.to_string()))?;
        let subject = parsed.subject().as_raw().to_vec();
        Ok(Authority { certificate, subject, issuer, intermediates: intermediates(&certificates) })
    }

    /// Whether other users of the machine can read the key.
    pub(crate) fn key_is_exposed(folder: &Path) -> bool {
        let key = fs::metadata(Pair::new(folder, AUTHORITY_FILES).key);
        key.is_ok_and(|key| key.permissions().mode() & 0o077 != 0)
    }

    /// When it ends, in seconds since 1970. What it issues ends no later.
    pub(crate) fn not_after(&self) -> i64 {
        self.certificate.not_after
    }

    /// Issues a certificate with which a process can both listen and dial.
    pub(crate) fn issue(
        &self,
        name: &str,
        hosts: &[Host],
        uris: &[String],
        days: u32,
        now: i64,
    ) -> anyhow::Result<Issued> {
        let from = now.saturating_sub(CLOCK_SKEW).max(self.certificate.not_before);
        let mut params = params(name, from, end(now, days).min(self.not_after()));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        for host in hosts {
            params.subject_alt_names.push(match host {
                Host::Dns(name) => SanType::DnsName(name.as_str().try_into()?),
                Host::Ip(address) => SanType::IpAddress(*address),
            });
        }
        for uri in uris {
            params.subject_alt_names.push(SanType::URI(uri.as_str().try_into()?));
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let (_, parsed) = X509Certificate::from_der(certificate.der())?;
        if parsed.issuer().as_raw() != self.subject {
            // rcgen holds one attribute of each type, and writes some texts anew.
            anyhow::bail!(
                "the authority's name, {}, cannot be written into certificates; make an authority \
                 with longshore cert ca",
                self.certificate.subject
            );
        }
        let intermediates = self.intermediates.iter().map(|one| pem_of(one));
        Ok(Issued {
            description: described(certificate.der())?,
            certificate: std::iter::once(certificate.pem()).chain(intermediates).collect(),
            key: key.serialize_pem(),
        })
    }
}

fn described(der: &[u8]) -> anyhow::Result<Description> {
    Description::of(der).map_err(|why| anyhow::anyhow!("the new certificate is invalid: {why}"))
}

/// The end of a certificate that is valid for so many days.
fn end(now: i64, days: u32) -> i64 {
    now.saturating_add(i64::from(days) * DAY)
}

/// What all certificates have: a common name, and when they are valid.
fn params(name: &str, not_before: i64, not_after: i64) -> CertificateParams {
    let at = |seconds: i64| {
        date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    };
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    params.not_before = at(not_before);
    params.not_after = at(not_after);
    params
}

/// The certificates that are no roots.
fn intermediates(certificates: &[CertificateDer<'static>]) -> Vec<CertificateDer<'static>> {
    let is_intermediate = |der: &&CertificateDer<'static>| {
        X509Certificate::from_der(der).is_ok_and(|(_, one)| one.subject() != one.issuer())
    };
    certificates.iter().filter(is_intermediate).cloned().collect()
}

fn pem_of(der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(PEM_COLUMNS));
        pem.push_str(line);
        pem.push('\n');
        rest = more;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

#[cfg(test)]
mod tests {
    use rcgen::CertifiedIssuer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    const NOW: i64 = 1_795_210_200;

    /// An authority's files, written by rcgen or by us.
    fn folder(certificate: &str, key: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        Pair::new(folder.path(), AUTHORITY_FILES).write(certificate, key).unwrap();
        folder
    }

    fn refused(certificate: &str, key: &str) -> String {
        let folder = folder(certificate, key);
        Authority::load(folder.path(), NOW).err().expect("it is refused").message
    }

    fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().unwrap()
    }

    fn of_rcgen(change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let mut params = params("theirs", NOW - DAY, NOW + DAY);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        (authority.pem(), authority.key().serialize_pem())
    }

    #[test]
    fn what_an_authority_issues_is_signed_by_it_and_ends_no_later() {
        let made = make_authority("ours", 30, NOW).unwrap();
        let files = folder(&made.certificate, &made.key);
        let authority = Authority::load(files.path(), NOW).unwrap();
        let hosts = [Host::Dns("a.test".to_owned()), Host::Ip("::1".parse().unwrap())];
        let uris = ["spiffe://a/b".to_owned()];
        let issued = authority.issue("worker-1", &hosts, &uris, 365, NOW).unwrap();
        let description = &issued.description;
        assert_eq!(description.subject, "CN=worker-1");
        assert_eq!(description.issuer, "CN=ours");
        assert_eq!(description.identity, Ok("uri:spiffe://a/b".parse().ok()));
        assert_eq!((description.ip.len(), description.is_ca), (1, false));
        assert_eq!(description.not_before, NOW - CLOCK_SKEW);
        assert_eq!(description.not_after, NOW + 30 * DAY);
        let issued = certificates(&issued.certificate);
        let root = certificates(&made.certificate);
        assert_eq!(issued.len(), 1);
        let (_, leaf) = X509Certificate::from_der(&issued[0]).unwrap();
        let (_, root) = X509Certificate::from_der(&root[0]).unwrap();
        leaf.verify_signature(Some(root.public_key())).unwrap();
        let limits = root.basic_constraints().unwrap().unwrap().value.clone();
        assert_eq!((limits.ca, limits.path_len_constraint), (true, Some(0)));
        let usage = leaf.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && usage.client_auth);
    }

    #[test]
    fn an_intermediate_authority_goes_into_the_chain_but_not_its_key() {
        let root_params = {
            let mut params = params("root", NOW - DAY, NOW + DAY);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params
        };
        let root = CertifiedIssuer::self_signed(root_params.clone(), KeyPair::generate().unwrap());
        let root = root.unwrap();
        let mut between = root_params;
        between.distinguished_name.push(DnType::CommonName, "between");
        let key = KeyPair::generate().unwrap();
        let between = between.signed_by(&key, &root).unwrap();
        let all = [between.pem(), root.pem(), key.serialize_pem()].concat();
        let folder = folder(&all, &key.serialize_pem());
        let authority = Authority::load(folder.path(), NOW).unwrap();
        let chain = authority.issue("a", &[], &[], 1, NOW).unwrap().certificate;
        assert!(chain.ends_with(&between.pem()), "{chain}");
        let chain = certificates(&chain);
        assert_eq!(chain[1..], [between.der().clone()]);
    }

    #[test]
    fn an_authority_that_cannot_issue_is_refused_with_the_reason() {
        let (certificate, key) = of_rcgen(|_| ());
        let folder = folder(&certificate, &key);
        assert!(Authority::load(folder.path(), NOW).is_ok());
        let late = Authority::load(folder.path(), NOW + 2 * DAY).err().unwrap().message;
        assert!(late.contains("ca.pem expired at 2026-11-21T"), "{late}");
        let early = Authority::load(folder.path(), NOW - 2 * DAY).err().unwrap().message;
        assert!(early.contains("clock"), "{early}");
        let (other, _) = of_rcgen(|_| ());
        assert!(refused(&other, &key).contains("ca.key is not the key of"));
        let (leaf, leaf_key) = of_rcgen(|params| params.is_ca = IsCa::ExplicitNoCa);
        assert!(refused(&leaf, &leaf_key).contains("is no certificate authority"));
        let (crl, crl_key) = of_rcgen(|params| params.key_usages = vec![KeyUsagePurpose::CrlSign]);
        assert!(refused(&crl, &crl_key).contains("is no certificate authority"));
        assert!(refused("garbage", &key).contains("BEGIN CERTIFICATE"));
        assert!(refused(&key, &key).contains("a private key and no certificate"));
        assert!(refused(&certificate, &certificate).contains("no private key"));
        let torn = &certificate[..certificate.len() / 2];
        assert!(refused(torn, &key).contains("ca.pem: it is not valid PEM"));
    }

    #[test]
    fn an_authority_whose_name_cannot_be_repeated_is_refused() {
        // Two organisations, of which rcgen holds one.
        let (certificate, key) = of_rcgen(|params| {
            params.distinguished_name.push(DnType::OrganizationName, "one");
            params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 10]), "two");
        });
        let folder = folder(&certificate, &key);
        let authority = Authority::load(folder.path(), NOW).unwrap();
        let error = authority.issue("a", &[], &[], 1, NOW).err().unwrap().to_string();
        assert!(error.contains("CN=theirs, O=one, O=two"), "{error}");
    }
}
