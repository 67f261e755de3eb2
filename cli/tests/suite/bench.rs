//! `longshore bench` prints the keys that scripts rely on.

use crate::common;

use common::{System, longshore, run};

#[test]
fn e2e_prints_its_keys_as_numbers() {
    let bench = longshore(&["bench", "e2e", "--jobs", "2000", "--size", "256", "--json"]);
    let metrics = run(bench, b"").code(0).json();
    assert_eq!((&metrics["measure"], &metrics["durability"]), (&"e2e".into(), &"fsync".into()));
    assert_eq!((&metrics["jobs"], &metrics["size"]), (&2_000.into(), &256.into()));
    for key in ["cores", "fdatasync_us", "jobs_per_s", "bytes_written_per_payload_byte"] {
        assert!(metrics[key].as_f64().is_some_and(|metric| metric > 0.0), "{key}: {metrics}");
    }
}

#[test]
fn measurements_of_a_named_system_do_not_time_this_disk() {
    let system = System::up();
    for measure in [
        &["e2e", "--jobs", "100"][..],
        &["latency", "--rate", "100", "--seconds", "1"],
        &["values", "--paths", "10", "--seconds", "1"],
    ] {
        let metrics = system.run(&[&["bench"], measure, &["--json"]].concat()).code(0).json();
        assert!(metrics["fdatasync_us"].is_null(), "{metrics}");
    }
    let shown = system.run(&["bench", "e2e", "--jobs", "100"]).code(0).stdout;
    let is_none = |line: &str| line.split_whitespace().eq(["fdatasync_us", "-"]);
    assert!(shown.lines().any(is_none), "{shown}");
}

#[test]
fn latency_prints_its_keys_as_numbers_in_order() {
    let bench = longshore(&["bench", "latency", "--rate", "500", "--seconds", "1", "--json"]);
    let metrics = run(bench, b"").code(0).json();
    assert_eq!((&metrics["measure"], &metrics["offered_per_s"]), (&"latency".into(), &500.into()));
    assert_eq!(metrics["jobs"], 500, "without the job that opens the links");
    let [p50, p99, p999, max] =
        ["p50_us", "p99_us", "p999_us", "max_us"].map(|key| metrics[key].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= p99 && p99 <= p999 && p999 <= max, "{metrics}");
}

#[test]
fn producer_has_opened_its_links_before_the_measurement() {
    let system = System::up();
    let mut producer =
        system.spawn(&["bench", "producer", "/jobs/a", "--jobs", "9", "--size", "16"]);
    assert!(producer.line().contains("ready"));
    assert_eq!(system.stat("/jobs/a")["ready"], 1);
}

#[test]
fn backlog_prints_its_keys_as_numbers() {
    let mut bench = longshore(&["bench", "backlog", "--jobs", "20000", "--size", "64", "--json"]);
    bench.args(["--churn", "1", "--seconds", "1", "--segment-bytes", "1048576"]);
    let metrics = run(bench, b"").code(0).json();
    assert_eq!((&metrics["measure"], &metrics["durability"]), (&"backlog".into(), &"fsync".into()));
    assert_eq!((&metrics["waiting"], &metrics["churn_jobs"]), (&20_000.into(), &20_000.into()));
    for key in [
        "cores",
        "fdatasync_us",
        "bytes_per_job",
        "recovery_s",
        "cost_ratio",
        "cost_wall_ratio",
        "enqueue_us",
        "enqueue_us_at_10000",
        "take_us",
        "take_us_at_10000",
        "disk_ratio",
        "disk_budget_ratio",
        "bytes_written_per_payload_byte",
        "commit_p99_us_quiet",
        "commit_p99_ratio",
    ] {
        assert!(metrics[key].as_f64().is_some_and(|metric| metric > 0.0), "{key}: {metrics}");
    }
    for key in ["snapshot_share", "cycle_us", "device_bytes_per_payload_byte", "cycles"] {
        assert!(metrics[key].is_number(), "{key}: {metrics}");
    }
    // The waiting jobs and those at the worker survive the kill.
    assert_eq!(metrics["recovered_jobs"], 20_000 + 8 + 16 * 1024);
}

#[test]
fn backlog_refuses_a_running_system() {
    let bench = longshore(&["bench", "backlog", "--resolver", "127.0.0.1:1"]);
    run(bench, b"").code(2).stderr_has(&["without --resolver"]);
}

#[test]
fn resolver_prints_its_keys_as_numbers() {
    let bench = longshore(&["bench", "resolver", "--paths", "2500", "--json"]);
    let metrics = run(bench, b"").code(0).json();
    assert_eq!((&metrics["measure"], &metrics["paths"]), (&"resolver".into(), &2_500.into()));
    for key in [
        "cores",
        "register_per_s",
        "register_cpu_us",
        "resolve_per_s",
        "resolve_cpu_us",
        "list_per_s",
        "match_per_s",
        "bytes_per_path",
        "rss_bytes",
        "rss_bytes_empty",
        "expired_s",
        "probe_p99_ms_quiet",
        "probe_p99_ms_registering",
        "probe_p99_ms_expiring",
        "probe_max_ms_quiet",
        "probe_max_ms_registering",
        "probe_max_ms_expiring",
    ] {
        assert!(metrics[key].as_f64().is_some_and(|metric| metric > 0.0), "{key}: {metrics}");
    }
}

#[test]
fn values_prints_its_keys_as_numbers_and_loses_none() {
    for size in ["8", "256"] {
        let bench = ["bench", "values", "--size", size, "--seconds", "1", "--json"];
        let metrics = run(longshore(&bench), b"").code(0).json();
        assert_eq!((&metrics["measure"], &metrics["lost"]), (&"values".into(), &0.into()));
        assert_eq!((metrics["size"].to_string(), &metrics["paths"]), (size.into(), &1_000.into()));
        assert!(metrics["latency_lost"].is_u64(), "{metrics}");
        for key in [
            "cores",
            "fdatasync_us",
            "updates",
            "updates_per_s",
            "publisher_cpu_ns",
            "subscriber_cpu_ns",
            "offered_per_s",
            "latency_p50_us",
            "latency_p99_us",
            "latency_max_us",
        ] {
            assert!(metrics[key].as_f64().is_some_and(|metric| metric > 0.0), "{key}: {metrics}");
        }
    }
}
