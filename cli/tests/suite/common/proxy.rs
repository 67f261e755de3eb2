//! The proxy between clients and a publisher, where answers can be lost: what a crash at the worst
//! moment looks like, at a moment of the test's choice.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Passes bytes on between clients that dial [`LossyProxy::address`] and a publisher.
pub(crate) struct LossyProxy {
    pub(crate) address: SocketAddr,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    /// Where the publisher listens, once it does.
    publisher: Mutex<Option<SocketAddr>>,
    /// What the publisher says is lost.
    drops_answers: AtomicBool,
    dropped_bytes: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

impl LossyProxy {
    pub(crate) fn new() -> LossyProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ProxyState::default());
        let shared = state.clone();
        // ProxyState with the test's process.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A publisher that is away: the client finds its link closed.
                let publisher = *shared.publisher.lock().unwrap();
                let Some(Ok(publisher)) = publisher.map(TcpStream::connect) else { continue };
                shared.join(&client, &publisher);
            }
        });
        LossyProxy { address, state }
    }

    /// Leads to this publisher from now on.
    pub(crate) fn forward_to(&self, publisher: SocketAddr) {
        *self.state.publisher.lock().unwrap() = Some(publisher);
    }

    /// Loses what the publisher says, until told otherwise. Links that have lost something never
    /// speak again.
    pub(crate) fn drop_answers(&self, lose: bool) {
        self.state.drops_answers.store(lose, Ordering::SeqCst);
    }

    /// Bytes of answers that were lost.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.state.dropped_bytes.load(Ordering::SeqCst)
    }

    /// ProxyState every link at once.
    pub(crate) fn cut(&self) {
        for end in self.state.open.lock().unwrap().drain(..) {
            // It may have ended by itself.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl ProxyState {
    fn join(self: &Arc<ProxyState>, client: &TcpStream, publisher: &TcpStream) {
        for end in [client, publisher] {
            end.set_nodelay(true).unwrap();
            self.open.lock().unwrap().push(end.try_clone().unwrap());
        }
        let (from, to) = (client.try_clone().unwrap(), publisher.try_clone().unwrap());
        thread::spawn(move || pass_on(&from, &to, |_| true));
        let (from, to) = (publisher.try_clone().unwrap(), client.try_clone().unwrap());
        let state = self.clone();
        thread::spawn(move || {
            let mut speaks = true;
            pass_on(&from, &to, |bytes| {
                speaks &= !state.drops_answers.load(Ordering::SeqCst);
                let lost = if speaks { 0 } else { bytes as u64 };
                state.dropped_bytes.fetch_add(lost, Ordering::SeqCst);
                speaks
            });
        });
    }
}

fn pass_on(mut from: &TcpStream, mut to: &TcpStream, mut passes: impl FnMut(usize) -> bool) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        if passes(length) && to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
