//! `longshore journal`: stat, verify, dump, copy; and a publisher started on a copy.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

use crate::common;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::{CommandOutput, System, longshore, run};
use serde_json::Value;

fn journal(arguments: &[&str]) -> CommandOutput {
    let mut command = longshore(&["journal"]);
    command.args(arguments);
    run(command, b"")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The data directory of a stopped publisher with three waiting jobs and one completed.
fn at_rest() -> (tempfile::TempDir, PathBuf) {
    let System { mut service, folder } = {
        let system = System::up();
        for payload in ["one", "two", "three"] {
            system.enqueue("/jobs/a", payload, &[]);
        }
        system.enqueue("/jobs/b", "four", &[]);
        system.run(&["work", "/jobs/b", "--until-empty", "--", "cat"]).code(0);
        system
    };
    service.stop();
    let data = folder.path().join("data");
    (folder, data)
}

/// The segment with the records, and the offset of their end.
fn segment(data: &Path) -> (PathBuf, usize) {
    let stat = journal(&["stat", text(data), "--json"]).code(0).json();
    let log = |segment: &&Value| segment["kind"] == "log";
    let found = stat["segments"].as_array().unwrap().iter().find(log).unwrap().clone();
    let path = data.join(format!("segments/{:010}.seg", found["sequence"].as_u64().unwrap()));
    let bytes = fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    (path, end)
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_journal_at_rest_can_be_inspected_verified_and_dumped() {
    let (_folder, data) = at_rest();
    let stat = journal(&["stat", text(&data), "--json"]).code(0).json();
    assert_eq!((&stat["format"], &stat["in_use_by"]), (&Value::from(5), &Value::Null));
    assert_ne!(stat["journal"], stat["publisher"]);
    journal(&["stat", text(&data)]).code(0);

    let verified = journal(&["verify", text(&data), "--json"]).code(0).json();
    assert_eq!(
        (&verified["damaged"], &verified["findings"]),
        (&false.into(), &Value::Array(vec![]))
    );
    assert_eq!(verified["last_index"], verified["commit_watermark"]);
    assert!(journal(&["verify", text(&data)]).code(0).stdout.starts_with("good\n"));

    let lines = journal(&["dump", text(&data), "--payloads"]).code(0).json_lines();
    assert_eq!(lines.len() as u64, verified["records"].as_u64().unwrap());
    for (position, line) in lines.iter().enumerate() {
        assert_eq!(
            (&line["type"], &line["index"]),
            (&"record".into(), &(position as u64 + 1).into())
        );
        assert!(line["fields"].is_object(), "{line}");
    }
    let jobs: Vec<&Value> = lines
        .iter()
        .filter(|line| line["command"] == "enqueue")
        .flat_map(|line| line["fields"]["jobs"].as_array().unwrap())
        .collect();
    let payloads: Vec<&str> = jobs.iter().map(|job| job["payload"].as_str().unwrap()).collect();
    assert_eq!(payloads, ["one", "two", "three", "four"]);
    let paths: Vec<&str> = jobs.iter().map(|job| job["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/jobs/a", "/jobs/a", "/jobs/a", "/jobs/b"]);
    assert!(jobs.iter().all(|job| job["id"].is_string()));
    let some = journal(&["dump", text(&data), "--from", "2", "--to", "3"]).code(0).json_lines();
    assert_eq!(
        some.iter().map(|line| line["index"].as_u64()).collect::<Vec<_>>(),
        [Some(2), Some(3)]
    );
    assert!(!some.iter().any(|line| line.to_string().contains("payload\"")));
}

#[test]
fn a_flipped_byte_is_located_and_accepted_loss_reported() {
    let (_folder, data) = at_rest();
    let (path, _) = segment(&data);
    let third = journal(&["dump", text(&data), "--from", "3", "--to", "3"]).code(0).json_lines();
    let offset = third[0]["offset"].as_u64().unwrap();
    flip(&path, offset + 20);
    let verified = journal(&["verify", text(&data), "--json"]).code(1).json();
    let finding = &verified["findings"][0];
    assert_eq!((&finding["effect"], &finding["offset"]), (&"damage".into(), &offset.into()));
    assert_eq!((&finding["index"], &verified["last_index"]), (&3.into(), &2.into()));
    assert_eq!(finding["file"], text(&path));
    let verified = journal(&["verify", text(&data)]).code(1);
    assert!(verified.stdout.contains(&format!("at byte {offset}, command 3")), "{verified:?}");
    assert!(verified.stdout.contains("DAMAGED"), "{verified:?}");
    journal(&["copy", text(&data), text(&data.with_extension("copy"))])
        .code(1)
        .stderr_has(&["damaged at byte", "no"]);

    let lines = journal(&["dump", text(&data)]).code(0).json_lines();
    assert_eq!((&lines[2]["type"], &lines[3]["index"]), (&"damage".into(), &4.into()));

    let up = |more: &[&str]| {
        let mut command = longshore(&["up", "--json", "--replicas", "1", "--resolver-port", "0"]);
        command.args(["--publisher-port", "0", "--data"]).arg(&data).args(more);
        command
    };
    run(up(&[]), b"").code(1).stderr_has(&["damaged at byte", "--accept-loss"]);
    let service = common::Service::start(up(&["--accept-loss"]));
    let dropped = &service.ready["recovered"]["dropped"];
    assert_eq!((&dropped["offset"], &dropped["index"]), (&offset.into(), &3.into()));
    let moved_to = PathBuf::from(dropped["moved_to"].as_str().unwrap());
    // lost/ also has the preallocated segment, which is empty.
    let lost: Vec<_> =
        fs::read_dir(&moved_to).unwrap().map(|entry| entry.unwrap().path()).collect();
    let dump = |file: &PathBuf| journal(&["dump", text(file)]).code(0).json_lines();
    let lines: Vec<Value> = lost.iter().flat_map(dump).collect();
    // The end of a segment does not name its journal: it is found from inside the directory, too.
    let part = lost.iter().find(|file| file.extension().is_some_and(|end| end == "part")).unwrap();
    let mut relative = longshore(&["journal", "dump", text(part.strip_prefix(&data).unwrap())]);
    relative.current_dir(&data);
    assert_eq!(run(relative, b"").code(0).json_lines(), dump(part));
    assert!(lines.iter().any(|line| line["index"] == 4), "{lines:?}");
}

#[test]
fn a_torn_tail_is_reported_but_is_not_damage() {
    let (_folder, data) = at_rest();
    let (path, end) = segment(&data);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"half of an unacknowledged record", end as u64 + 64).unwrap();
    let verified = journal(&["verify", text(&data)]).code(0);
    assert!(verified.stdout.contains("torn") && verified.stdout.contains("good"), "{verified:?}");
}

#[test]
fn directories_that_cannot_be_inspected_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for action in ["stat", "verify", "dump"] {
        journal(&[action, text(folder.path())]).code(1).stderr_has(&["holds no journal"]);
    }
    let system = System::up();
    let data = system.folder.path().join("data");
    journal(&["verify", text(&data)])
        .code(1)
        .stderr_has(&["in use by process", "longshore journal copy"]);
    let stat = journal(&["stat", text(&data), "--json"]).code(0).json();
    assert!(stat["in_use_by"].as_str().unwrap().starts_with("process "));
    let full = folder.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::File::create(full.join("something")).unwrap().write_all(b"here").unwrap();
    journal(&["copy", text(&data), text(&full)]).code(1).stderr_has(&["is not empty"]);
}

