//! What those whom a replica serves feel of thousands that connect in vain. Replicas, readers and the flood are processes of their
//! own. Quiet times alternate with floods of this replica, and of another one beside it that nobody asks: the machine has as much to
//! do then, so what is worse than that is the replica's doing.
//!
//!     cargo run --release -p longshore-resolver --example admission_speed -- [FLOOD] [ROUNDS]
//!
//! The flood takes a processor for itself, so on a machine of two those who are served have half of it left. With `FLOOD_ON=1` it keeps to
//! processor 1; run under `taskset -c 0`, all others keep to processor 0, and what they feel is what the flood costs the replica.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use longshore_protocol::frame::{FrameWriter, Messages};
use longshore_protocol::messages::resolver::{FromReplica, Resolve, ToReplica};
use longshore_protocol::{Hello, HelloRefusal, LinkTiming, Path, Role, SessionId};
use longshore_resolver::{ResolverServer, ServerOptions};
use longshore_transport::{DialError, LinkOptions, LinkReceiver, LinkSender, dial};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Served = (LinkSender, LinkReceiver);

/// Readers that a replica of 768 connections takes; the others are kept for writers and tools.
const READERS: usize = 664;
/// Those of them that ask, and how often each does.
const ASKING: usize = 16;
const PACE: Duration = Duration::from_millis(5);
/// How long a quiet time lasts.
const QUIET: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => serve().await,
        Some("flood") => flood(arguments[1].parse()?, arguments[2].parse()?).await,
        _ => {
            let number = |at: usize, otherwise| match arguments.get(at) {
                Some(text) => text.parse(),
                None => Ok(otherwise),
            };
            measure(number(0, 10_000)?, number(1, 5)?).await
        }
    }
}

/// The replica, until its input ends.
async fn serve() -> Result<(), Failure> {
    let options = ServerOptions { fresh: true, ..ServerOptions::default() };
    let server = ResolverServer::bind("127.0.0.1:0".parse()?, options).await?;
    println!("{}", server.local_address());
    let parent = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    Ok(server.run(async { drop(parent.await) }).await?)
}

/// So many dial at once; says how long it took until the middle one and the last were told `Busy`.
async fn flood(address: SocketAddr, count: usize) -> Result<(), Failure> {
    let mut dialling = JoinSet::new();
    for _ in 0..count {
        dialling.spawn(async move {
            let since = Instant::now();
            let told = match dial(address, &hello(), &patient()).await {
                Err(DialError::Refused { code: HelloRefusal::Busy, .. }) => Ok(()),
                Err(error) => Err(error.to_string()),
                Ok(_) => Err("let in".to_owned()),
            };
            told.map(|()| since.elapsed())
        });
    }
    let mut took = dialling.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    took.sort_unstable();
    println!("told Busy: half within {:?}, all within {:?}", part(&took, 0.5), part(&took, 1.0));
    Ok(())
}

async fn measure(count: usize, rounds: usize) -> Result<(), Failure> {
    let (mut replica, address, mut asking) = full().await?;
    let (mut other, other_address, _idle) = full().await?;
    let mut asking = asking.split_off(READERS - ASKING);
    for round in 1..=rounds {
        let quiet = asked_until(&mut asking, tokio::time::sleep(QUIET)).await?;
        println!("round {round}: quiet {}", summary(&quiet));
        for (what, address) in [("beside", other_address), ("flooded", address)] {
            let flood = flood_at(address, count)?;
            let flooding = tokio::task::spawn_blocking(move || flood.wait_with_output());
            let (told, told_of) = tokio::sync::oneshot::channel();
            let ended = async { drop(told.send(flooding.await)) };
            let took = asked_until(&mut asking, ended).await?;
            let said = String::from_utf8(told_of.await???.stdout)?;
            println!("         {what} {}; {count} {}", summary(&took), said.trim());
        }
    }
    for replica in [&mut replica, &mut other] {
        drop(replica.stdin.take());
        replica.wait()?;
    }
    Ok(())
}

/// A replica with as many readers as it takes.
async fn full() -> Result<(Child, SocketAddr, Vec<Served>), Failure> {
    let mut replica = child(&["serve"])?;
    let output = replica.stdout.take().ok_or("no output")?;
    let mut address = String::new();
    BufReader::new(output).read_line(&mut address)?;
    let address: SocketAddr = address.trim().parse()?;
    let mut links = Vec::new();
    for _ in 0..READERS {
        links.push(dial(address, &hello(), &patient()).await?.split());
    }
    Ok((replica, address, links))
}

fn flood_at(address: SocketAddr, count: usize) -> Result<Child, Failure> {
    let mut command = match std::env::var("FLOOD_ON") {
        Ok(processor) => {
            let mut pinned = Command::new("taskset");
            pinned.args(["-c", &processor]).arg(std::env::current_exe()?);
            pinned
        }
        Err(_) => Command::new(std::env::current_exe()?),
    };
    command.args(["flood", &address.to_string(), &count.to_string()]);
    Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
}

fn child(arguments: &[&str]) -> Result<Child, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
}

/// All ask at their pace; how long each answer took, sorted.
async fn asked_until(
    links: &mut Vec<Served>,
    end: impl Future<Output = ()>,
) -> Result<Vec<Duration>, Failure> {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut asking = JoinSet::new();
    for mut link in links.drain(..) {
        let stopped = stopped.clone();
        asking.spawn(async move {
            let mut took = Vec::new();
            let mut pace = interval(PACE);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !*stopped.borrow() {
                pace.tick().await;
                let since = Instant::now();
                ask(&mut link).await?;
                took.push(since.elapsed());
            }
            Ok::<_, Failure>((link, took))
        });
    }
    end.await;
    stop.send(true)?;
    let mut all = Vec::new();
    for asked in asking.join_all().await {
        let (link, took) = asked?;
        links.push(link);
        all.extend(took);
    }
    all.sort_unstable();
    Ok(all)
}

async fn ask(link: &mut Served) -> Result<(), Failure> {
    let path = Path::new("/jobs")?;
    let mut out = FrameWriter::new();
    ToReplica::Resolve(Resolve { id: 1, paths: [&path].into_iter().collect() }).encode(&mut out);
    link.0.send(out.finish())?;
    loop {
        for message in Messages::new(link.1.recv().await?) {
            let (tag, body) = message?;
            if FromReplica::decode(tag, body)?.is_some() {
                return Ok(());
            }
        }
    }
}

fn hello() -> Hello {
    let hang = Duration::from_secs(60);
    let timing = LinkTiming { heartbeat: hang / 4, hang };
    Hello::new(Role::ResolverReader, SessionId([7; 16]), "measuring", timing)
}

fn patient() -> LinkOptions {
    let minute = Duration::from_secs(60);
    LinkOptions { connect_timeout: minute, hello_timeout: minute, ..LinkOptions::default() }
}

fn summary(took: &[Duration]) -> String {
    let (half, most, all) = (part(took, 0.5), part(took, 0.99), part(took, 1.0));
    format!("p50 {half:?} p99 {most:?} max {all:?} ({} answers)", took.len())
}

fn part(sorted: &[Duration], part: f64) -> Duration {
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or_default()
}
