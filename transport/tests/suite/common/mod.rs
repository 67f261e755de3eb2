//! What the link scenarios share: a listener, a dialler, a raw peer that sends arbitrary bytes.
#![allow(dead_code, unreachable_pub)]

#[path = "../../../../tests/pem.rs"]
pub mod pem;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::handshake::MAGIC;
use longshore_protocol::{
    Encode, Frame, FrameWriter, Handshake, HandshakeAnswer, LinkTiming, Role, SessionId,
};
use longshore_transport::{Access, Link, LinkOptions, Listener, ListenerOptions, ServerInfo, dial};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Short enough to wait for, long enough for a busy machine.
pub const TIMING: LinkTiming =
    LinkTiming { heartbeat: Duration::from_millis(100), hang: Duration::from_millis(600) };

/// Far longer than any step here takes.
pub const SOON: Duration = Duration::from_secs(20);

pub const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

pub fn info() -> ServerInfo {
    ServerInfo {
        instance: [9; 16],
        epoch: 4,
        name: "here".into(),
        serves: |r| !r.is_for_resolver(),
    }
}

pub fn handshake() -> Handshake {
    Handshake::new(Role::Worker, SessionId([1; 16]), "worker-1", LinkTiming::WORK)
}

pub fn listening() -> ListenerOptions {
    ListenerOptions {
        timing: TIMING,
        handshake_timeout: Duration::from_millis(500),
        ..ListenerOptions::default()
    }
}

pub fn dialling() -> LinkOptions {
    LinkOptions { handshake_timeout: Duration::from_secs(2), ..LinkOptions::default() }
}

pub async fn listener(options: ListenerOptions) -> Listener {
    Listener::bind(LOOPBACK, info(), options).unwrap()
}

/// A link, dialled and accepted: (dialler's end, listener's end).
pub async fn link() -> (Link, Link, Listener) {
    link_with(listening(), dialling()).await
}

pub async fn link_with(
    listening: ListenerOptions,
    dialling: LinkOptions,
) -> (Link, Link, Listener) {
    let mut listener = listener(listening).await;
    let dialled = dial(listener.local_address(), &handshake(), &dialling).await.unwrap();
    let accepted = listener.accept().await;
    (dialled, accepted, listener)
}

/// A frame with one message: a number and `more` further bytes.
pub fn frame(number: u64, more: usize) -> Frame {
    let mut out = FrameWriter::new();
    out.message(50, |out| {
        out.u64_fixed(number);
        out.put_shared(Bytes::from(vec![number as u8; more]));
    });
    out.finish()
}

/// The number of such a frame, whose body has to be intact.
pub fn number(body: &Bytes) -> u64 {
    let number = u64::from_le_bytes(body[5..13].try_into().unwrap());
    assert!(body[13..].iter().all(|byte| *byte == number as u8), "frame {number} is garbled");
    number
}

/// A raw dialler with a proper handshake.
pub async fn raw_dialler(address: SocketAddr, timing: LinkTiming) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(&handshake_bytes(&Handshake { timing, ..handshake() })).await.unwrap();
    let answer = raw_answer(&mut stream).await;
    assert!(matches!(answer, HandshakeAnswer::Welcome(_)), "{answer:?}");
    stream
}

/// Magic and a frame.
pub fn handshake_bytes(message: &impl Encode) -> Vec<u8> {
    let mut out = FrameWriter::new();
    message.encode(&mut out);
    let mut bytes = MAGIC.to_vec();
    bytes.extend(bytes_of(&out.finish()));
    bytes
}

pub fn bytes_of(frame: &Frame) -> Vec<u8> {
    frame.parts().concat()
}

pub async fn raw_answer(stream: &mut TcpStream) -> HandshakeAnswer {
    use longshore_protocol::{Decode, Reader};
    let mut head = [0; 8];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[..4], MAGIC);
    let mut body = vec![0; u32::from_le_bytes(head[4..].try_into().unwrap()) as usize];
    stream.read_exact(&mut body).await.unwrap();
    HandshakeAnswer::decode(&mut Reader::new(body.into())).unwrap()
}

/// Waits for `what`, and fails instead of hanging.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("it takes far too long")
}

impl pem::Pem {
    pub fn listening(&self, clients: Option<&pem::Pem>) -> ListenerOptions {
        ListenerOptions { tls: Some(self.acceptor(clients)), ..listening() }
    }

    pub fn dialling(&self, name: Option<&str>, identity: Option<&pem::Pem>) -> LinkOptions {
        {
            let tls = Some(self.dialer(name, identity));
            LinkOptions { access: Some(Access { tls, ..Access::default() }), ..dialling() }
        }
    }
}
