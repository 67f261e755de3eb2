//! What an idle worker's link costs a publisher: the example's measurement with 1,000 links, or
//! with its 10,000 and their 20 s with `LONGSHORE_LONG=1`.
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
fn an_idle_link_takes_at_most_20_kib_and_stands() -> Result<(), Failure> {
    let arguments = ["--exact", "a_part", "--ignored", "--nocapture"];
    let (links, seconds) = if long() { (10_000, 20) } else { (1_000, 1) };
    let cost = idle_links::measure(links, Duration::from_secs(seconds), &arguments)?;
    println!("{}", cost.json());
    assert_eq!(cost.lost, 0);
    assert!(cost.each() <= idle_links::LINK_BYTES_MAX, "{}", cost.json());
    Ok(())
}

#[test]
#[ignore = "a process of the other test, which starts it"]
fn a_part() -> Result<(), Failure> {
    // Without a part there is nothing to do: somebody runs all ignored tests.
    std::env::var(idle_links::PART).map_or(Ok(()), |part| idle_links::play(&part))
}
