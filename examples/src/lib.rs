//! Programs that a user would start from: `cargo run --package longshore-examples --example
//! embedded`.

/// The README's programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

#[cfg(test)]
mod tests {
    /// A program as the README shows it: without the comment at its top.
    fn shown(program: &str) -> &str {
        program.split_once("\n\n").map_or(program, |(_, rest)| rest)
    }

    #[test]
    fn the_readme_shows_the_examples_as_they_are() {
        let readme = include_str!("../../README.md");
        assert!(readme.contains(shown(include_str!("../producer.rs"))), "producer.rs");
        assert!(readme.contains(shown(include_str!("../worker.rs"))), "worker.rs");
    }
}
