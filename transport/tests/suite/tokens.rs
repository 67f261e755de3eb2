//! The tokens that clients show.

use std::path::Path;

use longshore_access::{AccessControl, SECRET_RANDOM_BYTES, Secret, Token, Tokens};
use longshore_transport::{
    Access, DialError, Link, LinkOptions, Listener, ListenerOptions, TokenSource, dial,
};

use crate::common::pem::Pem;
use crate::common::*;

fn secrets() -> [Secret; 2] {
    [1, 2].map(|byte| Secret::from_random(&mut [byte; SECRET_RANDOM_BYTES]))
}

/// Accepts two tokens, `first` and `second`.
fn control() -> AccessControl {
    let mut tokens = Tokens::default();
    for (name, secret) in ["first", "second"].into_iter().zip(secrets()) {
        let (name, hash) = (name.to_owned(), secret.hash());
        tokens.add(Token { name, hash, created_unix_ms: 0, expires_unix_ms: None }).unwrap();
    }
    AccessControl::new(None, Some(tokens))
}

async fn dialled(
    listener: &Listener,
    pem: Option<&Pem>,
    token: TokenSource,
) -> Result<Link, DialError> {
    let tls = pem.map(|pem| pem.dialer(None, None));
    let access = Access { tls, token: Some(token), ..Access::default() };
    let options = LinkOptions { access: Some(access), ..dialling() };
    soon(dial(listener.local_address(), &handshake(), &options)).await
}

/// Who a client is that has this token.
async fn identity(listener: &mut Listener, pem: &Pem, token: TokenSource) -> String {
    let _link = dialled(listener, Some(pem), token).await.unwrap();
    soon(listener.accept()).await.identity().unwrap().to_string()
}

#[tokio::test]
async fn a_token_names_its_client_and_its_file_is_read_for_each_link() {
    let pem = Pem::new();
    let access_control = control();
    let mut listener = listener(ListenerOptions { access_control, ..pem.listening(None) }).await;
    let [first, second] = secrets();
    let text = std::str::from_utf8(second.text()).unwrap();
    let direct = TokenSource::from_secret(text).unwrap();
    assert_eq!(identity(&mut listener, &pem, direct).await, "token:second");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("client.token");
    let token = || TokenSource::from_file(&file);
    for (secret, expected) in [(first, "token:first"), (second, "token:second")] {
        std::fs::write(&file, [secret.text(), b"\n"].concat()).unwrap();
        assert_eq!(identity(&mut listener, &pem, token()).await, expected);
    }
    std::fs::write(&file, "lst_").unwrap();
    let error = dialled(&listener, Some(&pem), token()).await.unwrap_err();
    assert!(matches!(error, DialError::Token(_)), "{error}");
    assert!(error.to_string().contains("client.token is neither the secret"), "{error}");
    let missing = TokenSource::from_file(Path::new("/nowhere/client.token"));
    let error = dialled(&listener, Some(&pem), missing).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/client.token"), "{error}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_token_file_that_cannot_be_read_in_time_fails_the_dial() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("client.token");
    // Reading it waits for a writer, as a file system that hangs waits for its server.
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.unwrap().success());
    let pem = Pem::new();
    let listener = listener(pem.listening(None)).await;
    let access = Access {
        tls: Some(pem.dialer(None, None)),
        token: Some(TokenSource::from_file(&file)),
        ..Access::default()
    };
    let connect_timeout = std::time::Duration::from_millis(50);
    let options = LinkOptions { access: Some(access), connect_timeout, ..dialling() };
    for _ in 0..2 {
        let error = soon(dial(listener.local_address(), &handshake(), &options)).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("client.token: timed out"), "{error}");
    }
    // The thread that reads ends with its writer.
    drop(std::fs::File::options().write(true).open(&file).unwrap());
}

#[tokio::test]
async fn a_token_is_not_sent_without_tls() {
    // It would accept whatever comes, and record it.
    let thief = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = thief.local_addr().unwrap();
    let token = TokenSource::from_secret(std::str::from_utf8(secrets()[0].text()).unwrap());
    let access = Access { token: Some(token.unwrap()), ..Access::default() };
    let options = LinkOptions { access: Some(access), ..dialling() };
    let error = soon(dial(address, &handshake(), &options)).await.unwrap_err();
    assert!(matches!(error, DialError::TokenWithoutTls { .. }), "{error}");
    assert!(error.to_string().contains("over TLS only"), "{error}");
    let untouched = std::net::TcpStream::connect(address).unwrap().local_addr().unwrap();
    assert_eq!(soon(thief.accept()).await.unwrap().1, untouched, "it was dialled");
}
