//! A proxy between clients and a publisher that can drop the publisher's answers, as a crash
//! between commit and answer would.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Forwards bytes between clients that dial [`LossyProxy::address`] and a publisher.
pub(crate) struct LossyProxy {
    pub(crate) address: SocketAddr,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    /// The publisher's address, once known.
    publisher: Mutex<Option<SocketAddr>>,
    /// Drop what the publisher sends.
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
        // The thread ends with the test process.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // While the publisher is down, close the client's link.
                let publisher = *shared.publisher.lock().unwrap();
                let Some(Ok(publisher)) = publisher.map(TcpStream::connect) else { continue };
                shared.join(&client, &publisher);
            }
        });
        LossyProxy { address, state }
    }

    /// Forwards new links to this publisher.
    pub(crate) fn forward_to(&self, publisher: SocketAddr) {
        *self.state.publisher.lock().unwrap() = Some(publisher);
    }

    /// Starts or stops dropping the publisher's answers. A link that has lost bytes drops all later
    /// ones too.
    pub(crate) fn drop_answers(&self, drops: bool) {
        self.state.drops_answers.store(drops, Ordering::SeqCst);
    }

    /// Bytes of dropped answers.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.state.dropped_bytes.load(Ordering::SeqCst)
    }

    /// ProxyState every link at once.
    pub(crate) fn cut(&self) {
        for stream in self.state.open.lock().unwrap().drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
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
        thread::spawn(move || forward(&from, &to, |_| true));
        let (from, to) = (publisher.try_clone().unwrap(), client.try_clone().unwrap());
        let state = self.clone();
        thread::spawn(move || {
            let mut forwards = true;
            forward(&from, &to, |bytes| {
                forwards &= !state.drops_answers.load(Ordering::SeqCst);
                let lost = if forwards { 0 } else { bytes as u64 };
                state.dropped_bytes.fetch_add(lost, Ordering::SeqCst);
                forwards
            });
        });
    }
}

fn forward(mut from: &TcpStream, mut to: &TcpStream, mut passes: impl FnMut(usize) -> bool) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        if passes(length) && to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
