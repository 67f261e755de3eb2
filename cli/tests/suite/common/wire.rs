//! The wire between clients and a publisher, where answers can be lost: what a crash at the worst
//! moment looks like, at a moment of the test's choice.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Passes bytes on between clients that dial [`Wire::address`] and a publisher.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    ends: Arc<Ends>,
}

#[derive(Default)]
struct Ends {
    /// Where the publisher listens, once it does.
    publisher: Mutex<Option<SocketAddr>>,
    /// What the publisher says is lost.
    mute: AtomicBool,
    lost_bytes: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

impl Wire {
    pub(crate) fn new() -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ends = Arc::new(Ends::default());
        let shared = ends.clone();
        // Ends with the test's process.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A publisher that is away: the client finds its link closed.
                let publisher = *shared.publisher.lock().unwrap();
                let Some(Ok(publisher)) = publisher.map(TcpStream::connect) else { continue };
                shared.join(&client, &publisher);
            }
        });
        Wire { address, ends }
    }

    /// Leads to this publisher from now on.
    pub(crate) fn lead_to(&self, publisher: SocketAddr) {
        *self.ends.publisher.lock().unwrap() = Some(publisher);
    }

    /// Loses what the publisher says, until told otherwise. Links that have lost something never
    /// speak again.
    pub(crate) fn lose_answers(&self, lose: bool) {
        self.ends.mute.store(lose, Ordering::SeqCst);
    }

    /// Bytes of answers that were lost.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.ends.lost_bytes.load(Ordering::SeqCst)
    }

    /// Ends every link at once.
    pub(crate) fn cut(&self) {
        for end in self.ends.open.lock().unwrap().drain(..) {
            // It may have ended by itself.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl Ends {
    fn join(self: &Arc<Ends>, client: &TcpStream, publisher: &TcpStream) {
        for end in [client, publisher] {
            end.set_nodelay(true).unwrap();
            self.open.lock().unwrap().push(end.try_clone().unwrap());
        }
        let (from, to) = (client.try_clone().unwrap(), publisher.try_clone().unwrap());
        thread::spawn(move || pass_on(&from, &to, |_| true));
        let (from, to) = (publisher.try_clone().unwrap(), client.try_clone().unwrap());
        let ends = self.clone();
        thread::spawn(move || {
            let mut speaks = true;
            pass_on(&from, &to, |bytes| {
                speaks &= !ends.mute.load(Ordering::SeqCst);
                let lost = if speaks { 0 } else { bytes as u64 };
                ends.lost_bytes.fetch_add(lost, Ordering::SeqCst);
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
