//! The fuzz targets of what strangers and operators write. Each accepts arbitrary bytes and must
//! not panic or hang. `fuzz/` runs them under libFuzzer, `fuzz_bodies.rs` under proptest.

use std::sync::LazyLock;

use longshore_access::{
    AccessControl, Action, Bearer, Credentials, Identity, JwtIssuer, JwtKeys, JwtTerms, Policy,
    Secret, TokenRefusal, Tokens, identity_of,
};
use longshore_protocol::Path;

/// A fuzz target with its name.
pub type Body = (&'static str, fn(&[u8]));

/// All fuzz targets.
pub const ALL: [Body; 6] = [
    ("token", fuzz_token),
    ("token_file", fuzz_token_file),
    ("jwt", fuzz_jwt),
    ("jwt_keys", fuzz_jwt_keys),
    ("policy", fuzz_policy),
    ("certificate", fuzz_certificate),
];

/// A file with one token, whose secret is [`SECRET`].
pub const FILE: &str = "\
[[token]]
name = \"shop\"
hash = \"sha256:ade9fa0d5ea4e9ba8101d721dba28703cc5862317b949107b886310cbff915f0\"
created = 2026-11-25T01:40:00Z
expires = 2027-02-23T01:40:00Z
";
pub const SECRET: &[u8] = b"lst_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

/// Fuzzes a credential: only the secret itself is verified.
pub fn fuzz_token(data: &[u8]) {
    static TOKENS: LazyLock<Tokens> = LazyLock::new(|| Tokens::parse(FILE).unwrap());
    let is_secret = Secret::parse(data).map(|secret| assert_eq!(secret.text(), data)).is_ok();
    match TOKENS.verify(data, 0) {
        Ok(token) => assert!(token.name == "shop" && data == SECRET),
        Err(TokenRefusal::Malformed) => assert!(!is_secret),
        Err(TokenRefusal::Unknown) => assert!(is_secret && data != SECRET),
        Err(refusal) => panic!("{refusal:?} at the time 0"),
    }
}

/// Fuzzes a token file: what is read is written to a file with the same tokens.
pub fn fuzz_token_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Tokens::parse(text) {
        Ok(tokens) => assert_eq!(Tokens::parse(&tokens.to_text()), Ok(tokens)),
        Err(error) => {
            assert!(error.line >= 1 && error.line <= 1 + text.matches('\n').count(), "{error}");
        }
    }
}

/// The keys of a provider, and JWTs that it has signed.
pub const KEYS: &str = include_str!("../../src/jwt/golden/keys.json");
pub const JWTS: [&str; 3] = [
    include_str!("../../src/jwt/golden/rs256.jwt"),
    include_str!("../../src/jwt/golden/es256.jwt"),
    include_str!("../../src/jwt/golden/eddsa.jwt"),
];

/// Fuzzes a JWT: only those that were signed are verified.
pub fn fuzz_jwt(data: &[u8]) {
    static CONTROL: LazyLock<AccessControl> = LazyLock::new(with_jwts);
    let credentials =
        Credentials { certificate: None, credential: data, is_private: true, user: None };
    let client = CONTROL.admit(&credentials, 1_800_000_000_000);
    if client.is_ok_and(|client| client.identity.is_some()) {
        assert!(Bearer::parse(data).is_ok());
        assert!(JWTS.iter().any(|jwt| jwt.trim_end().as_bytes() == data));
    }
}

/// Rules that admit the JWTs of a provider.
fn with_jwts() -> AccessControl {
    let terms = JwtTerms {
        issuer: "https://id.example".to_owned(),
        audience: "longshore".to_owned(),
        identity_claim: "sub".to_owned(),
        groups_claim: Some("groups".to_owned()),
    };
    let control = AccessControl::default();
    control.replace_jwt(Some(JwtIssuer::new(terms, JwtKeys::parse(KEYS).unwrap())));
    control
}

/// Fuzzes a key file.
pub fn fuzz_jwt_keys(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(error) = JwtKeys::parse(text) {
        assert!(!error.to_string().is_empty());
    }
}

/// A policy with every kind of section.
pub const POLICY: &str = include_str!("../../../fuzz/corpus/policy/all");
/// A certificate, in DER, with several names.
pub const CERTIFICATE: &[u8] = include_bytes!("../../../fuzz/corpus/certificate/names");

/// Fuzzes a policy: prepared rights give the same answers as its rules.
pub fn fuzz_policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let policy = match Policy::parse(text) {
        Ok(policy) => policy,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let paths = ["/", "/sys", "/jobs/shop", "/jobs/shop/x"].map(|text| Path::new(text).unwrap());
    for who in ["", "cn:shop", "token:shop", "dns:a.test", "uri:spiffe://acme/shop"] {
        let who = who.parse::<Identity>().ok();
        let rights = policy.rights(who.as_ref());
        for (action, path) in Action::ALL.iter().flat_map(|one| paths.iter().map(move |p| (one, p)))
        {
            let decision = policy.decide(who.as_ref(), *action, path);
            assert_eq!(rights.may(*action, path), decision.is_allowed(), "{who:?} {action} {path}");
        }
    }
}

/// Fuzzes a certificate: its identity is one that a policy can name.
pub fn fuzz_certificate(data: &[u8]) {
    if let Ok(Some(identity)) = identity_of(data) {
        assert_eq!(identity.to_string().parse(), Ok(identity));
    }
}
