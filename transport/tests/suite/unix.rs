//! Links over a Unix socket beside the TCP port.

use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::Path;

use longshore_access::AccessControl;
use longshore_protocol::{
    Address, Epoch, HandshakeRefusal, PublisherId, PublisherInfo, SocketPath,
};
use longshore_transport::{
    Access, BindError, DialError, LastAddress, LinkEnd, LinkOptions, Listener, ListenerOptions,
    ServerInfo, TokenSource, dial, dial_publisher, dial_unix,
};

use crate::authorization::{policy, refused, secret, tokens, with_secret};
use crate::common::pem::Pem;
use crate::common::*;

fn socket_in(folder: &tempfile::TempDir) -> SocketPath {
    folder.path().join("a.sock").to_str().unwrap().parse().unwrap()
}

/// This process's user, as the kernel knows it.
fn own_identity() -> String {
    format!("unix:{}", rustix::process::getuid().as_raw())
}

#[tokio::test]
async fn a_user_is_known_by_its_number_and_frames_arrive_both_ways() {
    let (folder, pem) = (tempfile::tempdir().unwrap(), Pem::new());
    let path = socket_in(&folder);
    let own = own_identity();
    let control = AccessControl::new(policy(&[(&own, "/a")]), tokens(&secret(1), None));
    let access_control = control.clone();
    // With TLS at its port, and without at its socket.
    let options =
        ListenerOptions { access_control, unix: Some(path.clone()), ..pem.listening(Some(&pem)) };
    let mut listener = listener(options).await;
    let mode = std::fs::metadata(path.as_str()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o660);

    let dialled = soon(dial_unix(&path, &handshake(), &dialling())).await.unwrap();
    let accepted = soon(listener.accept()).await;
    assert_eq!(accepted.identity().unwrap().to_string(), own);
    assert!(accepted.peer_address().ip().is_loopback());
    let ((here, mut from_there), (there, mut from_here)) = (dialled.split(), accepted.split());
    for i in 0..100 {
        here.send(frame(i, (i as usize * 7_919) % 300_000)).unwrap();
        there.send(frame(i, (i as usize * 104_729) % 300_000)).unwrap();
        assert_eq!(number(&soon(from_here.recv()).await.unwrap()), i);
        assert_eq!(number(&soon(from_there.recv()).await.unwrap()), i);
    }
    // Its rights are those of the policy, and end with it.
    control.replace(policy(&[("unix:4294967294", "/a")]), tokens(&secret(1), None));
    let end = soon(from_here.recv()).await.unwrap_err();
    assert!(matches!(&end, LinkEnd::Local(why) if why.contains(&own)), "{end}");
    let (code, reason) = refused(soon(dial_unix(&path, &handshake(), &dialling())).await);
    assert_eq!(code, HandshakeRefusal::Forbidden);
    assert!(reason.contains(&own), "{reason}");
    // A certificate is still required at the port.
    let (at, stranger) = (listener.local_address(), pem.dialling(None, None));
    assert!(soon(dial(at, &handshake(), &stranger)).await.is_err());
}

#[tokio::test]
async fn a_token_is_shown_over_a_socket_without_tls_and_counts_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = socket_in(&folder);
    let rules = policy(&[("token:shop", "/a")]);
    let access_control = AccessControl::new(rules, tokens(&secret(1), None));
    let options = ListenerOptions { access_control, unix: Some(path.clone()), ..listening() };
    let mut listener = listener(options).await;
    let text = String::from_utf8(secret(1).text().to_vec()).unwrap();
    let token = Some(TokenSource::from_secret(&text).unwrap());
    let access = Some(Access { token, ..Access::default() });
    let options = LinkOptions { access, ..dialling() };
    let _dialled = soon(dial_unix(&path, &handshake(), &options)).await.unwrap();
    let accepted = soon(listener.accept()).await;
    assert_eq!(accepted.identity().unwrap().to_string(), "token:shop");
    let at = listener.local_address();
    let error = soon(dial(at, &handshake(), &options)).await.unwrap_err();
    assert!(matches!(error, DialError::TokenWithoutTls { .. }), "{error}");
    let (code, _) = refused(soon(dial_unix(&path, &with_secret(&secret(2)), &dialling())).await);
    assert_eq!(code, HandshakeRefusal::Unauthenticated);
}

