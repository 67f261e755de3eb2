//! `longshore demo`: every file gets its digest although processes are killed.

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
    // The last file by name is enqueued only after the last kill.
    let vanishing = files.join("\u{10ffff}");
    std::fs::write(&vanishing, "soon gone").unwrap();

    let mut demo = longshore(&["demo", "files"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(demo.stdout.take().unwrap());
    let mut printed = String::new();
    // The demo prints the number of files after it has listed them.
    output.read_line(&mut printed).unwrap();
    assert!(printed.starts_with("109 files"), "{printed}");
    std::fs::remove_file(&vanishing).unwrap();
    output.read_to_string(&mut printed).unwrap();
    let ended = demo.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{printed}\n{stderr}");

    let count = |what: &str| {
        let line = printed.lines().find(|line| line.starts_with(what)).unwrap_or_default();
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
        assert_eq!(count(what).as_deref(), Some(expected), "{what} in {printed}");
    }
    assert!(printed.contains("worker-1, publisher-1, replica-1"), "{printed}");
    assert!(stderr.contains("No such file"), "{stderr}");

    let checked = Command::new("sha256sum")
        .args(["--strict", "-c", "digests.txt"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert_eq!(
        checked.stdout.split(|byte| *byte == b'\n').filter(|line| line.ends_with(b"OK")).count(),
        108
    );
}
