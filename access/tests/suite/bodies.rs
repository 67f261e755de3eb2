//! The fuzz targets of what strangers and operators write. Each accepts arbitrary bytes and must
//! not panic or hang. `fuzz/` runs them under libFuzzer, `fuzz_bodies.rs` under proptest.

use longshore_access::{Secret, TokenRefusal, Tokens};

/// A fuzz target with its name.
pub type Body = (&'static str, fn(&[u8]));

/// All fuzz targets.
pub const ALL: [Body; 2] = [("token", fuzz_token), ("token_file", fuzz_token_file)];

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
    let tokens = Tokens::parse(FILE).unwrap();
    let is_secret = Secret::parse(data).map(|secret| assert_eq!(secret.text(), data)).is_ok();
    match tokens.verify(data, 0) {
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
