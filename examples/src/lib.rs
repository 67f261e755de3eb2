//! Example programs: `cargo run --package longshore-examples --example embedded`.

/// Compiles the README's programs as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

#[cfg(test)]
mod tests {
    /// A program as the README shows it: without its leading comment.
    fn shown(program: &str) -> &str {
        program.split_once("\n\n").map_or(program, |(_, rest)| rest)
    }

    #[test]
    fn examples_have_under_sixty_lines() -> std::io::Result<()> {
        for file in std::fs::read_dir(env!("CARGO_MANIFEST_DIR"))? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                let program = std::fs::read_to_string(&path)?;
                let lines = program.lines().map(str::trim_start);
                let code = lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count();
                assert!(code < 60, "{} has {code} lines of code", path.display());
            }
        }
        Ok(())
    }

    #[test]
    fn the_readme_shows_the_example_as_it_is() {
        let readme = include_str!("../../README.md");
        assert!(readme.contains(shown(include_str!("../worker.rs"))), "worker.rs");
    }
}
