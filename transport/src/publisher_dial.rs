//! Dialling one publisher at its advertised addresses.

use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use longshore_protocol::{Address, Handshake, PublisherId, PublisherInfo, check_name};
use parking_lot::Mutex;

use crate::dial::{DialError, Endpoint, dial_endpoint};
use crate::link::Link;
use crate::lookup::{LookupError, lookup};
use crate::options::LinkOptions;
use crate::own_address::is_own_address;

/// Where a publisher answered last: its advertised address, and the IP address that it resolved to.
/// A worker retains it after the loss of a link: leases outlive the link by seconds, and a lookup
/// may take as long. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LastAddress(Arc<Mutex<Option<(Address, SocketAddr)>>>);

/// Dials a publisher at the IP address where it answered last, and then at each of its addresses.
/// Host names are resolved only then, each within `connect_timeout`, and their IP addresses are
/// tried in the order in which the system returns them. An IP address at which another publisher
/// answers is skipped.
///
/// Without TLS its Unix sockets in [`LinkOptions::socket_folders`] come first: on another machine
/// there is none, or another publisher answers. On this machine a socket that is there is not given
/// up for an IP address, also not for that of a host name: there the client would have another
/// identity, which does not own its session.
///
/// With TLS the certificate has to contain the publisher's TLS name, or without one the host name
/// or IP address, unless the options name another.
pub async fn dial_publisher(
    publisher: &PublisherInfo,
    last: &LastAddress,
    handshake: &Handshake,
    options: &LinkOptions,
) -> Result<Link, DialError> {
    let limit = options.connect_timeout;
    let resolve = |host: String| async move { lookup(&host, limit).await };
    dial_resolved(publisher, last, handshake, options, resolve).await
}

async fn dial_resolved<F>(
    publisher: &PublisherInfo,
    last: &LastAddress,
    handshake: &Handshake,
    options: &LinkOptions,
    resolve: impl Fn(String) -> F,
) -> Result<Link, DialError>
where
    F: Future<Output = Result<Vec<SocketAddr>, LookupError>>,
{
    check_name(&handshake.name)?;
    let mut failures = Vec::new();
    for address in &publisher.addresses {
        let Address::Unix(path) = address else { continue };
        if !options.dials(path) {
            continue;
        }
        match dial_one(publisher, address, Endpoint::Unix(path), handshake, options).await {
            Ok(link) => return Ok(link),
            Err(error) => failures.push((address.clone(), error)),
        }
    }
    let has_socket = failures.iter().any(|(_, error)| may_be_its_socket(error));
    // An address that is advertised no longer may belong to another publisher by now.
    let known = last.0.lock().clone().filter(|(at, _)| publisher.addresses.contains(at));
    let last_ip = known.as_ref().map(|(_, at)| at.ip());
    let mut ips = publisher.addresses.iter().filter_map(Address::ip).chain(last_ip);
    if has_socket && ips.any(is_own_address) {
        return Err(DialError::AllAddressesFailed(failures));
    }
    if let Some((address, ip)) = &known {
        match dial_one(publisher, address, Endpoint::Tcp(*ip), handshake, options).await {
            Ok(link) => return Ok(link),
            Err(error) => failures.push((address.clone(), error)),
        }
    }
    for address in &publisher.addresses {
        let ips = match address {
            Address::Unix(_) | Address::Unknown(_) => continue,
            Address::Ip(ip) => vec![*ip],
            Address::Host(host) => match resolve(host.to_string()).await {
                Ok(ips) if has_socket && ips.iter().any(|ip| is_own_address(ip.ip())) => {
                    return Err(DialError::AllAddressesFailed(failures));
                }
                Ok(ips) => ips,
                Err(error) => {
                    failures.push((address.clone(), error.into()));
                    continue;
                }
            },
        };
        for ip in ips {
            let found = (address.clone(), ip);
            if known.as_ref() == Some(&found) {
                continue;
            }
            match dial_one(publisher, address, Endpoint::Tcp(ip), handshake, options).await {
                Ok(link) => {
                    *last.0.lock() = Some(found);
                    return Ok(link);
                }
                Err(error) => failures.push((found.0, error)),
            }
        }
    }
    if failures.is_empty() {
        return Err(DialError::NoAddress { publisher: publisher.name.clone() });
    }
    Err(DialError::AllAddressesFailed(failures))
}

