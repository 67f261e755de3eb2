//! The cost of idle workers at a publisher: memory per link, and processor time for all of them.
//! The publisher and the clients are child processes; each link is a worker's, attached, subscribed
//! and with credit, and nothing is ever enqueued.
//!
//!     cargo run --release -p longshore-publisher --example idle_links -- [LINKS] [SECONDS] [tls]
//!
//! With `tls` both sides have certificates.
//! Prints one line of JSON. Exits with 1 if a link takes over 20 KiB, or all of them 6 % of a
//! processor.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use longshore_protocol::messages::work::{
    Attach, Credit, FromPublisher, Sources, Subscribe, ToPublisher,
};
use longshore_protocol::{FrameWriter, Glob, Handshake, LinkTiming, Messages, Role, SessionId};
use longshore_publisher::{Publisher, PublisherOptions};
use longshore_transport::{
    Access, LinkOptions, LinkReceiver, LinkSender, TlsAcceptor, TlsDialer, dial,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The variable that names a child process's role.
pub(crate) const PART: &str = "LONGSHORE_IDLE_LINKS_PART";
/// The variable that names the folder of certificates.
const TLS: &str = "LONGSHORE_IDLE_LINKS_TLS";
/// The prefix of a child process's output lines.
const PREFIX: &str = "idle links: ";
/// Links per process: far below its limit of open files.
const LINKS_PER_PROCESS: usize = 2_500;
/// Links that a process dials at a time.
const DIALS_AT_A_TIME: usize = 64;
/// Each worker's credit.
const CREDIT: u32 = 128;
/// The targets: bytes per link, and the share of one processor for all links.
pub(crate) const LINK_BYTES_MAX: u64 = 20 * 1024;
const PROCESSOR_MAX: f64 = 0.06;

fn main() -> Result<(), Failure> {
    if let Ok(part) = std::env::var(PART) {
        return run_role(&part);
    }
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = match arguments.pop_if(|last| last == "tls") {
        Some(_) => Some(certificates()?),
        None => None,
    };
    let numbers = arguments.iter().map(|text| text.parse()).collect::<Result<Vec<u64>, _>>()?;
    let number = |at: usize, otherwise| numbers.get(at).copied().unwrap_or(otherwise);
    let tls = folder.as_ref().map(tempfile::TempDir::path);
    let cost = measure(number(0, 10_000), Duration::from_secs(number(1, 20)), &[], tls)?;
    println!("{}", cost.json());
    if cost.lost > 0 || cost.each() > LINK_BYTES_MAX || cost.processor > PROCESSOR_MAX {
        return Err("more than is promised".into());
    }
    Ok(())
}

/// A folder with an authority, and one certificate for both sides.
fn certificates() -> Result<tempfile::TempDir, Failure> {
    let folder = tempfile::tempdir()?;
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let chain = CertificateParams::new([String::from("127.0.0.1")])?.signed_by(&key, &authority)?;
    for (name, text) in
        [("ca.pem", authority.pem()), ("chain.pem", chain.pem()), ("key.pem", key.serialize_pem())]
    {
        std::fs::write(folder.path().join(name), text)?;
    }
    Ok(folder)
}

/// The files of certificates, if there are some: authority, chain, key.
fn certificate_files() -> Option<[PathBuf; 3]> {
    let folder = PathBuf::from(std::env::var_os(TLS)?);
    Some(["ca.pem", "chain.pem", "key.pem"].map(|name| folder.join(name)))
}

/// Runs a child process that [`measure`] started.
pub(crate) fn run_role(part: &str) -> Result<(), Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build()?;
    match part.split(' ').collect::<Vec<_>>()[..] {
        ["serve"] => runtime.block_on(serve()),
        ["hold", address, first, count] => {
            runtime.block_on(open_links(address.parse()?, first.parse()?, count.parse()?))
        }
        _ => Err(format!("no part: {part}").into()),
    }
}

/// Sends a line to the parent process, which ignores other output.
fn print_line(what: impl std::fmt::Display) {
    println!("\n{PREFIX}{what}");
}

/// Runs the publisher until the input ends.
async fn serve() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let mut options = PublisherOptions::new(folder.path());
    if let Some([authority, chain, key]) = certificate_files() {
        options.tls = Some(TlsAcceptor::from_pem(&chain, &key, Some(&authority))?);
    }
    let publisher = Publisher::open(options).await?;
    print_line(publisher.local_address());
    publisher.run(parent_exited()).await?;
    Ok(())
}

/// Opens idle workers' links until the input ends.
async fn open_links(address: SocketAddr, first: u64, count: u64) -> Result<(), Failure> {
    let mut numbers = first..first + count;
    let (mut dialling, mut links) = (JoinSet::new(), JoinSet::new());
    let mut access = Access::default();
    if let Some([authority, chain, key]) = certificate_files() {
        access.tls = Some(TlsDialer::from_pem(&authority, None, Some((&chain, &key)))?);
    }
    loop {
        while dialling.len() < DIALS_AT_A_TIME
            && let Some(number) = numbers.next()
        {
            dialling.spawn(subscribed(address, number, access.clone()));
        }
        let Some(link) = dialling.join_next().await else { break };
        let (sender, mut receiver) = link??;
        // Only heartbeats arrive.
        links.spawn(async move {
            let _sender = sender;
            while receiver.recv().await.is_ok() {}
        });
    }
    print_line("held");
    parent_exited().await;
    print_line(ended(&mut links));
    Ok(())
}

