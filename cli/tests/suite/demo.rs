//! The main job: files go in, processes are killed, every digest comes back.

use crate::common;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use common::longshore;

#[test]
fn awkward_files_survive_three_kills_and_missing_ones_are_buried() {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("files");
    std::fs::create_dir_all(files.join("sp ace")).unwrap();
    let awkward: [&[u8]; 8] = [
        b"'quote\"s",
        b"new\nline",
        b"back\\slash",
        b"not \xff utf8",
        b"\xc3\xbcmlaut",
        b"sp ace/-",
        b" lead",
        b"return\r",
    ];
    for name in awkward {
        std::fs::write(files.join(OsStr::from_bytes(name)), name).unwrap();
    }
    for n in 0..100 {
        std::fs::write(files.join(format!("plain-{n}")), n.to_string()).unwrap();
    }
    // The last by name is enqueued only after the last kill.
    let vanishing = files.join("\u{10ffff}");
    std::fs::write(&vanishing, "soon gone").unwrap();

    let mut demo = longshore(&["demo", "files"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(demo.stdout.take().unwrap());
    let mut told = String::new();
    // It has listed the files once it says how many there are.
    output.read_line(&mut told).unwrap();
    assert!(told.starts_with("109 files"), "{told}");
    std::fs::remove_file(&vanishing).unwrap();
    output.read_to_string(&mut told).unwrap();
    let ended = demo.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{told}\n{stderr}");

    let count = |what: &str| {
        let line = told.lines().find(|line| line.starts_with(what)).unwrap_or_default();
        line.split_whitespace().last().map(str::to_owned)
    };
    for (what, expected) in [
        ("files", "109"),
        ("digests", "108"),
        ("buried", "1"),
        ("lost", "0"),
        ("doubled", "0"),
        ("unknown", "0"),
    ] {
        assert_eq!(count(what).as_deref(), Some(expected), "{what} in {told}");
    }
    assert!(told.contains("worker-1, publisher-1, replica-1"), "{told}");
    assert!(stderr.contains("No such file"), "{stderr}");

    let judge = Command::new("sha256sum")
        .args(["--strict", "-c", "digests.txt"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(judge.status.success(), "{}", String::from_utf8_lossy(&judge.stderr));
    assert_eq!(
        judge.stdout.split(|byte| *byte == b'\n').filter(|line| line.ends_with(b"OK")).count(),
        108
    );
}