/// Whether the publisher may listen on a socket that could not be dialled.
fn may_be_its_socket(error: &DialError) -> bool {
    match error {
        DialError::Connect { source, .. } => {
            !matches!(source.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
        }
        DialError::UnexpectedPublisher { .. } => false,
        _ => true,
    }
}

async fn dial_one(
    publisher: &PublisherInfo,
    address: &Address,
    endpoint: Endpoint<'_>,
    handshake: &Handshake,
    options: &LinkOptions,
) -> Result<Link, DialError> {
    let name = match (&publisher.tls_name, address) {
        (Some(name), _) => Some(name.as_str()),
        (None, Address::Ip(_) | Address::Unix(_) | Address::Unknown(_)) => None,
        // A trailing dot is for the system's lookup; certificates have none.
        (None, Address::Host(host)) => Some(host.name().trim_end_matches('.')),
    };
    let link = dial_endpoint(endpoint, name, handshake, options).await?;
    let (found, expected) =
        (link.welcome().map(|welcome| PublisherId(welcome.instance)), publisher.id);
    match found.filter(|found| *found != expected) {
        Some(found) => {
            Err(DialError::UnexpectedPublisher { address: endpoint.into(), found, expected })
        }
        None => Ok(link),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use longshore_protocol::{Epoch, LinkTiming, Role, SessionId};

    use super::*;
    use crate::negotiation::ServerInfo;
    use crate::{Listener, ListenerOptions};

    const WANTED: PublisherId = PublisherId([1; 16]);

    async fn listener(publisher: PublisherId, at: SocketAddr) -> Listener {
        let info =
            ServerInfo { instance: publisher.0, epoch: 1, name: "p".into(), serves: |_| true };
        Listener::bind(at, info, ListenerOptions::default()).unwrap()
    }

    fn loopback(last: u8, port: u16) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), port)
    }

    async fn dial<F>(
        addresses: &[&str],
        last: &LastAddress,
        resolve: impl Fn(String) -> F,
    ) -> Result<Link, DialError>
    where
        F: Future<Output = Result<Vec<SocketAddr>, LookupError>>,
    {
        let addresses: Vec<Address> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let handshake =
            Handshake::new(Role::Worker, SessionId([1; 16]), "worker", LinkTiming::WORK);
        let options = LinkOptions::default();
        let publisher = PublisherInfo::new(WANTED, Epoch(1), "p", addresses);
        let dialled = dial_resolved(&publisher, last, &handshake, &options, resolve);
        tokio::time::timeout(Duration::from_secs(4), dialled).await.expect("the dial hangs")
    }

    #[tokio::test]
    async fn a_redial_of_a_host_name_skips_the_lookup() {
        let listener = listener(WANTED, loopback(1, 0)).await;
        let (at, last) = (listener.local_address(), LastAddress::default());
        let first = dial(&["jobs-1:1"], &last, |_| async move { Ok(vec![at]) }).await.unwrap();
        drop(first);
        let never = |_| std::future::pending();
        assert_eq!(dial(&["jobs-1:1"], &last, never).await.unwrap().peer_address(), at);
        // A name that is advertised no longer is not dialled.
        let moved = dial(&["jobs-2:1"], &last, |_| async move { Ok(vec![loopback(9, 1)]) }).await;
        assert!(
            matches!(&moved, Err(DialError::AllAddressesFailed(tried)) if tried.len() == 1),
            "{moved:?}"
        );
    }

    #[tokio::test]
    async fn a_publisher_that_moved_is_found_after_its_last_address_fails() {
        let before = listener(WANTED, loopback(1, 0)).await;
        let (old, last) = (before.local_address(), LastAddress::default());
        dial(&["jobs-1:1"], &last, |_| async move { Ok(vec![old]) }).await.unwrap();
        drop(before);
        let after = listener(WANTED, loopback(2, 0)).await;
        let new = after.local_address();
        let link = dial(&["jobs-1:1"], &last, |_| async move { Ok(vec![old, new]) }).await;
        assert_eq!(link.unwrap().peer_address(), new);
        let never = |_| std::future::pending();
        assert_eq!(dial(&["jobs-1:1"], &last, never).await.unwrap().peer_address(), new);
    }

    #[tokio::test]
    async fn a_socket_of_this_machine_is_not_given_up_for_a_host_name() {
        let listener = listener(WANTED, loopback(1, 0)).await;
        let (at, last) = (listener.local_address(), LastAddress::default());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.sock");
        let addresses = [&*format!("unix:{}", path.display()), "here:1"];
        let here = |_| async move { Ok(vec![loopback(1, 1), at]) };
        // No socket is there yet.
        assert_eq!(dial(&addresses, &last, here).await.unwrap().peer_address(), at);
        // As if its process started again at this moment.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        for last in [last, LastAddress::default()] {
            let error = dial(&addresses, &last, here).await.unwrap_err();
            assert!(matches!(&error, DialError::AllAddressesFailed(tried) if tried.len() == 1));
            assert!(error.to_string().starts_with("cannot connect to unix:"), "{error}");
        }
        // A name of another machine is tried.
        let elsewhere = |_| async {
            Err(LookupError::Timeout { host: "there:1".into(), after: Duration::ZERO })
        };
        let error = dial(&addresses, &LastAddress::default(), elsewhere).await.unwrap_err();
        assert!(matches!(&error, DialError::AllAddressesFailed(tried) if tried.len() == 2));
    }

    #[tokio::test]
    async fn the_right_publisher_is_found_among_the_addresses_of_one_name() {
        let other = listener(PublisherId([2; 16]), loopback(1, 0)).await;
        let right = listener(WANTED, loopback(2, 0)).await;
        let (other, ip) = (other.local_address(), right.local_address());
        let last = LastAddress::default();
        let link = dial(&["jobs:1"], &last, |_| async move { Ok(vec![other, ip]) }).await;
        assert_eq!(link.unwrap().peer_address(), ip);
        let only = dial(&["alone:1"], &last, |_| async move { Ok(vec![other]) }).await;
        let reason = only.unwrap_err().to_string();
        assert!(
            reason.starts_with("alone:1: ") && reason.contains("publisher 02020202"),
            "{reason}"
        );
    }
}
