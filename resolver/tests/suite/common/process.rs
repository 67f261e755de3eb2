//! A replica in a process of its own: it can be killed and restarted at the same address, and its
//! memory and processor time can be measured separately.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use longshore_protocol::ResolverTiming;
use longshore_resolver::{ResolverServer, ServerOptions};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Its address: passed to the process, and printed by it.
const ADDRESS: &str = "LONGSHORE_REPLICA_ADDRESS";
/// Set at the first start of a new cluster.
const FRESH: &str = "LONGSHORE_REPLICA_FRESH";
/// Its `writer_ttl`, in milliseconds.
const WRITER_TTL: &str = "LONGSHORE_REPLICA_WRITER_TTL_MS";
/// Clock ticks a second in Linux's processor times: 100 on every machine that it runs on.
const TICKS: u64 = 100;
/// Bytes of a page of memory; with larger pages the result is too small by their factor.
const PAGE_BYTES: u64 = 4_096;

/// The replica's process. Killed when dropped.
pub struct ReplicaProcess {
    child: Child,
    /// Kept open while the process may still print: closed, the next line would end it.
    _output: BufReader<ChildStdout>,
    pub address: SocketAddr,
}

impl ReplicaProcess {
    /// `command` starts a process that calls [`serve`].
    pub fn start(
        mut command: Command,
        address: SocketAddr,
        fresh: bool,
        writer_ttl: Duration,
    ) -> Result<ReplicaProcess, Failure> {
        command.env(ADDRESS, address.to_string());
        command.env(WRITER_TTL, writer_ttl.as_millis().to_string());
        if fresh {
            command.env(FRESH, "1");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("it has no output")?);
        let mut line = String::new();
        // A test runner may print something first.
        let address = loop {
            line.clear();
            if output.read_line(&mut line)? == 0 {
                return Err("the replica ended before it listened".into());
            }
            if let Some((_, address)) = line.trim().split_once(ADDRESS) {
                break address.trim_start_matches('=').parse()?;
            }
        };
        Ok(ReplicaProcess { child, _output: output, address })
    }

    /// Kills it, and waits until it has ended.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its resident memory, in bytes; 0 once it has ended.
    pub fn resident(&self) -> u64 {
        let statm = proc(&self.child.id().to_string(), "statm");
        let pages = statm.split_ascii_whitespace().nth(1).map(str::parse::<u64>);
        pages.and_then(Result::ok).unwrap_or(0) * PAGE_BYTES
    }

    /// Processor time that it has used.
    pub fn used(&self) -> Duration {
        used_by(&self.child.id().to_string())
    }
}

/// Processor time that a process has used, by its number or as `self`.
pub fn used_by(process: &str) -> Duration {
    let stat = proc(process, "stat");
    // The name may contain anything; the fields after its bracket do not. User and kernel time are
    // the 12th and 13th of them.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let numbers = after.split_ascii_whitespace().skip(11).take(2);
    let ticks: u64 = numbers.filter_map(|text| text.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1_000 / TICKS)
}

fn proc(process: &str, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default()
}

impl Drop for ReplicaProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// True in a process that is to be a replica.
pub fn is_replica() -> bool {
    std::env::var_os(ADDRESS).is_some()
}

/// Serves until the parent process has ended, or closes the input.
pub async fn serve() -> Result<(), Failure> {
    let writer_ttl = Duration::from_millis(std::env::var(WRITER_TTL)?.parse()?);
    let timing = ResolverTiming { writer_ttl, ..ResolverTiming::default() };
    let fresh = std::env::var_os(FRESH).is_some();
    let options = ServerOptions { fresh, timing, ..ServerOptions::default() };
    let server = ResolverServer::bind(std::env::var(ADDRESS)?.parse()?, options)?;
    println!("{ADDRESS}={}", server.local_address());
    let parent = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    Ok(server.run(async { drop(parent.await) }).await?)
}
