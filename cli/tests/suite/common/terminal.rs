//! Runs a command on a pseudo-terminal.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The longest run of a command, after which it is killed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The user's end of a pseudo-terminal, with the command on it. Killed on drop.
pub(crate) struct Terminal {
    /// Dropping it ends the thread that enforces the timeout.
    _watchdog: mpsc::Sender<()>,
    process: Child,
    user: File,
    shown: String,
}

impl Terminal {
    /// Starts a command whose three streams are a terminal of this many columns.
    pub(crate) fn start(mut command: Command, columns: u16) -> Terminal {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap().into_string().unwrap();
        let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(user.as_fd(), size).unwrap();
        let side = || Stdio::from(OpenOptions::new().read(true).write(true).open(&name).unwrap());
        let process = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        // The command's copies of the terminal close with it, so that reading ends.
        drop(command);
        let (watchdog, dropped) = mpsc::channel();
        let id = Pid::from_child(&process);
        std::thread::spawn(move || {
            if dropped.recv_timeout(TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = kill_process(id, Signal::KILL);
            }
        });
        let user = File::from(user);
        Terminal { _watchdog: watchdog, process, user, shown: String::new() }
    }

    /// Reads until the terminal shows these words.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, words: &str) {
        while !self.shown.contains(words) {
            assert!(self.read(), "it ended without '{words}': {}", self.shown);
        }
    }

    /// Types a line.
    pub(crate) fn type_line(&mut self, line: &str) {
        self.type_keys(&format!("{line}\n"));
    }

    /// Types keys.
    pub(crate) fn type_keys(&mut self, keys: &str) {
        self.user.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the command's end; returns its exit code and all that was shown.
    pub(crate) fn ended(mut self) -> (i32, String) {
        while self.read() {}
        let code = self.process.wait().unwrap().code().unwrap_or(-1);
        (code, std::mem::take(&mut self.shown))
    }

    /// Reads more; false at the end.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match self.user.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
                true
            }
            // Linux reports that no process has the other end as an I/O error.
            Err(error) if error.kind() == ErrorKind::Interrupted => true,
            Err(_) => false,
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
