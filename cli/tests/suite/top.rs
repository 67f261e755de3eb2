//! `longshore top` in a terminal emulator: keys, the mouse and sizes as users meet them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use std::process::Command;

use crate::common::{self, System};

/// A tmux server of its own, ended on drop.
struct Tmux {
    socket: String,
}

impl Tmux {
    /// None, with a note, where tmux is not installed.
    fn find() -> Option<Tmux> {
        let found = Command::new("tmux").arg("-V").output().is_ok_and(|out| out.status.success());
        if !found {
            eprintln!("SKIPPED: tmux is not installed");
        }
        let socket = format!("longshore-top-{}", std::process::id());
        found.then_some(Tmux { socket })
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        // `-u`: the pane has UTF-8, whatever the locale of the tests.
        command.args(["-u", "-f", "/dev/null", "-L", &self.socket]).args(arguments);
        let output = command.env_remove("TMUX").output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Sends keys, by tmux's names.
    fn press(&self, keys: &[&str]) {
        self.run(&[&["send-keys", "-t", "top"], keys].concat());
    }

    /// Sends bytes as the terminal would, such as a click.
    fn send(&self, text: &str) {
        self.run(&["send-keys", "-t", "top", "-l", text]);
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p", "-t", "top"])
    }

    /// Waits until the screen is as wanted, and returns it.
    #[track_caller]
    fn until(&self, what: &str, is: impl Fn(&str) -> bool) -> String {
        common::wait_until(what, || is(&self.screen()));
        self.screen()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output();
    }
}

#[test]
fn top_is_driven_by_keys_and_mouse_in_a_terminal() {
    let Some(tmux) = Tmux::find() else { return };
    let system = System::up();
    for (queue, jobs) in [("/jobs/mail", 3), ("/jobs/video", 1)] {
        for _ in 0..jobs {
            system.enqueue(queue, "x", &[]);
        }
    }
    let top = system.command(&["top"]);
    let words = top.get_args().map(|word| word.to_string_lossy().into_owned());
    let command = format!(
        "stty -echo; env LC_ALL=C.UTF-8 HOME=/nonexistent {} {}; echo ended as $?; sleep 60",
        top.get_program().to_string_lossy(),
        words.collect::<Vec<_>>().join(" ")
    );
    tmux.run(&["new-session", "-d", "-s", "top", "-x", "80", "-y", "24", &command]);
    let row = |screen: &str, nth: usize| screen.lines().nth(nth).unwrap_or_default().to_owned();
    let first_is = |queue: &'static str| move |screen: &str| row(screen, 3).starts_with(queue);

    let screen = tmux.until("the busiest queue is first", first_is("/jobs/mail"));
    assert!(row(&screen, 0).contains("1 Queues 2"), "{screen}");
    assert!(row(&screen, 23).contains("q quit"), "{screen}");
    tmux.press(&["s", "r"]);
    tmux.until("it is sorted by name, reversed", first_is("/jobs/video"));
    // A click on the heading: by name again, and from A to Z.
    tmux.send("\x1b[<0;2;3M\x1b[<0;2;3m");
    tmux.until("the heading sorts", first_is("/jobs/mail"));
    tmux.press(&["/", "v", "i", "d", "Enter"]);
    tmux.until("it is filtered", first_is("/jobs/video"));
    tmux.press(&["Enter"]);
    tmux.until("the queue is open and looked up", |screen| {
        screen.contains("queue /jobs/video")
            && screen.contains("enqueued ever")
            && screen.contains("dead letters: none")
    });
    tmux.run(&["resize-window", "-t", "top", "-x", "40", "-y", "12"]);
    tmux.until("it fits", |screen| row(screen, 11).starts_with("Esc back"));
    tmux.press(&["Escape"]);
    tmux.until("the list is back", first_is("/jobs/video"));
    tmux.press(&["?"]);
    tmux.until("the keys are listed", |screen| screen.contains("filter; Esc clears it"));
    tmux.press(&["q"]);
    tmux.until("it has ended and left the screen", |screen| {
        screen.contains("ended as 0") && !screen.contains("Queues")
    });
}
