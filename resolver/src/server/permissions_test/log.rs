//! What a replica logs of refused accesses.

use std::io::{Read, Seek};
use std::sync::LazyLock;

use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

use super::*;

/// What is logged meanwhile, by this thread.
fn log_of(run: impl FnOnce()) -> String {
    // With only one subscriber in the process, `tracing` disables an event for good if another
    // test's thread reaches it first.
    static INACTIVE: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| [(); 2].map(|()| Dispatch::new(NoSubscriber::default())));
    LazyLock::force(&INACTIVE);
    let copy = tempfile::tempfile().unwrap();
    let mut file = copy.try_clone().unwrap();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(copy).finish();
    tracing::subscriber::with_default(subscriber, run);
    let mut log = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut log).unwrap();
    log
}

#[test]
fn refused_accesses_are_logged_at_a_bounded_rate() {
    let log = log_of(|| {
        let mut replica = Replica::new();
        let me = access("me", &allow(&["resolve", "serve"], &["/mine/**"]));
        replica.announce(ME, &me, info(2, 1), Vec::new()).unwrap();
        replica.resolve(&me, &["/mine/a", "/q/mail"]);
        replica.write(ME, &me, Change::Publish, QUEUE, &["/mine/a", "/q/mail"]);
        replica.ask(ME, &me, ToReplica::Status { id: 1 });
        let other = access("other", &allow(&["serve"], &["/**"]));
        replica.announce(Client(8), &other, info(2, 1), Vec::new()).unwrap_err();
        replica.resolve(&me, &["/secret"; 50]);
    });
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(lines.len(), 10, "{log}");
    let who = "identity=\"token:me\" address=127.0.0.1:4000";
    for (line, action, path) in
        [(0, "resolve", "/q/mail"), (1, "serve", "/q/mail"), (2, "inspect", "/sys")]
    {
        let expected = format!("{who} action={action} path={path} left_out=0");
        assert!(lines[line].contains("an access is refused"), "{}", lines[line]);
        assert!(lines[line].contains(&expected), "{expected}: {}", lines[line]);
    }
    let expected = format!("identity=\"token:other\" address=127.0.0.1:4000 publisher={MINE}");
    assert!(lines[3].contains(&expected), "{expected}: {}", lines[3]);
}
