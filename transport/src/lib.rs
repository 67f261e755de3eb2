//! Longshore's sockets, and the only place that opens one: [`dial`] and [`Listener`] make a
//! [`Link`], which splits into a [`LinkSender`] and a [`LinkReceiver`] of whole frames. A handshake
//! settles version, role, timing and limits once per link; heartbeats both ways turn a hang into an
//! end.
//!
//! What a link decides about time is in [`Liveness`], which reads no clock; everything else here
//! moves bytes.
//!
//! ```
//! use longshore_protocol::{FrameWriter, Handshake, LinkTiming, Messages, Role, SessionId};
//! use longshore_transport::{Identity, LinkOptions, Listener, ListenerOptions, dial};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let identity = Identity { instance: [1; 16], epoch: 1, name: "left".into(), serves: |_| true };
//! let mut listener =
//!     Listener::bind("127.0.0.1:0".parse()?, identity, ListenerOptions::default()).await?;
//!
//! let handshake = Handshake::new(Role::Worker, SessionId([2; 16]), "worker-1", LinkTiming::WORK);
//! let dialled = dial(listener.local_address(), &handshake, &LinkOptions::default()).await?;
//! let (sender, _replies) = dialled.split();
//! let (_sender, mut receiver) = listener.accept().await.split();
//!
//! let mut out = FrameWriter::new();
//! out.message(50, |out| out.string("hello"));
//! sender.send(out.finish())?;
//! for message in Messages::new(receiver.recv().await?) {
//!     let (tag, body) = message?;
//!     assert_eq!((tag, &body[..]), (50, &b"\x05hello"[..]));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Where to look: `frames` cuts the stream into frames, `negotiation` answers a handshake, `places`
//! counts links, `liveness` knows what is due, `refusals` since when the kernel takes nothing,
//! `pace` how slowly a frame may come (all six are pure); `budget` charges received frames; `queue`
//! is what the halves of a link share, `keeper` the task that writes and ends it; `listener`
//! accepts, `door` lets in or refuses, `handshakes` bounds who is between; `socket` is the TCP
//! connection below, with or without TLS.

mod backoff;
mod budget;
mod descriptors;
mod dial;
mod door;
mod end;
mod frames;
mod handshake;
mod handshakes;
mod keeper;
mod link;
mod listener;
mod liveness;
mod log_limit;
mod lookup;
mod memory;
mod negotiation;
mod oldest;
mod options;
mod own_address;
mod pace;
mod places;
mod publisher_dial;
mod queue;
mod receiver;
mod refusals;
mod sender;
mod socket;
mod tls;

pub use backoff::{RETRY_STEP, RETRY_WAIT_BUSY_MAX, RETRY_WAIT_MAX, STEADY, retry_wait};
pub use budget::FrameBudget;
pub use dial::{DialError, dial};
pub use end::LinkEnd;
pub use link::{Link, Peer};
pub use listener::{BindError, Listener, PlacesHandle};
pub use liveness::{Beat, Due, Liveness};
pub use log_limit::LogLimit;
pub use lookup::{LookupError, lookup};
pub use memory::MemoryBounds;
pub use negotiation::Identity;
pub use oldest::{OldestCommand, SlowDisk};
pub use options::{
    CONNECTIONS_MAX, DESCRIPTORS_KEPT, HANDSHAKES_MAX, LINK_BYTES, LinkOptions, ListenerOptions,
    REFUSALS_MAX, SEND_QUEUE_BYTES_MAX,
};
pub use own_address::is_own_address;
pub use places::Kept;
pub use publisher_dial::{LastAddress, dial_publisher};
pub use receiver::LinkReceiver;
pub use sender::{LinkSender, SendError};
pub use tls::{TlsAcceptor, TlsDialer, TlsError};
