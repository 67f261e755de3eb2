//! Checks that packages are optimised.

use std::fs;

use toml::Table;

use crate::mutants::root;

#[test]
fn the_dist_profile_optimises_what_the_release_profile_does_not() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: Table = manifest.parse().unwrap();
    let packages = |profile: &str| {
        let packages = manifest["profile"][profile]["package"].as_table().unwrap();
        let level = |(name, package): (&String, &toml::Value)| {
            (name.clone(), package["opt-level"].as_integer().unwrap())
        };
        packages.iter().map(level).collect::<Vec<_>>()
    };
    let expected: Vec<_> = packages("release").into_iter().map(|(name, _)| (name, 3)).collect();
    assert_eq!(packages("dist"), expected);
}
