//! Tests at the limit of open files. They have a process of their own: the limit applies to the
//! whole process.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "suite/common/mod.rs"]
mod common;

use std::fs::File;

use common::*;
use longshore_protocol::{HandshakeAnswer, HandshakeRefusal};
use longshore_transport::{ListenerOptions, dial};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;

fn limit(descriptors: u64) {
    let limit = Rlimit { current: Some(descriptors), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[tokio::test]
async fn the_limit_is_raised_and_diallers_beyond_it_are_refused_until_files_close() {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20).min(1 << 20);
    limit(300);
    let options = ListenerOptions { connections_max: hard as usize, ..listening() };
    let mut listener = listener(options).await;
    assert_eq!(getrlimit(Resource::Nofile).current, Some(hard), "raised for so many links");

    // From now on nothing raises it.
    limit(300);
    let sockets: Vec<_> = (0..20).map(|_| TcpSocket::new_v4().unwrap()).collect();
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    let mut refused = Vec::new();
    for socket in sockets {
        let mut stream = soon(socket.connect(listener.local_address())).await.unwrap();
        stream.write_all(&handshake_bytes(&handshake())).await.unwrap();
        let answer = soon(raw_answer(&mut stream)).await;
        let HandshakeAnswer::Refused { code: HandshakeRefusal::Busy, reason } = answer else {
            panic!("{answer:?}")
        };
        assert!(reason.contains("limit of open files"), "{reason}");
        // A closed stream would leave its descriptor to the next one.
        refused.push(stream);
    }
    drop(files);
    let link = soon(dial(listener.local_address(), &handshake(), &dialling())).await.unwrap();
    drop((link, soon(listener.accept()).await));
}
