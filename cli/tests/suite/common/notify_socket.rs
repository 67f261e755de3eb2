//! A service manager's end of sd_notify: a Unix datagram socket.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Receives what one service reports.
pub(crate) struct NotifySocket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl NotifySocket {
    pub(crate) fn bind(folder: &Path) -> NotifySocket {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        NotifySocket { socket, path }
    }

    /// Makes the command report here, with a watchdog of this period.
    pub(crate) fn manage(&self, command: &mut Command, watchdog: Duration) {
        command.env("NOTIFY_SOCKET", &self.path);
        command.env("WATCHDOG_USEC", watchdog.as_micros().to_string());
    }

    /// Fills the socket, as if the service manager hung.
    pub(crate) fn fill(&self) {
        // What one socket sends without being received is bounded, too.
        let is_full = || {
            let sender = UnixDatagram::unbound().unwrap();
            sender.set_nonblocking(true).unwrap();
            let mut sent = 0;
            while sender.send_to(b"FILLED=1", &self.path).is_ok() {
                sent += 1;
            }
            sent == 0
        };
        while !is_full() {}
    }

    /// The lines of the next report; none if there is none within this time.
    pub(crate) fn next_within(&self, within: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(within)).unwrap();
        let mut report = [0; 4096];
        let length = self.socket.recv(&mut report).ok()?;
        Some(String::from_utf8(report[..length].to_vec()).unwrap())
    }

    /// Drops what was reported until now.
    pub(crate) fn skip(&self) {
        while self.next_within(Duration::from_millis(1)).is_some() {}
    }

    /// All lines up to this one and the rest of its report, for at most 30 s.
    #[track_caller]
    pub(crate) fn lines_until(&self, last: &str) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        loop {
            let report = self.next_within(Duration::from_secs(30));
            let report = report.unwrap_or_else(|| panic!("no '{last}' after {lines:#?}"));
            lines.extend(report.lines().map(str::to_owned));
            if report.lines().any(|line| line.starts_with(last)) {
                return lines;
            }
        }
    }
}
