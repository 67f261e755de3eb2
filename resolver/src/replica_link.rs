//! A client's link to one replica, or the attempt to open it: shared by the tasks of both clients.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use longshore_protocol::frame::{Frame, FrameWriter, Messages};
use longshore_protocol::messages::resolver::{FromReplica, ToReplica};
use longshore_protocol::{Address, Handshake, Role, SessionId, check_name};
use longshore_transport::{
    DialError, Link, LinkOptions, LinkReceiver, LinkSender, dial, dial_unix, lookup,
};
use tokio::time::{sleep_until, timeout};

use crate::cluster::{Cluster, link_timing};
use crate::replica_error::ReplicaError;

/// The dialling client.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) cluster: Cluster,
    pub(crate) role: Role,
    pub(crate) session: SessionId,
    /// The name that operators see.
    pub(crate) name: String,
}

/// What happened to a link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// It is established.
    Linked,
    /// It could not be established, or has ended, and why. There is no link now.
    Unlinked { why: String },
    /// Messages arrived; `damaged` is set if those after them do not decode. Then the link is
    /// unusable.
    Received { messages: Vec<FromReplica>, damaged: Option<String> },
}

/// A link, the attempt to open one, or none.
#[derive(Default)]
pub(crate) enum ReplicaLink {
    #[default]
    None,
    Dialling(Pin<Box<dyn Future<Output = Result<Link, ReplicaError>> + Send>>),
    Up(LinkSender, Box<LinkReceiver>),
}

impl ReplicaLink {
    /// Begins to connect.
    pub(crate) fn dial(&mut self, caller: &Caller, replica: &str) {
        let (caller, replica) = (caller.clone(), replica.to_owned());
        *self = ReplicaLink::Dialling(Box::pin(async move { connect(&caller, &replica).await }));
    }

    /// The next event; pending for ever without a link. Cancel safe.
    pub(crate) async fn next(&mut self) -> LinkEvent {
        let event = match self {
            ReplicaLink::None => std::future::pending().await,
            ReplicaLink::Dialling(dialling) => match dialling.await {
                Ok(link) => {
                    let (sender, receiver) = link.split();
                    *self = ReplicaLink::Up(sender, Box::new(receiver));
                    return LinkEvent::Linked;
                }
                Err(error) => LinkEvent::Unlinked { why: error.to_string() },
            },
            ReplicaLink::Up(_, receiver) => match receiver.recv().await {
                Ok(frame) => return read(Messages::new(frame)),
                Err(end) => LinkEvent::Unlinked { why: end.to_string() },
            },
        };
        *self = ReplicaLink::None;
        event
    }

    /// Sends one message in a frame of its own. Returns the reason if that fails; then the link is
    /// closed.
    pub(crate) fn send(&mut self, message: &ToReplica) -> Result<(), String> {
        let mut out = FrameWriter::new();
        message.encode(&mut out);
        self.send_frame(out.finish())
    }

    fn send_frame(&mut self, frame: Frame) -> Result<(), String> {
        let ReplicaLink::Up(sender, _) = self else { return Ok(()) };
        let sent = sender.send(frame).map_err(|error| match sender.ended() {
            Some(end) => end.to_string(),
            None => error.to_string(),
        });
        if sent.is_err() {
            *self = ReplicaLink::None;
        }
        sent
    }

    /// Closes the link, or stops dialling.
    pub(crate) fn close(&mut self) {
        *self = ReplicaLink::None;
    }
}

fn read(frame: Messages) -> LinkEvent {
    let mut messages = Vec::new();
    for message in frame {
        match message.and_then(|(tag, body)| FromReplica::decode(tag, body)) {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => {}
            Err(error) => {
                let damaged = Some(format!("its answer does not decode: {error}"));
                return LinkEvent::Received { messages, damaged };
            }
        }
    }
    LinkEvent::Received { messages, damaged: None }
}

/// Tries every address of the replica. Each may take connect and handshake timeout.
pub(crate) async fn connect(caller: &Caller, replica: &str) -> Result<Link, ReplicaError> {
    connect_any(caller, addresses(caller, replica).await?).await
}

/// A caller whose name no replica accepts causes no lookup.
async fn addresses(caller: &Caller, replica: &str) -> Result<Vec<Address>, ReplicaError> {
    check_name(&caller.name).map_err(DialError::from)?;
    if replica.starts_with("unix:") {
        return Ok(vec![replica.parse()?]);
    }
    let found = lookup(replica, caller.cluster.timing.connect_timeout).await;
    Ok(found.map_err(DialError::from)?.into_iter().map(Address::Ip).collect())
}

async fn connect_any(caller: &Caller, addresses: Vec<Address>) -> Result<Link, ReplicaError> {
    let timing = &caller.cluster.timing;
    let link_timing = link_timing(timing, caller.role);
    let options = LinkOptions {
        timing: link_timing,
        connect_timeout: timing.connect_timeout,
        handshake_timeout: timing.handshake_timeout,
        access: Some(caller.cluster.access.clone()),
        ..LinkOptions::default()
    };
    let handshake = Handshake::new(caller.role, caller.session, caller.name.clone(), link_timing);
    let mut failures = Vec::new();
    for address in addresses {
        let dialled = match &address {
            Address::Ip(ip) => dial(*ip, &handshake, &options).await,
            Address::Unix(path) => dial_unix(path, &handshake, &options).await,
            // It was resolved.
            Address::Host(_) | Address::Unknown(_) => continue,
        };
        let failure = match dialled {
            Ok(link) => match link.welcome().filter(|welcome| welcome.epoch != 0) {
                Some(publisher) => {
                    ReplicaError::IsPublisher { address, publisher: publisher.name.clone() }
                }
                None => return Ok(link),
            },
            Err(error) => error.into(),
        };
        failures.push(failure);
    }
    Err(ReplicaError::AllAddressesFailed(failures))
}

