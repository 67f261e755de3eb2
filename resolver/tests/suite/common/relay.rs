//! A relay between clients and a server, which counts connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::LOOPBACK;

/// A relay to one server.
pub struct Relay {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Relay {
    pub async fn to(server: SocketAddr) -> Relay {
        let listener = TcpListener::bind(LOOPBACK).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        let task = tokio::spawn(async move {
            let mut relayed = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                relayed.spawn(async move {
                    let mut far = TcpStream::connect(server).await?;
                    near.set_nodelay(true)?;
                    far.set_nodelay(true)?;
                    copy_bidirectional(&mut near, &mut far).await
                });
            }
        });
        Relay { address, connections, task }
    }

    /// The number of accepted connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}
