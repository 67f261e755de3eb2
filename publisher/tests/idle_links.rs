//! The cost of an idle worker's link: the example's measurement with 1,000 links, or with its
//! 10,000 and their 20 s with `LONGSHORE_LONG=1`.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../examples/idle_links.rs"]
mod idle_links;
#[path = "../../tests/long.rs"]
mod long;

use std::time::Duration;

use long::long;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[test]
fn idle_link_takes_at_most_20_kib() -> Result<(), Failure> {
    let arguments = ["--exact", "child_process", "--ignored", "--nocapture"];
    let (links, seconds) = if long() { (10_000, 20) } else { (1_000, 1) };
    let cost = idle_links::measure(links, Duration::from_secs(seconds), &arguments, None)?;
    println!("{}", cost.json());
    assert_eq!(cost.lost, 0);
    assert!(cost.each() <= idle_links::LINK_BYTES_MAX, "{}", cost.json());
    Ok(())
}

#[test]
#[ignore = "a child process of the other test"]
fn child_process() -> Result<(), Failure> {
    // Without a role there is nothing to do: someone runs all ignored tests.
    std::env::var(idle_links::PART).map_or(Ok(()), |part| idle_links::run_role(&part))
}
