//! Longshore's sockets, and the only place that opens one: [`dial`] and [`Listener`] make a [`Link`], which splits into a
//! [`LinkSender`] and a [`LinkReceiver`] of whole frames. A hello settles version, role, timing and limits once per link;
//! heartbeats both ways turn a hang into an end.
//!
//! What a link decides about time is in [`Liveness`], which reads no clock; everything else here moves bytes.

mod dial;
mod end;
mod frames;
mod greeting;
mod keeper;
mod link;
mod listener;
mod liveness;
mod log_limit;
mod negotiation;
mod options;
mod queue;
mod receiver;
mod sender;
mod socket;
mod tls;

pub use dial::{DialError, dial};
pub use end::LinkEnd;
pub use link::{Link, Peer};
pub use listener::{BindError, Listener};
pub use liveness::{Due, Liveness};
pub use negotiation::Identity;
pub use options::{
    CONNECTIONS_MAX, HELLOS_MAX, LinkOptions, ListenerOptions, SEND_QUEUE_BYTES_MAX,
};
pub use receiver::LinkReceiver;
pub use sender::{LinkSender, SendError};
pub use tls::{TlsAcceptor, TlsDialer, TlsError};
