//! A system of real processes, with TLS, a policy and tokens, under every attack of
//! [`longshore_tests::hostile`], beside honest clients.
//!
//! The short form checks what does not depend on speed: what the servers refuse, and how; that no
//! honest job is lost or doubled; memory, descriptors and log lines. With `LONGSHORE_LONG` each
//! attack lasts ten seconds with ten thousand connections and half a core, and honest clients may
//! be three times as slow as without it; build it with `--cargo-profile dist`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, its helpers too")]

mod honest;
mod server;
mod system;

use std::time::{Duration, Instant};

use honest::{Honest, Times};
use longshore_tests::hostile::{ATTACKS, Attack, Scale};
use server::Server;
use system::SecuredSystem;

use crate::common::{long, wait_until};

/// How much slower honest clients may be under an attack.
const SLOWER_MAX: f64 = 3.0;
/// A p99 that is no cause for concern, however quick the quiet system is: on two cores any other
/// process costs as much.
const FAST: Duration = Duration::from_millis(20);
/// The most of a core that attackers use, with what the measuring itself costs.
const CORE_SHARE_MAX: f64 = 0.55;
/// How long honest clients are measured before each attack.
const QUIET: Duration = Duration::from_secs(3);

#[test]
fn honest_clients_are_served_under_every_attack() {
    let scale = if long() { Scale::LONG } else { Scale::SHORT };
    // Few enough that the short form reaches each limit of connections.
    let files = if long() { 20_000 } else { 512 };
    let system = SecuredSystem::start(files);
    let honest = Honest::start(&system);
    honest.is_served("before all attacks");
    let mut quiet = Times::default();
    let mut measured = Vec::new();
    for attack in ATTACKS {
        if let Some(only) = std::env::var_os("LONGSHORE_ATTACK")
            && only != attack.name
        {
            continue;
        }
        if long() {
            honest.take();
            std::thread::sleep(QUIET);
            quiet.add(honest.take());
        }
        let began = Instant::now();
        let report = under_attack(attack, &system, &honest, scale);
        if long() {
            assert!(report.spent.core_share() < CORE_SHARE_MAX, "{}: {report:?}", attack.name);
            measured.push((attack.name, honest.take()));
        }
        println!("{}: {report:?}, in all {:?}", attack.name, began.elapsed());
    }
    let servers = [&system.replica, &system.publisher];
    let lines = servers.map(|server| server.log_lines_checked(system.secrets()));
    println!("{lines:?} log lines of replica and publisher");
    honest.end();
    if long() {
        check_times(&quiet, &measured);
    }
}

/// Runs an attack, and checks that it has left nothing behind.
fn under_attack(
    attack: &Attack,
    system: &SecuredSystem,
    honest: &Honest,
    scale: Scale,
) -> longshore_tests::hostile::Report {
    let servers = [&system.replica, &system.publisher];
    let before = servers.map(Server::sockets);
    let report = match attack.run(&system.target, scale) {
        Ok(report) => report,
        Err(wrong) => panic!("{}: {wrong}", attack.name),
    };
    assert!(report.attempts > 0, "{} did nothing", attack.name);
    honest.is_served(attack.name);
    for (server, before) in servers.into_iter().zip(before) {
        server.memory_is_bounded(attack.name);
        // The kernel reports the attackers' ends a little later.
        wait_until(&format!("{} has closed the sockets of {}", server.name, attack.name), || {
            server.sockets() <= before
        });
    }
    report
}

/// Prints a table, and compares the p99 of each attack with the quiet one.
fn check_times(quiet: &Times, measured: &[(&str, Times)]) {
    let mut slow = Vec::new();
    println!("{:28} {quiet}", "quiet");
    for (attack, times) in measured {
        println!("{attack:28} {times}");
        for (what, ours, theirs) in times.beside(quiet) {
            if ours > FAST && ours.as_secs_f64() > SLOWER_MAX * theirs.as_secs_f64() {
                slow.push(format!("{attack}: {what} takes {ours:?} instead of {theirs:?}"));
            }
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}