/// How many links have ended by themselves.
fn ended(links: &mut JoinSet<()>) -> usize {
    std::iter::from_fn(|| links.try_join_next()).count()
}

/// One worker's link, with a subscription that has credit.
async fn subscribed(
    address: SocketAddr,
    number: u64,
    access: Access,
) -> Result<(LinkSender, LinkReceiver), Failure> {
    let mut session = [0; 16];
    session[..8].copy_from_slice(&number.to_be_bytes());
    let name = format!("worker-{number}");
    let handshake = Handshake::new(Role::Worker, SessionId(session), name, LinkTiming::WORK);
    let patient = Duration::from_secs(60);
    let options = LinkOptions {
        connect_timeout: patient,
        handshake_timeout: patient,
        ..LinkOptions::default()
    };
    let options = options.or_access(&access);
    let (sender, mut receiver) = dial(address, &handshake, &options).await?.split();
    let sources = Sources::one(Glob::new("/jobs/**")?);
    let mut out = FrameWriter::new();
    ToPublisher::Attach(Attach::default()).encode(&mut out);
    ToPublisher::Subscribe(Subscribe { subscription: 1, sources, handlers: 1_000 })
        .encode(&mut out);
    ToPublisher::Credit(Credit { subscription: 1, count: CREDIT }).encode(&mut out);
    sender.send(out.finish())?;
    loop {
        for message in Messages::new(receiver.recv().await?) {
            let (tag, body) = message?;
            if let Some(FromPublisher::Attached(_)) = FromPublisher::decode(tag, body)? {
                return Ok((sender, receiver));
            }
        }
    }
}

async fn parent_exited() {
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    drop(read.await);
}

/// The cost of idle links.
pub(crate) struct Cost {
    links: u64,
    /// Links that have ended by themselves.
    pub(crate) lost: u64,
    /// Resident bytes, without links and with them.
    before: u64,
    after: u64,
    /// The share of one processor.
    processor: f64,
}

impl Cost {
    /// Bytes per link.
    pub(crate) fn each(&self) -> u64 {
        self.after.saturating_sub(self.before) / self.links.max(1)
    }

    pub(crate) fn json(&self) -> String {
        let Cost { links, lost, before, after, processor } = self;
        format!(
            "{{\"links\":{links},\"lost\":{lost},\"resident_before\":{before},\
             \"resident_after\":{after},\
             \"bytes_a_link\":{},\"processor_percent\":{:.2}}}",
            self.each(),
            100.0 * processor
        )
    }
}

/// Opens `links` idle links for `time`, over TLS with the certificates of a folder. `arguments`
/// make this program call [`run_role`].
pub(crate) fn measure(
    links: u64,
    time: Duration,
    arguments: &[&str],
    tls: Option<&Path>,
) -> Result<Cost, Failure> {
    let start = |part: &str| Process::start(arguments, part, tls);
    let mut publisher = start("serve")?;
    let address = publisher.line()?;
    let before = publisher.resident()?;
    let mut clients = Vec::new();
    for first in (0..links).step_by(LINKS_PER_PROCESS) {
        let count = (links - first).min(LINKS_PER_PROCESS as u64);
        clients.push(start(&format!("hold {address} {first} {count}"))?);
    }
    for client in &mut clients {
        if client.line()? != "held" {
            return Err("a process could not hold its links".into());
        }
    }
    // Wait until every link has sent its first heartbeats.
    std::thread::sleep(2 * LinkTiming::WORK.heartbeat);
    let (began, used) = (Instant::now(), publisher.processor()?);
    std::thread::sleep(time);
    let processor = (publisher.processor()? - used).as_secs_f64() / began.elapsed().as_secs_f64();
    let after = publisher.resident()?;
    let mut lost = 0;
    for client in &mut clients {
        lost += client.end()?.parse::<u64>()?;
    }
    Ok(Cost { links, lost, before, after, processor })
}

/// This program as a child process, in another role.
struct Process {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(arguments: &[&str], part: &str, tls: Option<&Path>) -> Result<Process, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(folder) = tls {
            command.env(TLS, folder);
        }
        let command =
            command.args(arguments).env(PART, part).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().ok_or("no output")?);
        Ok(Process { process, input, output })
    }

    /// Its next line.
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            if let Some(text) = line.strip_prefix(PREFIX) {
                return Ok(text.trim().to_owned());
            }
            line.clear();
        }
        Err("a process ended too soon".into())
    }

    /// Closes its input, and waits; returns its last line.
    fn end(&mut self) -> Result<String, Failure> {
        drop(self.input.take());
        let last = self.line()?;
        self.process.wait()?;
        Ok(last)
    }

    /// Resident bytes.
    fn resident(&self) -> Result<u64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).ok_or("no VmRSS")?;
        Ok(kib.trim().parse::<u64>()? * 1024)
    }

    /// The processor time of all its threads so far, in steps of 10 ms.
    fn processor(&self) -> Result<Duration, Failure> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        // The process name may contain anything, and ends with the last bracket.
        let fields = stat.rsplit_once(')').ok_or("no name")?.1;
        let ticks = |at: usize| fields.split_whitespace().nth(at).unwrap_or("0").parse::<u64>();
        Ok(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
