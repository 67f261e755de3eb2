//! The golden vectors as files: a comment line that says what the bytes are, then the bytes in hex, 16 a line.

use std::fmt::Write as _;
use std::path::PathBuf;

pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

pub fn to_text(says: &str, bytes: &[u8]) -> String {
    let mut text = format!("# {says}\n");
    for line in bytes.chunks(16) {
        for (n, byte) in line.iter().enumerate() {
            let space = if n == 0 { "" } else { " " };
            write!(text, "{space}{byte:02x}").expect("a String takes all");
        }
        text.push('\n');
    }
    text
}

pub fn from_text(text: &str) -> Vec<u8> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .map(|hex| u8::from_str_radix(hex, 16).expect("two hex digits"))
        .collect()
}

/// Every vector there is, by its file's name without `.hex`.
pub fn vectors() -> Vec<(String, Vec<u8>)> {
    let mut vectors = Vec::new();
    for entry in std::fs::read_dir(folder()).expect("the folder of golden vectors") {
        let file = entry.expect("a directory entry").path();
        if file.extension().is_some_and(|e| e == "hex") {
            let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
            vectors.push((name, from_text(&std::fs::read_to_string(&file).expect("a text"))));
        }
    }
    vectors.sort();
    vectors
}
