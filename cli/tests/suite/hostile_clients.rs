//! Clients that try to exhaust a service's memory: half frames on many links, and requests whose
//! answers are never read. The resident memory stays below the bounds printed at the start, and
//! another client is still served.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, its helpers too")]

use crate::common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use common::{CommandOutput, Service, longshore, run, wait_until};
use longshore::protocol::handshake::MAGIC;
use longshore::protocol::messages::resolver::{ListMatching, PathText, Resolve, ToReplica};
use longshore::protocol::messages::work::{Attach, Request, ToPublisher, Tokens};
use longshore::protocol::{Encode, FrameWriter, Handshake, Role, SessionId};
use longshore::{Glob, LinkTiming};

const MIB: usize = 1024 * 1024;
/// An unused tag, whose body only fills frames.
const FILLER: u8 = 250;
/// The longest attack, and the longest wait for a handshake.
const ATTACK_MAX: Duration = Duration::from_secs(8);
/// If no link accepts a byte for this long, the service has stopped reading them.
const BLOCKED_AFTER: Duration = Duration::from_millis(700);
/// Memory for code, tables and allocator: far less than the attack.
const PROCESS_OVERHEAD: usize = 32 * MIB;

fn start(folder: &FilePath, config: &str, arguments: &[&str]) -> Service {
    let (file, data) = (folder.join("config.toml"), folder.join(arguments[0]));
    std::fs::write(&file, config).unwrap();
    let mut command = longshore(arguments);
    command.arg("--json").arg("--config").arg(&file).arg("--data").arg(data);
    Service::start(command)
}

fn bound(service: &Service, key: &str) -> usize {
    usize::try_from(service.ready["memory"][key].as_u64().unwrap()).unwrap()
}

fn address(service: &Service) -> SocketAddr {
    service.ready["address"].as_str().unwrap().parse().unwrap()
}

/// Resident memory, in bytes.
fn resident(service: &Service) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

fn framed(write: impl FnOnce(&mut FrameWriter)) -> Vec<u8> {
    let mut out = FrameWriter::new();
    write(&mut out);
    out.finish().parts().concat()
}

/// A frame of `bytes` in total: the content of `write`, then a filler.
fn filled(bytes: usize, write: impl FnOnce(&mut FrameWriter)) -> Vec<u8> {
    framed(|out| {
        write(out);
        let left = bytes - 4 - out.body_len() - 5;
        out.message(FILLER, |out| out.put(&vec![7; left]));
    })
}

/// A link that never reads after its handshake, and writes `bytes` `times` times.
struct Hostile {
    stream: TcpStream,
    bytes: Vec<u8>,
    written: usize,
    times: usize,
}

impl Hostile {
    fn dial(at: SocketAddr, role: Role, first: &[u8]) -> Hostile {
        let mut stream = TcpStream::connect_timeout(&at, ATTACK_MAX).unwrap();
        stream.set_read_timeout(Some(ATTACK_MAX)).unwrap();
        stream.set_write_timeout(Some(ATTACK_MAX)).unwrap();
        let handshake =
            Handshake::new(role, SessionId(rand::random()), "hostile", LinkTiming::VALUES);
        stream.write_all(&MAGIC).unwrap();
        stream.write_all(&framed(|out| handshake.encode(out))).unwrap();
        let mut head = [0; 8];
        stream.read_exact(&mut head).unwrap();
        let mut answer = vec![0; u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[0], 0, "welcome");
        stream.write_all(first).unwrap();
        stream.set_nonblocking(true).unwrap();
        Hostile { stream, bytes: Vec::new(), written: 0, times: 0 }
    }

    fn sending(mut self, bytes: &[u8], times: usize) -> Hostile {
        (self.bytes, self.times) = (bytes.to_vec(), times);
        self
    }