/// The time for the cores.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Waits until `deadline`; for ever without one. Cancel safe.
pub(crate) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Sends one question to one replica over a link of its own. Each address of its name may take
/// connect and handshake timeout, and each part of the answer `request_timeout_min`. `take` returns
/// the answer once it is complete.
pub(crate) async fn ask_one<T>(
    caller: &Caller,
    replica: &str,
    question: &ToReplica,
    take: impl FnMut(FromReplica) -> Option<Result<T, ReplicaError>>,
) -> Result<T, ReplicaError> {
    ask_at(caller, addresses(caller, replica).await?, question, take).await
}

async fn ask_at<T>(
    caller: &Caller,
    addresses: Vec<Address>,
    question: &ToReplica,
    mut take: impl FnMut(FromReplica) -> Option<Result<T, ReplicaError>>,
) -> Result<T, ReplicaError> {
    let (sender, mut receiver) = connect_any(caller, addresses).await?.split();
    let mut out = FrameWriter::new();
    question.encode(&mut out);
    sender.send(out.finish())?;
    let limit = caller.cluster.timing.request_timeout_min;
    loop {
        let received = timeout(limit, receiver.recv()).await;
        let frame = received.map_err(|_| ReplicaError::Silent(limit))??;
        let LinkEvent::Received { messages, damaged } = read(Messages::new(frame)) else {
            continue;
        };
        for message in messages {
            match message {
                FromReplica::Refused { code, reason, .. } => {
                    return Err(ReplicaError::Refused { code, reason });
                }
                other => {
                    if let Some(answer) = take(other) {
                        return answer;
                    }
                }
            }
        }
        if let Some(why) = damaged {
            return Err(ReplicaError::BadAnswer(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use longshore_access::{AccessControl, Policy};
    use longshore_protocol::ResolverTiming;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{ResolverServer, ServerOptions};

    fn local() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    fn caller(cluster: Cluster) -> Caller {
        let session = SessionId([1; 16]);
        Caller { cluster, role: Role::ResolverReader, session, name: "test".into() }
    }

    #[tokio::test]
    async fn all_addresses_of_a_name_have_to_refuse_a_client_that_is_refused() {
        let policy = "[[allow]]\nwho = [\"token:ann\"]\ndo = [\"resolve\"]\npaths = [\"/**\"]\n";
        let policy = Some(Policy::parse(policy).unwrap());
        let mut refusing: Vec<Address> = Vec::new();
        for _ in 0..2 {
            let access_control = AccessControl::new(policy.clone(), None);
            let options = ServerOptions { access_control, ..ServerOptions::default() };
            let server = ResolverServer::bind(local(), options).unwrap();
            refusing.push(server.local_address().into());
            tokio::spawn(server.run(std::future::pending()));
        }
        let server = ResolverServer::bind(local(), ServerOptions::default()).unwrap();
        let right: Address = server.local_address().into();
        tokio::spawn(server.run(std::future::pending()));
        let nobody: Address =
            TcpListener::bind(local()).await.unwrap().local_addr().unwrap().into();
        let caller = caller(Cluster::new(["a name with addresses:1"]));
        let [a, b] = refusing.try_into().unwrap();
        for (addresses, all) in [
            (vec![a.clone()], true),
            (vec![a.clone(), b.clone()], true),
            (vec![a.clone(), nobody.clone()], false),
            (vec![nobody, b.clone()], false),
        ] {
            let error = connect_any(&caller, addresses).await.unwrap_err();
            assert_eq!(error.refuses_client(), all, "{error}");
            assert!(error.concerns_identity(), "{error}");
        }
        let link = connect_any(&caller, vec![a, b, right.clone()]).await.unwrap();
        assert_eq!(Address::from(link.peer_address()), right);
    }

    #[tokio::test]
    async fn slow_addresses_of_a_name_leave_time_for_a_later_one() {
        let options = ServerOptions { name: "right".into(), ..ServerOptions::default() };
        let server = ResolverServer::bind(local(), options).unwrap();
        let right = server.local_address();
        tokio::spawn(server.run(std::future::pending()));
        let short = Duration::from_millis(200);
        let mut cluster = Cluster::new(["a name with five addresses:1"]);
        cluster.timing = ResolverTiming {
            connect_timeout: short,
            handshake_timeout: 2 * short,
            request_timeout_min: 2 * short,
            ..ResolverTiming::default()
        };
        let mut addresses = Vec::new();
        // These accept and never send a handshake: 1.6 s in all.
        let mut silent = Vec::new();
        for _ in 0..4 {
            let listener = TcpListener::bind(local()).await.unwrap();
            addresses.push(listener.local_addr().unwrap().into());
            silent.push(listener);
        }
        addresses.push(right.into());
        let caller = caller(cluster);
        let question = ToReplica::Status { id: 1 };
        let answer = ask_at(&caller, addresses, &question, |message| match message {
            FromReplica::Status { status, .. } => Some(Ok(status.name)),
            _ => None,
        });
        assert_eq!(answer.await.unwrap(), "right");
    }
}
