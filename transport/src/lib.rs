//! Longshore's sockets. Only this crate opens one: [`dial`] and [`Listener`] make a [`Link`], which
//! splits into a [`LinkSender`] and a [`LinkReceiver`] of whole frames. A handshake settles
//! version, role, timing and limits once per link. Both sides send heartbeats, so that a hang ends
//! the link.
//!
//! [`Liveness`] makes a link's decisions about time and reads no clock; everything else here moves
//! bytes.
//!
//! ```
//! use longshore_protocol::{FrameWriter, Handshake, LinkTiming, Messages, Role, SessionId};
//! use longshore_transport::{ServerInfo, LinkOptions, Listener, ListenerOptions, dial};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let info = ServerInfo { instance: [1; 16], epoch: 1, name: "left".into(), serves: |_| true };
//! let mut listener =
//!     Listener::bind("127.0.0.1:0".parse()?, info, ListenerOptions::default())?;
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
//! Modules: `frames` cuts the stream into frames, `negotiation` answers a handshake, `slots` counts
//! links, `liveness` computes heartbeats and timeouts, `write_stalls` records since when the kernel
//! takes nothing, `pace` bounds how slowly a frame may arrive (all six are pure). `budget` charges
//! received frames; `queue` is the state that the halves of a link share; `link_writer` is the task
//! that writes and ends a link. `listener` accepts connections, `admission` admits or refuses them,
//! `handshakes` bounds those in progress,
//! `authorization` has the rights of clients, `quota` what they use; `audit` writes the audit log;
//! `access` is what a client shows to servers; `socket` is the TCP connection below, with or
//! without TLS, whose files `tls` reads.

mod access;
mod admission;
mod audit;
mod authorization;
mod backoff;
mod budget;
mod descriptors;
mod dial;
mod frames;
mod handshake;
mod handshakes;
mod link;
mod link_end;
mod link_writer;
mod listener;
mod liveness;
mod log_limit;
mod lookup;
mod memory;
mod negotiation;
mod oldest_command;
mod options;
mod own_address;
mod pace;
mod pem_files;
mod publisher_dial;
mod quota;
mod receiver;
mod send_queue;
mod sender;
mod slots;
mod socket;
mod tls;
mod tls_error;
mod token;
mod unix_socket;
mod write_stalls;

pub use access::Access;
pub use audit::{
    AUDIT_RECORDS_QUEUED_MAX, AuditClient, AuditLog, AuditOpenError, AuditedAct, LinkAudit,
    NotAudited,
};
pub use backoff::{RETRY_STEP, RETRY_WAIT_BUSY_MAX, RETRY_WAIT_MAX, STABLE_AFTER, retry_wait};
pub use budget::FrameBudget;
pub use dial::{DialError, dial, dial_unix};
pub use link::{Link, Peer};
pub use link_end::LinkEnd;
pub use listener::{BindError, Listener, SlotsHandle};
pub use liveness::{HeartbeatSchedule, Liveness, LivenessAction};
pub use log_limit::LogLimit;
pub use lookup::{LookupError, lookup};
pub use memory::MemoryBounds;
pub use negotiation::ServerInfo;
pub use oldest_command::{OldestCommand, SlowDisk};
pub use options::{
    CONNECTIONS_MAX, DESCRIPTORS_RESERVED, HANDSHAKES_MAX, LINK_BYTES, LinkOptions,
    ListenerOptions, REFUSALS_MAX, SEND_QUEUE_BYTES_MAX,
};
pub use own_address::is_own_address;
pub use pem_files::TLS_FILE_BYTES_MAX;
pub use publisher_dial::{LastAddress, dial_publisher};
pub use receiver::LinkReceiver;
pub use sender::{LinkSender, SendError};
pub use slots::ReservedSlots;
pub use tls::{TlsAcceptor, TlsDialer};
pub use tls_error::TlsError;
pub use token::{TokenError, TokenSource};
