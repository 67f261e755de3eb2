//! What the scenarios over sockets share: an honest replica, its clients, short times.
#![allow(dead_code, unreachable_pub)]

pub mod hostile;
#[path = "../../../../tests/pem.rs"]
pub mod pem;
pub mod process;
pub mod relay;
pub mod watchers;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::frame::{FrameWriter, Messages};
use longshore_protocol::messages::resolver::{FromReplica, ToReplica};
use longshore_protocol::{
    Epoch, Handshake, LinkTiming, Path, PublisherId, PublisherInfo, ResolverTiming, Role, SessionId,
};
use longshore_resolver::{
    Cluster, PathAnswer, ReadClient, ReplicaStopped, ResolverServer, ServerOptions, WriteClient,
};
use longshore_transport::{LinkReceiver, LinkSender};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than any step here takes, on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A replica that follows the protocol.
pub struct Replica {
    pub address: SocketAddr,
    task: JoinHandle<Result<(), ReplicaStopped>>,
}

impl Replica {
    pub async fn start(options: ServerOptions) -> Replica {
        let server = ResolverServer::bind(LOOPBACK, options).unwrap();
        let address = server.local_address();
        Replica { address, task: tokio::spawn(server.run(std::future::pending())) }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn cluster(timing: ResolverTiming, replicas: impl IntoIterator<Item = SocketAddr>) -> Cluster {
    let replicas = replicas.into_iter().map(|replica| replica.to_string());
    Cluster { timing, ..Cluster::new(replicas) }
}

pub fn publisher(number: u8) -> PublisherInfo {
    PublisherInfo::new(
        PublisherId([number; 16]),
        Epoch(1),
        format!("publisher-{number}"),
        [([127, 0, 0, 1], 4000 + u16::from(number))],
    )
}

pub fn writer(cluster: &Cluster, number: u8) -> WriteClient {
    WriteClient::connect(cluster.clone(), publisher(number))
}

pub fn reader(cluster: &Cluster) -> ReadClient {
    ReadClient::builder().name("a reader").connect(cluster.clone())
}

pub fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

/// The names of the path's publishers.
pub fn publisher_names(answer: &PathAnswer) -> Vec<&str> {
    match answer {
        PathAnswer::Publishers { set, .. } => {
            set.iter().map(|info| info.publisher.name.as_str()).collect()
        }
        PathAnswer::NotFound => Vec::new(),
        PathAnswer::Refused(reason) => panic!("{reason}"),
    }
}

pub fn handshake(role: Role) -> Handshake {
    let hang = ResolverTiming::default().reader_ttl;
    Handshake::new(role, SessionId([7; 16]), "by hand", LinkTiming { heartbeat: hang / 4, hang })
}

/// Sends one request on a link, and returns the answer.
pub async fn ask(link: &mut (LinkSender, LinkReceiver), request: &ToReplica) -> FromReplica {
    let mut out = FrameWriter::new();
    request.encode(&mut out);
    link.0.send(out.finish()).unwrap();
    loop {
        let frame: Bytes = link.1.recv().await.expect("the link is up");
        for message in Messages::new(frame) {
            let (tag, body) = message.unwrap();
            if let Some(answer) = FromReplica::decode(tag, body).unwrap() {
                return answer;
            }
        }
    }
}

pub async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it takes too long")
}
