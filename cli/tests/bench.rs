//! Measurements print the keys that scripts rely on.

mod common;

use common::{longshore, run};

#[test]
fn e2e_prints_its_keys_as_numbers() {
    let bench = longshore(&["bench", "e2e", "--jobs", "2000", "--size", "256", "--json"]);
    let figures = run(bench, b"").code(0).json();
    assert_eq!((&figures["measure"], &figures["durability"]), (&"e2e".into(), &"fsync".into()));
    assert_eq!((&figures["jobs"], &figures["size"]), (&2_000.into(), &256.into()));
    for key in ["cores", "fdatasync_us", "jobs_per_s", "bytes_written_per_payload_byte"] {
        assert!(figures[key].as_f64().is_some_and(|figure| figure > 0.0), "{key}: {figures}");
    }
}

#[test]
fn latency_prints_its_keys_as_numbers_in_order() {
    let bench = longshore(&["bench", "latency", "--rate", "500", "--seconds", "1", "--json"]);
    let figures = run(bench, b"").code(0).json();
    assert_eq!((&figures["measure"], &figures["offered_per_s"]), (&"latency".into(), &500.into()));
    let [p50, p99, p999, max] =
        ["p50_us", "p99_us", "p999_us", "max_us"].map(|key| figures[key].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= p99 && p99 <= p999 && p999 <= max, "{figures}");
}