#[tokio::test]
async fn a_publisher_is_dialled_at_its_socket_only_without_tls() {
    let (folder, pem) = (tempfile::tempdir().unwrap(), Pem::new());
    let path = socket_in(&folder);
    let rules = policy(&[("unix:*", "/a"), ("anonymous", "/a")]);
    let access_control = AccessControl::new(rules, None);
    let options =
        ListenerOptions { access_control, unix: Some(path.clone()), ..pem.listening(None) };
    let mut listener = listener(options).await;
    let tcp = Address::from(listener.local_address());
    let id = PublisherId(info().instance);
    let at = |socket: &SocketPath| {
        let addresses = [tcp.clone(), Address::Unix(socket.clone())];
        PublisherInfo::new(id, Epoch(1), "here", addresses)
    };
    let mut who = async |publisher: PublisherInfo, options: LinkOptions| {
        let last = LastAddress::default();
        let dialled = soon(dial_publisher(&publisher, &last, &handshake(), &options)).await;
        let _dialled = dialled.map_err(|error| error.to_string())?;
        Ok(soon(listener.accept()).await.identity().map(ToString::to_string))
    };
    assert_eq!(who(at(&path), dialling()).await, Ok(Some(own_identity())));
    assert_eq!(who(at(&path), pem.dialling(None, None)).await, Ok(None));
    // On another machine there is no such socket.
    let elsewhere: SocketPath = "/nowhere/a.sock".parse().unwrap();
    let error: Result<_, String> = who(at(&elsewhere), dialling()).await;
    let error = error.unwrap_err();
    assert!(error.contains("cannot connect to unix:/nowhere/a.sock"), "{error}");
    assert_eq!(who(at(&elsewhere), pem.dialling(None, None)).await, Ok(None));
}

#[tokio::test]
async fn only_a_policy_names_a_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = socket_in(&folder);
    let options = ListenerOptions { unix: Some(path.clone()), ..listening() };
    let mut listener = listener(options).await;
    let _dialled = soon(dial_unix(&path, &handshake(), &dialling())).await.unwrap();
    // Its session is the same at the port.
    assert_eq!(soon(listener.accept()).await.identity(), None);
}

#[tokio::test]
async fn a_socket_of_this_machine_is_not_given_up_for_a_port() {
    let folder = tempfile::tempdir().unwrap();
    let path = socket_in(&folder);
    let mut listener = listener(listening()).await;
    let tcp = Address::from(listener.local_address());
    let addresses = [tcp.clone(), Address::Unix(path.clone())];
    let publisher = PublisherInfo::new(PublisherId(info().instance), Epoch(1), "here", addresses);
    let mut dials_to = async |options: LinkOptions| {
        let last = LastAddress::default();
        let dialled = soon(dial_publisher(&publisher, &last, &handshake(), &options)).await;
        let _dialled = dialled.map_err(|error| error.to_string())?;
        Ok::<_, String>(soon(listener.accept()).await.peer_address().ip())
    };
    // None is there, or it is in a folder that the client does not trust.
    let there = std::net::IpAddr::from([127, 0, 0, 1]);
    assert_eq!(dials_to(dialling()).await, Ok(there));
    drop(UnixListener::bind(path.as_str()).unwrap());
    let elsewhere = Some([folder.path().join("b")].into());
    assert_eq!(dials_to(LinkOptions { socket_folders: elsewhere, ..dialling() }).await, Ok(there));
    // As if its process started again at this moment.
    let here = Some([folder.path().to_owned()].into());
    for options in [dialling(), LinkOptions { socket_folders: here, ..dialling() }] {
        let error = dials_to(options).await.unwrap_err();
        let unix = format!("cannot connect to unix:{path}");
        assert!(error.starts_with(&unix) && !error.contains(';'), "{error}");
    }
}

#[tokio::test]
async fn a_publisher_of_another_machine_is_dialled_past_a_foreign_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = socket_in(&folder);
    let other = ServerInfo { instance: [8; 16], ..info() };
    let options = ListenerOptions { unix: Some(path.clone()), ..listening() };
    let _other = Listener::bind(LOOPBACK, other, options).unwrap();
    let listener = listener(listening()).await;
    let addresses = [Address::Unix(path.clone()), listener.local_address().into()];
    let publisher = PublisherInfo::new(PublisherId(info().instance), Epoch(1), "there", addresses);
    let last = LastAddress::default();
    let dialled = soon(dial_publisher(&publisher, &last, &handshake(), &dialling())).await;
    assert_eq!(dialled.unwrap().peer_address(), listener.local_address());
    let only = PublisherInfo { addresses: vec![Address::Unix(path)], ..publisher };
    let nowhere = LinkOptions { socket_folders: Some([].into()), ..dialling() };
    let error = soon(dial_publisher(&only, &last, &handshake(), &nowhere)).await.unwrap_err();
    assert!(error.to_string().contains("no address that this client dials"), "{error}");
}

