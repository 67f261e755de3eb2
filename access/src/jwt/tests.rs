use data_encoding::BASE64URL_NOPAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::*;

/// Made by another implementation (Python's cryptography).
const KEYS: &str = include_str!("golden/keys.json");
const RS256: &str = include_str!("golden/rs256.jwt");
const ES256: &str = include_str!("golden/es256.jwt");
const EDDSA: &str = include_str!("golden/eddsa.jwt");
/// `exp` of the golden ones: 2100-01-01.
const GOLDEN_END: u64 = 4_102_444_800_000;

const NOW: u64 = 1_800_000_000_000;

fn terms() -> JwtTerms {
    JwtTerms {
        issuer: "https://id.example".to_owned(),
        audience: "longshore".to_owned(),
        identity_claim: "sub".to_owned(),
        groups_claim: Some("groups".to_owned()),
    }
}

/// A provider with one key, `a`.
struct Provider(Ed25519KeyPair);

impl Provider {
    fn new(seed: u8) -> Provider {
        Provider(Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap())
    }

    fn keys(&self, id: &str) -> JwtKeys {
        let x = BASE64URL_NOPAD.encode(self.0.public_key().as_ref());
        let key = json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "x": x });
        JwtKeys::parse(&json!({ "keys": [key] }).to_string()).unwrap()
    }

    fn sign(&self, header: &str, claims: &str) -> Vec<u8> {
        let text = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        let signed = format!("{}.{}", text(header.as_bytes()), text(claims.as_bytes()));
        let signature = self.0.sign(signed.as_bytes());
        format!("{signed}.{}", text(signature.as_ref())).into_bytes()
    }

    fn jwt(&self, claims: &Value) -> Vec<u8> {
        self.sign(r#"{"alg":"EdDSA","kid":"a"}"#, &claims.to_string())
    }
}

fn claims() -> Value {
    json!({
        "iss": "https://id.example", "aud": "longshore", "sub": "ann",
        "groups": ["shop", "ops", "shop"], "exp": NOW / 1_000 + 60,
    })
}

fn with(claim: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[claim] = value;
    claims
}

fn without(claim: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(claim);
    claims
}

fn issuer() -> (Provider, JwtIssuer) {
    let provider = Provider::new(1);
    let keys = provider.keys("a");
    (provider, JwtIssuer::new(terms(), keys))
}

/// Identity, groups and end.
fn verified(issuer: &JwtIssuer, jwt: &[u8]) -> Result<(String, Vec<String>, u64), JwtRefusal> {
    let jwt = issuer.verify(jwt, NOW)?;
    let groups = jwt.identity.groups.to_vec();
    Ok((jwt.identity.to_string(), groups, jwt.proof.end_unix_ms))
}

