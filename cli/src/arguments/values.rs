//! Arguments of live values.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Subcommand};
use longshore::protocol::Address;
use longshore::{Glob, Path};

use crate::config::{parse_address, parse_advertised};
use crate::time::parse_duration;

#[derive(Args, Debug)]
pub(crate) struct Value {
    #[command(subcommand)]
    pub(crate) action: ValueAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ValueAction {
    /// Publish a live value while this program runs
    Publish(Publish),
    /// Print live values as they change
    Subscribe(Subscribe),
    /// Write to a live value and print its publisher's answer
    Write(Write),
}

#[derive(Args, Debug)]
pub(crate) struct Publish {
    /// The value's path
    pub(crate) path: Path,
    /// The value: JSON, otherwise text; - for the lines of standard input
    #[arg(required_unless_present = "lines", conflicts_with = "lines", allow_hyphen_values = true)]
    pub(crate) value: Option<String>,
    /// Publish each line of standard input as the next value, until the program is stopped
    #[arg(long)]
    pub(crate) lines: bool,
    /// Accept writes from subscribers: a written value becomes the value
    #[arg(long)]
    pub(crate) writable: bool,
    /// Subscribers prefer the publisher with the lowest number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) priority: u16,
    /// The address to listen on for subscribers
    #[arg(
        long,
        value_name = "IP:PORT",
        default_value = "127.0.0.1:0",
        value_parser = parse_address
    )]
    pub(crate) listen: SocketAddr,
    /// The address that subscribers dial, by host name or IP address; required when it listens on
    /// all addresses
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_advertised)]
    pub(crate) advertise: Vec<Address>,
    /// Listen on an address that other machines can reach, without TLS
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Subscribe {
    /// A path, or a pattern like '/values/**', which includes values published later
    pub(crate) pattern: Glob,
    /// End after N updates
    #[arg(long, value_name = "N", conflicts_with = "once")]
    pub(crate) count: Option<u64>,
    /// Print each current value and end; exit 1 if there is none
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Write {
    /// The value's path
    pub(crate) path: Path,
    /// The new value: JSON, otherwise text
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: String,
    /// How long to wait for the publisher's answer
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(crate) within: Duration,
}
