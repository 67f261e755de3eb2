//! A server process under attack, as the operating system sees it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::Service;

const MIB: usize = 1024 * 1024;
/// Memory for code, tables, jobs and the allocator.
const PROCESS_OVERHEAD: usize = 48 * MIB;
/// Links of an attack that do not read.
const UNREAD_LINKS: usize = 8;
/// A server writes at most so many lines in each [`LOG_PERIOD`]: 50 records of the audit log of
/// each of two kinds for four identities and for clients without one, 50 about hidden publishers,
/// and 10 of each other kind.
const LOG_LINES_MAX: usize = 2 * 5 * 50 + 50 + 8 * 10;
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// A replica or publisher.
pub(super) struct Server {
    pub(super) name: &'static str,
    pub(super) service: Service,
    log: PathBuf,
    audit: PathBuf,
    began: Instant,
}

impl Server {
    /// Starts a service that may open `files` files, in its folder.
    pub(super) fn start(name: &'static str, command: &Command, files: u64) -> Server {
        let folder = command.get_current_dir().unwrap().to_owned();
        let log = folder.join(format!("{name}.log"));
        // The program raises its soft limit as far as it may.
        let mut limited = Command::new("prlimit");
        limited.arg(format!("--nofile={files}:{files}")).arg(command.get_program());
        limited.args(command.get_args()).current_dir(&folder);
        for (variable, value) in command.get_envs() {
            match value {
                Some(value) => limited.env(variable, value),
                None => limited.env_remove(variable),
            };
        }
        let service = Service::start_logging(limited, File::create(&log).unwrap());
        let audit = folder.join(format!("{name}.audit"));
        Server { name, service, log, audit, began: Instant::now() }
    }

    /// Its open sockets.
    pub(super) fn sockets(&self) -> usize {
        let files = fs::read_dir(format!("/proc/{}/fd", self.service.id())).unwrap();
        // A file may be closed meanwhile.
        let links = files.flatten().flat_map(|file| fs::read_link(file.path()));
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    }

    /// Fails unless the most memory that was ever resident is within what it printed at its start.
    pub(super) fn memory_is_bounded(&self, attack: &str) {
        let bound = |key: &str| self.service.ready["memory"][key].as_u64().unwrap() as usize;
        let unread = if self.name == "replica" { bound("unread_link_bytes") } else { 0 };
        let most = bound("received_bytes") + UNREAD_LINKS * unread + PROCESS_OVERHEAD;
        let status = fs::read_to_string(format!("/proc/{}/status", self.service.id()));
        let status = status.unwrap_or_else(|_| panic!("{attack}: the {} has ended", self.name));
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak: usize = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        let (peak, most) = (peak * 1024 / MIB, most / MIB);
        println!("{attack}: the {} took {peak} MiB of {most} MiB at most", self.name);
        assert!(peak < most, "{attack}: the {} took {peak} MiB; the bound is {most}", self.name);
    }

    /// The lines of log and audit log. Fails if they are more than their limits allow, or show a
    /// secret.
    pub(super) fn log_lines_checked(&self, secrets: [&str; 3]) -> [usize; 2] {
        let periods = self.began.elapsed().as_secs_f64() / LOG_PERIOD.as_secs_f64();
        // Each limit begins its first period at its own time.
        let most = (periods.ceil() as usize + 1) * LOG_LINES_MAX;
        [&self.log, &self.audit].map(|file| {
            let text = fs::read_to_string(file).unwrap();
            let shows = |line: &&str| secrets.iter().any(|secret| line.contains(secret));
            assert_eq!(text.lines().find(shows), None, "{} has a secret", file.display());
            let lines = text.lines().count();
            let file = file.display();
            assert!(lines <= most, "{lines} lines in {file}; at most {most}:\n{}", kinds(&text));
            lines
        })
    }
}

/// The most frequent lines, without their numbers.
fn kinds(text: &str) -> String {
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for line in text.lines() {
        let kind = line.chars().filter(|letter| !letter.is_ascii_digit()).skip(20).take(120);
        *counts.entry(kind.collect()).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.into_iter().take(8).map(|(kind, count)| format!("{count} × {kind}\n")).collect()
}
