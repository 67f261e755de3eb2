//! `longshore cert`: a certificate authority for development, its certificates, and what
//! certificates say.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Context;
use crate::arguments::{Cert, CertAction, IssueCertificate};
use crate::certificates::{
    AUTHORITY_FILES, Authority, Description, Issued, NAMES_MAX, Pair, PemFile, Validity, key_fits,
    make_authority, show_time,
};
use crate::failure::{AlreadyReported, UsageError};
use crate::output::{Output, printable, shell_word};
use crate::time::wall_ms;

pub(crate) fn run(arguments: Cert, mut context: Context) -> anyhow::Result<()> {
    let now = i64::try_from(wall_ms() / 1_000).unwrap_or(i64::MAX);
    let output = &mut context.output;
    match arguments.action {
        CertAction::Ca { dir, name, days } => make(&dir, &name, days, now, output),
        CertAction::Issue(arguments) => issue(arguments, now, output),
        CertAction::Show { files } => show(&files, now, output),
    }
}

fn make(folder: &Path, name: &str, days: u32, now: i64, output: &mut Output) -> anyhow::Result<()> {
    let pair = Pair::new(folder, AUTHORITY_FILES);
    pair.check_absent()?;
    let made = make_authority(name, days, now)?;
    pair.write(&made.certificate, &made.key)?;
    if output.is_json() {
        return print_json(&pair, &made, now, output);
    }
    let end = show_time(made.description.not_after);
    print_fields(
        &[
            (
                "certificate",
                &format!("{}, for all servers and clients", pair.certificate.display()),
            ),
            ("key", &format!("{}, to issue certificates: keep it secret", pair.key.display())),
            ("name", name),
            ("valid until", &end),
        ],
        output,
    )
}

/// The key's file. One that was replaced is read by whoever could read it before.
fn shown_key(pair: &Pair, replaced: bool) -> String {
    let key = pair.key.display();
    if replaced { key.to_string() } else { format!("{key}, which only you can read") }
}

fn issue(arguments: IssueCertificate, now: i64, output: &mut Output) -> anyhow::Result<()> {
    let IssueCertificate { name, hosts, uris, days, dir, out, replace } = arguments;
    if hosts.len() + uris.len() > NAMES_MAX {
        let why = format!("more than {NAMES_MAX} of --host and --uri; issue several certificates");
        return Err(UsageError(why).into());
    }
    let pair = Pair::new(out.as_deref().unwrap_or(&dir), &name);
    if !replace {
        pair.check_absent()?;
    }
    let authority = Authority::load(&dir, now)?;
    if Authority::key_is_exposed(&dir) {
        let key = Pair::new(&dir, AUTHORITY_FILES).key;
        report_warning!("other users can read {}; chmod 600 protects it", key.display());
    }
    let issued = authority.issue(&name, &hosts, &uris, days, now)?;
    match replace {
        true => pair.replace(&issued.certificate, &issued.key)?,
        false => pair.write(&issued.certificate, &issued.key)?,
    }
    let description = &issued.description;
    if output.is_json() {
        return print_json(&pair, &issued, now, output);
    }
    let hosts = match [description.dns.as_slice(), &description.ip].concat() {
        none if none.is_empty() => "none: no server can use it; --host HOST adds one".to_owned(),
        hosts => hosts.join(", "),
    };
    let end = show_time(description.not_after);
    let end = match description.not_after == authority.not_after() {
        true => format!("{end}, with its authority"),
        false => end,
    };
    print_fields(
        &[
            ("certificate", &pair.certificate.display().to_string()),
            ("key", &shown_key(&pair, replace)),
            ("identity", &identity(description)),
            ("hosts", &hosts),
            ("valid until", &end),
            ("flags", &flags(&dir, &pair)),
        ],
        output,
    )
}

/// What the process that the certificate is for is started with.
fn flags(authority: &Path, pair: &Pair) -> String {
    let authority = Pair::new(authority, AUTHORITY_FILES).certificate;
    let [ca, certificate, key] = [&authority, &pair.certificate, &pair.key]
        .map(|file| shell_word(&file.to_string_lossy()).into_owned());
    format!("--tls-ca {ca} --tls-certificate {certificate} --tls-key {key}")
}

fn print_json(pair: &Pair, made: &Issued, now: i64, output: &mut Output) -> anyhow::Result<()> {
    let mut fields = made.description.json(now);
    fields.insert("certificate_file".to_owned(), json!(pair.certificate.display().to_string()));
    fields.insert("key_file".to_owned(), json!(pair.key.display().to_string()));
    output.json_pretty(&Value::Object(fields))?;
    Ok(())
}

/// A private key that a file has, or that stands beside it.
struct KeyFound {
    file: PathBuf,
    /// Whether it fits the first certificate; or why that is unknown.
    fits: Result<bool, String>,
}