#[test]
fn jwts_of_another_implementation_are_verified_by_each_algorithm() {
    let issuer = JwtIssuer::new(terms(), JwtKeys::parse(KEYS).unwrap());
    let expect = |jwt: &str, who: &str, groups: &[&str]| {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        let expected = Ok((who.to_owned(), groups, GOLDEN_END));
        assert_eq!(verified(&issuer, jwt.trim_end().as_bytes()), expected);
    };
    expect(RS256, "jwt:ann", &["ops", "shop"]);
    expect(ES256, "jwt:system:serviceaccount:shop:mail", &[]);
    expect(EDDSA, "jwt:ann", &["ops"]);
    // Not by a key for encryption, though it is the same, nor by one of another curve.
    let keys = JwtKeys::parse(KEYS).unwrap();
    assert!(keys.get("enc").is_none() && keys.get("ec384").is_none());
    // Each bit counts, in all three parts.
    for jwt in [RS256, ES256, EDDSA] {
        let jwt = jwt.trim_end().as_bytes();
        for bit in 0..jwt.len() * 8 {
            let mut damaged = jwt.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(issuer.verify(&damaged, NOW).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn the_algorithm_is_the_keys_and_never_the_headers() {
    let (provider, issuer) = issuer();
    let refused = |jwt: &[u8]| issuer.verify(jwt, NOW).unwrap_err();
    let header = |text: &str| refused(&provider.sign(text, &claims().to_string()));
    for alg in ["none", "None", "HS256", "RS256", "ES256", ""] {
        let text = json!({ "alg": alg, "kid": "a" }).to_string();
        assert_eq!(header(&text), JwtRefusal::Algorithm, "{alg}");
    }
    let unsigned = |alg: &str, signature: &dyn Fn(&str) -> String| {
        let text = |text: &str| BASE64URL_NOPAD.encode(text.as_bytes());
        let header = text(&json!({ "alg": alg, "kid": "a" }).to_string());
        let signed = format!("{header}.{}", text(&claims().to_string()));
        let signature = signature(&signed);
        refused(format!("{signed}.{signature}").as_bytes())
    };
    assert_eq!(unsigned("none", &|_| String::new()), JwtRefusal::Algorithm);
    assert_eq!(unsigned("EdDSA", &|_| String::new()), JwtRefusal::Signature);
    // With the public key as the secret.
    let hmac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, provider.0.public_key().as_ref());
    let signed_by_hmac =
        |signed: &str| BASE64URL_NOPAD.encode(ring::hmac::sign(&hmac, signed.as_bytes()).as_ref());
    assert_eq!(unsigned("HS256", &signed_by_hmac), JwtRefusal::Algorithm);
    // RFC 9864 has this name for the same algorithm.
    let fully = provider.sign(r#"{"alg":"Ed25519","kid":"a"}"#, &claims().to_string());
    assert!(issuer.verify(&fully, NOW).is_ok());

    assert_eq!(header(r#"{"alg":"EdDSA"}"#), JwtRefusal::NoKeyId);
    assert_eq!(header(r#"{"alg":"EdDSA","kid":"b"}"#), JwtRefusal::UnknownKey);
    let critical = r#"{"alg":"EdDSA","kid":"a","crit":["b64"],"b64":false}"#;
    assert_eq!(header(critical), JwtRefusal::Critical);
    // Another key of the same id.
    assert_eq!(refused(&Provider::new(2).jwt(&claims())), JwtRefusal::Signature);
    for text in ["", "[]", r#"{"kid":"a"}"#, r#"{"alg":"EdDSA","alg":"EdDSA","kid":"a"}"#] {
        assert_eq!(header(text), JwtRefusal::Malformed, "{text}");
    }
}

#[test]
fn every_claim_is_checked() {
    let (provider, issuer) = issuer();
    let verify = |claims: Value| verified(&issuer, &provider.jwt(&claims));
    let (who, groups, end) = verify(claims()).unwrap();
    assert_eq!((who.as_str(), end), ("jwt:ann", NOW + 60_000));
    assert_eq!(groups, ["ops", "shop"]);

    let seconds = |ms: u64| json!(ms as f64 / 1_000.0);
    let expired = Err(JwtRefusal::Expired);
    for exp in [seconds(NOW), seconds(NOW - 60_000), json!(0), json!(-1)] {
        assert_eq!(verify(with("exp", exp)), expired);
    }
    assert_eq!(verify(with("exp", seconds(NOW + 500))).unwrap().2, NOW + 500);
    assert_eq!(verify(with("exp", json!(1e300))).unwrap().2, u64::MAX);
    let no_time =
        |claim: &str| Err(JwtRefusal::Claim(claim.to_owned(), "a time in seconds since 1970"));
    assert_eq!(verify(without("exp")), no_time("exp"));
    assert_eq!(verify(with("exp", json!("4102444800"))), no_time("exp"));
    for claim in ["nbf", "iat"] {
        let at = |ms: u64| verify(with(claim, seconds(ms)));
        assert!(at(NOW + JWT_LEEWAY_MS).is_ok());
        assert_eq!(at(NOW + JWT_LEEWAY_MS + 1), Err(JwtRefusal::NotYet(claim)));
        assert_eq!(verify(with(claim, json!(null))), no_time(claim));
    }

    let wrong = Err(JwtRefusal::Issuer("https://id.example".to_owned()));
    for iss in ["https://id.example/", "https://ID.example", "", "https://evil.example"] {
        assert_eq!(verify(with("iss", json!(iss))), wrong);
    }
    for claims in [without("iss"), with("iss", json!(["https://id.example"]))] {
        assert_eq!(verify(claims), wrong);
    }
    let wrong = Err(JwtRefusal::Audience("longshore".to_owned()));
    for aud in [json!("longshore2"), json!(["a", "b"]), json!([]), json!({ "longshore": 1 })] {
        assert_eq!(verify(with("aud", aud)), wrong);
    }
    assert_eq!(verify(without("aud")), wrong);
    assert!(verify(with("aud", json!(["a", "longshore"]))).is_ok());

    for (sub, fits) in [("x".repeat(256), true), ("x".repeat(257), false), (String::new(), false)] {
        assert_eq!(verify(with("sub", json!(sub))).is_ok(), fits, "{}", sub.len());
    }
    assert_eq!(verify(with("sub", json!("a\nb"))), Err(JwtRefusal::Name("sub".to_owned())));
    assert_eq!(verify(without("sub")), Err(JwtRefusal::Claim("sub".to_owned(), "a string")));
    assert_eq!(verify(without("groups")).unwrap().1, [""; 0]);
    for groups in [json!("ops"), json!([1]), json!(null)] {
        let refused = Err(JwtRefusal::Claim("groups".to_owned(), "an array of strings"));
        assert_eq!(verify(with("groups", groups)), refused);
    }

    let by_mail = JwtTerms { identity_claim: "email".to_owned(), groups_claim: None, ..terms() };
    let by_mail = JwtIssuer::new(by_mail, provider.keys("a"));
    let jwt = provider.jwt(&with("email", json!("ann@example")));
    let (who, groups, _) = verified(&by_mail, &jwt).unwrap();
    assert_eq!((who.as_str(), groups.len()), ("jwt:ann@example", 0));
}

#[test]
fn a_jwt_over_the_limit_is_not_read() {
    let (provider, issuer) = issuer();
    let of_length = |bytes: usize| {
        let jwt = |more: usize| provider.jwt(&with("more", json!("x".repeat(more))));
        (0..bytes).map(jwt).find(|jwt| jwt.len() >= bytes).unwrap()
    };
    let longest = of_length(CREDENTIAL_BYTES_MAX - 1);
    assert!(longest.len() <= CREDENTIAL_BYTES_MAX && issuer.verify(&longest, NOW).is_ok());
    let longer = of_length(CREDENTIAL_BYTES_MAX + 1);
    assert_eq!(issuer.verify(&longer, NOW).unwrap_err(), JwtRefusal::Malformed);
    for jwt in ["", ".", "..", "a.b", "e30.e30.", "!.!.!"] {
        assert!(issuer.verify(jwt.as_bytes(), NOW).is_err(), "{jwt}");
    }
}

#[test]
fn a_verified_jwt_is_refused_once_it_expires_or_its_key_is_gone_or_replaced() {
    let (provider, issuer) = issuer();
    let proof = issuer.verify(&provider.jwt(&claims()), NOW).unwrap().proof;
    assert_eq!(issuer.recheck(&proof, NOW + 59_999), Ok(()));
    assert_eq!(issuer.recheck(&proof, NOW + 60_000), Err(JwtRefusal::Expired));
    let other_audience = JwtTerms { audience: "other".to_owned(), ..terms() };
    for issuer in [
        JwtIssuer::new(terms(), provider.keys("b")),
        JwtIssuer::new(terms(), Provider::new(2).keys("a")),
        JwtIssuer::new(other_audience, provider.keys("a")),
    ] {
        assert_eq!(issuer.recheck(&proof, NOW), Err(JwtRefusal::UnknownKey));
    }
    let read_again = JwtIssuer::new(terms(), provider.keys("a"));
    assert_eq!(read_again.recheck(&proof, NOW), Ok(()));
}

#[test]
fn a_key_file_that_cannot_serve_is_refused_by_key() {
    let error = |text: &str| JwtKeys::parse(text).unwrap_err().to_string();
    let keys = |keys: &[Value]| error(&json!({ "keys": keys }).to_string());
    let text = |bytes: usize| BASE64URL_NOPAD.encode(&vec![1; bytes]);
    let ed = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "a", "x": text(32) });
    let key = |key: Value| keys(&[ed.clone(), key]);
    let changed = |name: &str, value: Value| {
        let mut key = ed.clone();
        (key["kid"], key[name]) = (json!("b"), value);
        key
    };
    for (found, expected) in [
        (error("nonsense"), "not a JSON Web Key Set, as the provider's `jwks_uri` has it: "),
        (error(&" ".repeat(JWK_FILE_BYTES_MAX + 1)), "a key file has at most 65536 bytes"),
        (keys(&[]), "no key of the file is for signatures"),
        (keys(&[changed("use", json!("enc"))]), "no key of the file is for signatures"),
        (keys(&[changed("alg", json!("ES512"))]), "no key of the file is for signatures"),
        (keys(&[json!({ "kty": "oct", "kid": "a", "k": "c2VjcmV0" })]), "no key of the file"),
        (keys(&vec![ed.clone(); JWT_KEYS_MAX + 1]), "a file has at most 64 keys, this one 65"),
        (key(ed.clone()), "key 2: another key has the `kid` \"a\""),
        (key(changed("kid", json!(null))), "key 2: it has no `kid`"),
        (key(changed("d", json!(text(32)))), "key 2: it has a private part (`d`)"),
        (key(changed("x", json!(text(31)))), "key 2: `x` is not 32 bytes"),
        (key(changed("x", json!("="))), "key 2: `x` is not 32 bytes"),
        (
            key(json!({ "kty": "RSA", "kid": "b", "n": text(128), "e": "AQAB" })),
            "key 2: `n` is not 2,048 to 4,096 bits",
        ),
        (
            key(json!({ "kty": "RSA", "kid": "b", "n": text(513), "e": "AQAB" })),
            "key 2: `n` is not 2,048 to 4,096 bits",
        ),
        (
            key(json!({ "kty": "EC", "crv": "P-256", "kid": "b", "x": text(32) })),
            "key 2: `y` is not 32 bytes",
        ),
    ] {
        assert!(found.starts_with(expected), "{found:?} is not {expected:?}");
    }
    let most: Vec<Value> =
        (0..JWT_KEYS_MAX).map(|n| changed("kid", json!(n.to_string()))).collect();
    assert!(JwtKeys::parse(&json!({ "keys": most }).to_string()).is_ok());
}