    /// Writes what the kernel accepts, and returns the number of bytes; 0 on a closed link.
    fn write(&mut self) -> usize {
        let mut accepted = 0;
        while self.written < self.bytes.len() * self.times && accepted < MIB {
            let at = self.written % self.bytes.len();
            match self.stream.write(&self.bytes[at..]) {
                Ok(n) => (self.written, accepted) = (self.written + n, accepted + n),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        accepted
    }
}

/// Writes on all links until the service stops reading; returns its peak memory.
fn attack(service: &Service, links: &mut [Hostile]) -> usize {
    let (began, mut last, mut most) = (Instant::now(), Instant::now(), 0);
    while began.elapsed() < ATTACK_MAX && last.elapsed() < BLOCKED_AFTER {
        let accepted: usize = links.iter_mut().map(Hostile::write).sum();
        most = most.max(resident(service));
        if accepted > 0 {
            last = Instant::now();
        } else {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    most
}

#[track_caller]
fn below(most: usize, bound: usize) {
    let (most_mib, bound_mib) = (most / MIB, bound / MIB);
    println!("resident memory of {most_mib} MiB at most; the bound is {bound_mib} MiB");
    assert!(
        most < bound + PROCESS_OVERHEAD,
        "{most_mib} MiB are resident; the bound is {bound_mib} MiB"
    );
}

/// Checks that another client's command succeeds in time.
#[track_caller]
fn is_served(resolver: &Service, words: &[&str]) -> CommandOutput {
    let began = Instant::now();
    let mut command = longshore(words);
    command.args(["--resolver", &address(resolver).to_string()]);
    let ended = run(command, b"").code(0);
    assert!(began.elapsed() < Duration::from_secs(10), "after {:?}", began.elapsed());
    ended
}

/// The smallest budget and few links, so that the bounds are small.
const REPLICA: &str =
    "[resolver]\nconnections_max = 400\nreceived_bytes_max = 33554432\nmetrics = false\n";

fn replica(folder: &FilePath) -> Service {
    start(folder, REPLICA, &["resolver", "run", "--fresh", "--listen", "127.0.0.1:0"])
}

fn status(replica: &Service) -> serde_json::Value {
    is_served(replica, &["resolver", "status", "--json"]).json()["replicas"][0].clone()
}

#[test]
fn half_frames_stay_within_a_replicas_memory_bound() {
    let folder = tempfile::tempdir().unwrap();
    let replica = replica(folder.path());
    let frame = filled(4 * MIB, |_| {});
    let mut links: Vec<Hostile> = (0..200)
        .map(|_| Hostile::dial(address(&replica), Role::ResolverReader, b""))
        .map(|link| link.sending(&frame[..7 * frame.len() / 8], 1))
        .collect();
    let most = attack(&replica, &mut links);
    is_served(&replica, &["resolver", "status"]);
    below(most.max(resident(&replica)), bound(&replica, "received_bytes"));
}

#[test]
fn unread_answers_stay_within_a_replicas_memory_bound() {
    const LINKS: usize = 60;
    let folder = tempfile::tempdir().unwrap();
    let replica = replica(folder.path());
    let at = address(&replica).to_string();
    // Paths that make answers of several MiB.
    let mut values = Service::start({
        let data = folder.path().join("values");
        let mut command = longshore(&["publisher", "run", "--json", "--listen", "127.0.0.1:0"]);
        let name = "x".repeat(200);
        for n in 0..500 {
            command.args(["--path", &format!("/{name}/{name}/{name}/{n}")]);
        }
        command.args(["--resolver", &at]).arg("--data").arg(data);
        command
    });
    wait_until("the replica knows the paths", || status(&replica)["paths"] == 500);
    let listing = framed(|out| {
        let globs = vec![Glob::new("/**").unwrap()];
        for id in 0..100 {
            ToReplica::ListMatching(ListMatching { id, globs: globs.clone() }).encode(out);
        }
    });
    let requests = filled(4 * MIB, |out| {
        let paths = [PathText::new(b"/jobs")].into_iter().collect();
        ToReplica::Resolve(Resolve { id: 7, paths }).encode(out);
    });
    let mut links: Vec<Hostile> = (0..LINKS)
        .map(|_| Hostile::dial(address(&replica), Role::ResolverReader, &listing))
        .map(|link| link.sending(&requests, 12))
        .collect();
    let most = attack(&replica, &mut links);
    is_served(&replica, &["resolver", "status"]);
    let bound = bound(&replica, "received_bytes") + LINKS * bound(&replica, "unread_link_bytes");
    below(most.max(resident(&replica)), bound);
    assert!(values.is_running());
}

/// The smallest budget, with 1 MiB of cache.
const PUBLISHER: &str = "[publisher]\nconnections_max = 200\ncache_bytes = 1048576\n";

/// A replica and a registered publisher.
fn publisher(folder: &FilePath) -> (Service, Service) {
    let replica = replica(folder);
    let at = address(&replica).to_string();
    let words =
        ["publisher", "run", "--listen", "127.0.0.1:0", "--default", "/jobs", "--resolver", &at];
    let publisher = start(folder, PUBLISHER, &words);
    wait_until("the publisher is registered", || {
        let words = ["enqueue", "/jobs/a", "a payload", "--resolver", &at];
        run(longshore(&words), b"").code == 0
    });
    (replica, publisher)
}

fn attach() -> Vec<u8> {
    framed(|out| ToPublisher::Attach(Attach { resume: Tokens::default() }).encode(out))
}

#[test]
fn half_frames_stay_within_a_publishers_memory_bound() {
    let folder = tempfile::tempdir().unwrap();
    let (replica, publisher) = publisher(folder.path());
    let frame = filled(20 * MIB, |_| {});
    let mut links: Vec<Hostile> = (0..60)
        .map(|_| Hostile::dial(address(&publisher), Role::Producer, &attach()))
        .map(|link| link.sending(&frame[..7 * frame.len() / 8], 1))
        .collect();
    let most = attack(&publisher, &mut links);
    is_served(&replica, &["enqueue", "/jobs/a", "a payload"]);
    below(most.max(resident(&publisher)), bound(&publisher, "received_bytes"));
}

#[test]
fn unread_answers_stay_within_a_publishers_memory_bound() {
    const LINKS: usize = 60;
    let folder = tempfile::tempdir().unwrap();
    let (replica, publisher) = publisher(folder.path());
    let requests = filled(4 * MIB, |out| {
        for id in 0..1_000 {
            ToPublisher::Request { id, request: Request::Status }.encode(out);
        }
    });
    let mut links: Vec<Hostile> = (0..LINKS)
        .map(|_| Hostile::dial(address(&publisher), Role::Tool, &attach()))
        .map(|link| link.sending(&requests, 12))
        .collect();
    let most = attack(&publisher, &mut links);
    is_served(&replica, &["enqueue", "/jobs/a", "a payload"]);
    below(most.max(resident(&publisher)), bound(&publisher, "received_bytes"));
}