#[test]
fn a_copied_journal_has_each_job_once_and_a_new_identity() {
    let system = System::up();
    let data = system.folder.path().join("data");
    let lines: String = (0..5_000).map(|n| format!("job {n}\n")).collect();
    system.run_with(&["enqueue", "/jobs/a", "--lines"], lines.as_bytes()).code(0);
    // It accepts and delivers jobs while it is copied.
    let producer = std::thread::spawn({
        let command = system.command(&["enqueue", "/jobs/b", "--lines"]);
        move || run(command, (0..20_000).map(|n| format!("{n}\n")).collect::<String>().as_bytes())
    });
    let worker = system.spawn(&["work", "/jobs/c", "--", "sleep", "100"]);
    let held = system.enqueue("/jobs/c", "held", &[]);
    common::wait_until("the worker holds its job", || system.stat("/jobs/c")["running"] == 1);
    let copy = system.folder.path().join("copy");
    let copied = journal(&["copy", text(&data), text(&copy), "--json"]).code(0).json();
    producer.join().unwrap().code(0);
    drop(worker);
    let id = system.service.text("publisher").to_owned();
    let original = journal(&["stat", text(&data), "--json"]).code(0).json();
    assert_eq!((&copied["journal"], &original["publisher"]), (&original["journal"], &id.into()));
    assert_ne!(copied["publisher"], original["publisher"]);

    let verified = journal(&["verify", text(&copy), "--json"]).code(0).json();
    assert_eq!(
        (&verified["damaged"], &verified["last_index"]),
        (&false.into(), &copied["last_index"])
    );
    let folder = tempfile::tempdir().unwrap();
    fs::rename(&copy, folder.path().join("data")).unwrap();
    let restored = System::on(folder);
    assert_eq!(restored.service.ready["publisher"], copied["publisher"]);
    let (a, c) = (restored.stat("/jobs/a"), restored.stat("/jobs/c"));
    assert_eq!((&a["ready"], &a["enqueued_ever"]), (&5_000.into(), &5_000.into()));
    // Running at the original, ready in the copy.
    assert_eq!((&c["ready"], &c["running"]), (&1.into(), &0.into()));
    // Its receipt names the original.
    let here = restored.job(held.split_once(':').unwrap().1)["job"].as_str().unwrap().to_owned();
    restored.run(&["job", &held]).code(1).stderr_has(&[&format!("longshore job {here}\n")]);
    assert_eq!(system.stat("/jobs/a")["ready"], 5_000, "the original is unchanged");
}

#[test]
fn a_copy_that_is_served_beside_its_original_is_reported() {
    let system = System::up();
    system.enqueue("/jobs/a", "x", &[]);
    let copy = system.folder.path().join("copy");
    let data = system.folder.path().join("data");
    journal(&["copy", text(&data), text(&copy)]).code(0).stderr_has(&["never beside it"]);
    assert!(!system.run(&["check"]).code(0).stdout.contains("one journal"));

    let run = ["publisher", "run", "--json", "--listen", "127.0.0.1:0", "--default", "/copy"];
    let on_copy = ["--name", "restored", "--data", text(&copy)];
    let mut restored = system.spawn(&[&run[..], &on_copy].concat());
    restored.line();
    let warned = restored.wait_for_stderr("serve copies of one journal");
    assert!(warned.contains("restored ("), "{warned}");
    let check = system.run(&["check"]).code(0).stdout;
    let line = check.lines().find(|line| line.contains("one journal")).unwrap();
    assert!(line.starts_with("WARNING") && line.contains("restored ("), "{check}");
}