fn show(files: &[PathBuf], now: i64, output: &mut Output) -> anyhow::Result<()> {
    let mut shown = Vec::new();
    let mut is_whole = true;
    for file in files {
        match PemFile::read_certificates(file) {
            Ok(pem) => is_whole &= show_file(file, &pem, now, &mut shown, output)?,
            Err(why) => {
                report_error!("{why}");
                is_whole = false;
            }
        }
    }
    if output.is_json() {
        output.json_pretty(&json!({ "certificates": shown }))?;
    }
    if is_whole { Ok(()) } else { Err(AlreadyReported.into()) }
}

/// Shows the certificates of a file. False if one is invalid.
fn show_file(
    file: &Path,
    pem: &PemFile,
    now: i64,
    shown: &mut Vec<Value>,
    output: &mut Output,
) -> anyhow::Result<bool> {
    let mut is_whole = true;
    for (index, der) in pem.certificates.iter().enumerate() {
        let position = index + 1;
        let place = match pem.certificates.len() {
            1 => file.display().to_string(),
            count => format!("{}, certificate {position} of {count}", file.display()),
        };
        let description = match Description::of(der) {
            Ok(description) => description,
            Err(why) => {
                report_error!("{place}: not a certificate: {why}");
                is_whole = false;
                continue;
            }
        };
        // A chain begins with the certificate that the key is for.
        let key = (index == 0).then(|| find_key(file, pem, &description)).flatten();
        if output.is_json() {
            let mut fields = description.json(now);
            fields.insert("file".to_owned(), json!(file.display().to_string()));
            fields.insert("position".to_owned(), json!(position));
            fields.insert("key".to_owned(), key.as_ref().map_or(Value::Null, key_json));
            shown.push(Value::Object(fields));
        } else {
            print(&place, &description, key.as_ref(), now, output)?;
        }
        if let Some(KeyFound { file, fits: Ok(false) }) = &key {
            report_warning!("{place}: {} is another certificate's key", file.display());
        }
        if description.validity(now) != Validity::Valid {
            report_warning!("{place}: {}", description.time_left(now));
        }
    }
    Ok(is_whole)
}

fn find_key(file: &Path, pem: &PemFile, certificate: &Description) -> Option<KeyFound> {
    let public_key = &certificate.public_key;
    if let Some(key) = &pem.key {
        return Some(KeyFound { file: file.to_owned(), fits: key_fits(key, public_key) });
    }
    let beside = file.with_extension("key");
    if !beside.exists() || beside == file {
        return None;
    }
    let read = PemFile::read(&beside)
        .and_then(|pem| pem.key.ok_or_else(|| "it has no private key in PEM".to_owned()));
    Some(KeyFound { file: beside, fits: read.and_then(|key| key_fits(&key, public_key)) })
}

fn key_json(key: &KeyFound) -> Value {
    let (fits, error) = match &key.fits {
        Ok(fits) => (json!(fits), Value::Null),
        Err(why) => (Value::Null, json!(why)),
    };
    json!({ "file": key.file.display().to_string(), "fits": fits, "error": error })
}

fn print(
    place: &str,
    description: &Description,
    key: Option<&KeyFound>,
    now: i64,
    output: &mut Output,
) -> anyhow::Result<()> {
    let list = |names: &[String]| names.join(", ");
    let purpose = match description.is_ca {
        true => "certificate authority",
        false => "server or client",
    };
    let subject = match description.subject.as_str() {
        "" => "none",
        subject => subject,
    };
    // Authorities do not dial.
    let identity = if description.is_ca { String::new() } else { identity(description) };
    let until = show_time(description.not_after);
    let until = format!("{until}: {}", description.time_left(now));
    let key = match key {
        None => "not found in this file or beside it".to_owned(),
        Some(KeyFound { file, fits }) => {
            let file = file.display();
            match fits {
                Ok(true) => format!("{file} fits"),
                Ok(false) => format!("{file} DOES NOT FIT: it is another certificate's"),
                Err(why) => format!("{file} cannot be compared: {why}"),
            }
        }
    };
    output.line(printable(place))?;
    print_fields(
        &[
            ("  subject", subject),
            ("  identity", &identity),
            ("  dns names", &list(&description.dns)),
            ("  addresses", &list(&description.ip)),
            ("  uris", &list(&description.uri)),
            ("  other names", &list(&description.other_names)),
            ("  issuer", &description.issuer),
            ("  serial", &description.serial),
            ("  valid from", &show_time(description.not_before)),
            ("  valid until", &until),
            ("  key type", &description.key_type),
            ("  for", purpose),
            ("  sha256", &description.sha256),
            ("  key", &key),
        ],
        output,
    )
}

/// The identity that servers see, or why there is none.
fn identity(description: &Description) -> String {
    match &description.identity {
        Ok(Some(identity)) => identity.to_string(),
        Ok(None) => "none: it names nobody by URI, DNS name or common name".to_owned(),
        Err(why) => format!("none: {why}"),
    }
}

/// Prints one line for each field that has a value, escaped.
fn print_fields(fields: &[(&str, &str)], output: &mut Output) -> anyhow::Result<()> {
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        output.line(format!("{key:<14} {}", printable(value)))?;
    }
    Ok(())
}