#[tokio::test]
async fn of_two_processes_that_start_at_once_one_has_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = socket_in(&folder);
    let bind = || {
        let options = ListenerOptions { unix: Some(path.clone()), ..listening() };
        Listener::bind(LOOPBACK, info(), options)
    };
    // The other one does not listen yet.
    let other = std::fs::File::create(format!("{path}.lock")).unwrap();
    other.lock().unwrap();
    drop(UnixListener::bind(path.as_str()).unwrap());
    let error = bind().unwrap_err();
    assert!(matches!(error, BindError::UnixInUse { pid: None, .. }), "{error}");
    let remedy = format!("`fuser -v {path}.lock` shows which");
    assert!(error.to_string().contains(&remedy), "{error}");
    drop(other);
    soon(dial_unix(&path, &handshake(), &dialling())).await.unwrap_err();
    let _listener = bind().unwrap();
    soon(dial_unix(&path, &handshake(), &dialling())).await.unwrap();
}

#[tokio::test]
async fn a_full_backlog_keeps_no_process_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let path = socket_in(&folder);
    let at = socket2::SockAddr::unix(path.as_str()).unwrap();
    let socket = || socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None);
    let silent = socket().unwrap();
    silent.bind(&at).unwrap();
    silent.listen(1).unwrap();
    let mut waiting = Vec::new();
    loop {
        let one = socket().unwrap();
        one.set_nonblocking(true).unwrap();
        if one.connect(&at).is_err() {
            break;
        }
        waiting.push(one);
    }
    let options = ListenerOptions { unix: Some(path.clone()), ..listening() };
    // A thread that waits for ever keeps the test from nothing but its end.
    let (done, bound) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _runtime = runtime.enter();
        done.send(Listener::bind(LOOPBACK, info(), options).map(drop))
    });
    let error = soon(bound).await.unwrap().unwrap_err();
    assert!(matches!(error, BindError::UnixInUse { pid: None, .. }), "{error}");
}

#[tokio::test]
async fn a_folder_to_which_others_may_write_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = socket_in(&folder);
    let bind = |mode: u32| {
        std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        let options = ListenerOptions { unix: Some(path.clone()), ..listening() };
        Listener::bind(LOOPBACK, info(), options)
    };
    for mode in [0o770, 0o707, 0o1777] {
        let error = bind(mode).unwrap_err();
        assert!(matches!(error, BindError::UnixFolder { .. }), "{mode:o}: {error}");
        assert!(error.to_string().contains("chmod go-w"), "{error}");
    }
    soon(bind(0o2750).unwrap().close()).await;
}

#[tokio::test]
async fn a_taken_port_leaves_no_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = socket_in(&folder);
    let other = listener(listening()).await;
    let options = ListenerOptions { unix: Some(path.clone()), ..listening() };
    let error = Listener::bind(other.local_address(), info(), options).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    assert!(!Path::new(path.as_str()).exists());
    // The socket comes first: no client finds the port without it.
    std::fs::write(path.as_str(), "").unwrap();
    let options = ListenerOptions { unix: Some(path.clone()), ..listening() };
    let error = Listener::bind(other.local_address(), info(), options).unwrap_err();
    assert!(matches!(error, BindError::UnixNotASocket { .. }), "{error}");
}

#[tokio::test]
async fn only_a_socket_on_which_nobody_listens_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = socket_in(&folder);
    let bind = || {
        let options = ListenerOptions { unix: Some(path.clone()), ..listening() };
        Listener::bind(LOOPBACK, info(), options)
    };
    // A process that has crashed leaves its socket.
    drop(UnixListener::bind(path.as_str()).unwrap());
    let listener = bind().unwrap();
    soon(dial_unix(&path, &handshake(), &dialling())).await.unwrap();
    // With its lock, and without it, as of a program that takes none.
    for lock in [true, false] {
        if !lock {
            std::fs::remove_file(format!("{path}.lock")).unwrap();
        }
        let error = bind().unwrap_err();
        let BindError::UnixInUse { pid, .. } = &error else { panic!("{error}") };
        assert_eq!(*pid, Some(std::process::id()));
        let named = format!("belongs to process {}, which", std::process::id());
        assert!(error.to_string().contains(&named), "{error}");
    }
    soon(dial_unix(&path, &handshake(), &dialling())).await.unwrap();
    soon(listener.close()).await;
    assert!(!Path::new(path.as_str()).exists(), "its socket stays");

    std::fs::write(path.as_str(), "precious").unwrap();
    let error = bind().unwrap_err();
    assert!(error.to_string().contains("is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(path.as_str()).unwrap(), "precious");
    std::fs::remove_file(path.as_str()).unwrap();

    // Another process's socket at its path is not removed.
    let listener = bind().unwrap();
    std::fs::remove_file(path.as_str()).unwrap();
    let _other = UnixListener::bind(path.as_str()).unwrap();
    soon(listener.close()).await;
    assert!(std::fs::metadata(path.as_str()).unwrap().file_type().is_socket());

    let missing = ListenerOptions { unix: "/nowhere/a.sock".parse().ok(), ..listening() };
    let error = Listener::bind(LOOPBACK, info(), missing).unwrap_err();
    assert!(error.to_string().contains("its folder has to exist"), "{error}");
}
