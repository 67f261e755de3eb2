//! Links of clients that show a JWT.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use longshore_access::{AccessControl, JwtIssuer, JwtKeys, JwtTerms};
use longshore_protocol::limits::CREDENTIAL_BYTES_MAX;
use longshore_protocol::{Credential, Handshake, HandshakeRefusal};
use longshore_transport::{DialError, Link, LinkEnd, ListenerOptions, TokenSource, dial};
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use crate::authorization::{policy, refused};
use crate::common::pem::Pem;
use crate::common::*;

fn provider() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[1; 32]).unwrap()
}

/// An issuer with one key of this id.
fn issuer(id: &str) -> Option<JwtIssuer> {
    let x = BASE64URL_NOPAD.encode(provider().public_key().as_ref());
    let keys = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{id}","x":"{x}"}}]}}"#);
    let terms = JwtTerms {
        issuer: "https://id.example".to_owned(),
        audience: "longshore".to_owned(),
        identity_claim: "sub".to_owned(),
        groups_claim: None,
    };
    Some(JwtIssuer::new(terms, JwtKeys::parse(&keys).unwrap()))
}

/// Of `jwt:ann`, until so long from now.
fn jwt(lifetime: Duration) -> String {
    let end = (SystemTime::now() + lifetime).duration_since(UNIX_EPOCH).unwrap();
    let claims = format!(
        r#"{{"iss":"https://id.example","aud":"longshore","sub":"ann","exp":{}}}"#,
        end.as_secs_f64()
    );
    let [header, claims] = [r#"{"alg":"EdDSA","kid":"a"}"#, &claims]
        .map(|part| BASE64URL_NOPAD.encode(part.as_bytes()));
    let signed = format!("{header}.{claims}");
    let signature = BASE64URL_NOPAD.encode(provider().sign(signed.as_bytes()).as_ref());
    format!("{signed}.{signature}")
}

const HOUR: Duration = Duration::from_secs(3_600);

fn ended_because(end: LinkEnd, why: &str) {
    assert!(matches!(&end, LinkEnd::Local(text) if text.contains(why)), "{end}");
}

#[tokio::test]
async fn a_link_ends_with_its_jwt_and_with_the_key_of_its_jwt() {
    let pem = Pem::new();
    let control = AccessControl::new(policy(&[("jwt:ann", "/a")]), None);
    control.replace_jwt(issuer("a"));
    let access_control = control.clone();
    let mut listener = listener(ListenerOptions { access_control, ..pem.listening(None) }).await;
    let at = listener.local_address();
    // As a client does, from a file that is replaced.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ann.jwt");
    let dialled = async |text: String| -> Result<Link, DialError> {
        std::fs::write(&file, text + "\n").unwrap();
        let mut options = pem.dialling(None, None);
        options.access.as_mut().unwrap().token = Some(TokenSource::from_file(&file));
        soon(dial(at, &handshake(), &options)).await
    };

    let mut lifetime = Duration::from_millis(300);
    let (_dialled, accepted) = loop {
        match dialled(jwt(lifetime)).await {
            Ok(link) => break (link, soon(listener.accept()).await),
            // On a slow machine it expires first.
            Err(error) => assert!(refused(Err(error)).1.contains("the JWT has expired")),
        }
        lifetime *= 2;
    };
    assert_eq!(accepted.identity().unwrap().to_string(), "jwt:ann");
    ended_because(soon(accepted.split().1.recv()).await.unwrap_err(), "the JWT has expired");

    let _dialled = dialled(jwt(HOUR)).await.unwrap();
    let mut receiver = soon(listener.accept()).await.split().1;
    control.replace_jwt(issuer("b"));
    ended_because(soon(receiver.recv()).await.unwrap_err(), "does not have the key");
    let (code, reason) = refused(dialled(jwt(HOUR)).await);
    assert_eq!(code, HandshakeRefusal::Unauthenticated);
    assert!(reason.contains("does not have the key"), "{reason}");
}

#[tokio::test]
async fn a_credential_over_the_limit_is_refused_before_it_is_read() {
    let pem = Pem::new();
    let access_control = AccessControl::default();
    access_control.replace_jwt(issuer("a"));
    let listener = listener(ListenerOptions { access_control, ..pem.listening(None) }).await;
    let credential = |bytes: usize| Credential(Bytes::from(vec![b'.'; bytes]));
    let outcome = async |bytes| {
        let shown = Handshake { credential: credential(bytes), ..handshake() };
        let options = pem.dialling(None, None);
        refused(soon(dial(listener.local_address(), &shown, &options)).await)
    };
    let (code, reason) = outcome(CREDENTIAL_BYTES_MAX).await;
    assert_eq!(code, HandshakeRefusal::Unauthenticated, "{reason}");
    let (code, reason) = outcome(CREDENTIAL_BYTES_MAX + 1).await;
    assert_eq!(code, HandshakeRefusal::Malformed, "{reason}");
    assert!(reason.contains("credential") && reason.contains("3072"), "{reason}");
}
