//! Times of schedules: calendars, nights on which clocks change, missed occurrences.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use longshore_protocol::messages::work::NextOccurrence;
use longshore_protocol::{Missed, Overlap, Schedule, Timing};

use super::plan::Plan;
use super::times::{InvalidTiming, Times};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

fn at(text: &str) -> u64 {
    let at: Timestamp = text.parse().unwrap();
    at.as_millisecond() as u64
}

fn show(ms: u64) -> String {
    Timestamp::from_millisecond(ms as i64).unwrap().to_string()
}

fn schedule(timing: Timing) -> Schedule {
    Schedule {
        name: "a".to_owned(),
        path: "/a".parse().unwrap(),
        timing,
        starts_at: None,
        ends_at: None,
        jitter_ms: 0,
        missed: Missed::Latest,
        overlap: Overlap::Skip,
        version: None,
    }
}

fn cron(expression: &str, zone: &str) -> Schedule {
    let (expression, zone) = (expression.to_owned(), zone.to_owned());
    schedule(Timing::Cron { expression, zone })
}

fn every(ms: u64) -> Schedule {
    schedule(Timing::Every { ms })
}

/// The occurrences between two times.
fn between(schedule: &Schedule, from: &str, to: &str) -> Vec<String> {
    let times = Times::of(schedule, 0).unwrap();
    let next = std::iter::successors(times.after(at(from)), |&at| times.after(at));
    next.take_while(|&next| next <= at(to)).map(show).collect()
}

#[test]
fn expressions_have_five_or_six_fields() {
    let found = |expression| {
        between(&cron(expression, "UTC"), "2026-11-26T12:00:00Z", "2026-12-01T12:00:00Z")
    };
    assert_eq!(found("30 3 * * FRI,SUN"), ["2026-11-27T03:30:00Z", "2026-11-29T03:30:00Z"]);
    assert_eq!(found("15 30 3 L * *"), ["2026-11-30T03:30:15Z"]);
    assert_eq!(found("0 0 1,27 * *"), ["2026-11-27T00:00:00Z", "2026-12-01T00:00:00Z"]);
    assert_eq!(found("@weekly"), ["2026-11-29T00:00:00Z"]);
}

#[test]
fn what_is_wrong_with_a_timing_is_named() {
    let why = |schedule: &Schedule| match Times::of(schedule, 0) {
        Ok(times) => times.after(at("2026-11-26T12:00:00Z")).map(show).unwrap_or_default(),
        Err(why) => why.to_string(),
    };
    for bad in ["", "61 * * * *", "* * * *", "0 0 0 1 1 * 2027", "every day", "@every 5m"] {
        assert!(why(&cron(bad, "UTC")).contains("five fields, minute hour"), "{bad}");
    }
    assert!(why(&cron("0 0 * * *", "Mars/One")).contains("a name like Europe/Berlin"));
    assert_eq!(why(&cron("0 0 30 2 *", "UTC")), "", "never");
    assert!(InvalidTiming::Never.to_string().contains("correct its times"));
}

/// Of each zone: a time in the gap of its spring night, and one in the repeated part of its
/// autumn night. The clocks of Lord Howe change by half an hour.
#[test]
fn a_gap_runs_at_its_end_and_a_repeated_time_once() {
    for (zone, in_gap, gap, repeated, fold) in [
        (
            "Europe/Berlin",
            "30 2 * * *",
            ("2027-03-27T12:00:00Z", "2027-03-28T12:00:00Z", "2027-03-28T01:00:00Z"),
            "30 2 * * *",
            ("2026-10-24T12:00:00Z", "2026-10-25T12:00:00Z", "2026-10-25T00:30:00Z"),
        ),
        (
            "America/New_York",
            "30 2 * * *",
            ("2027-03-13T12:00:00Z", "2027-03-14T12:00:00Z", "2027-03-14T07:00:00Z"),
            "30 1 * * *",
            ("2026-10-31T12:00:00Z", "2026-11-01T12:00:00Z", "2026-11-01T05:30:00Z"),
        ),
        (
            "Australia/Lord_Howe",
            "15 2 * * *",
            ("2026-10-03T06:00:00Z", "2026-10-04T06:00:00Z", "2026-10-03T15:30:00Z"),
            "45 1 * * *",
            ("2027-04-03T06:00:00Z", "2027-04-04T06:00:00Z", "2027-04-03T14:45:00Z"),
        ),
    ] {
        let (from, to, end_of_gap) = gap;
        assert_eq!(between(&cron(in_gap, zone), from, to), [end_of_gap], "{zone}, spring");
        let (from, to, first) = fold;
        assert_eq!(between(&cron(repeated, zone), from, to), [first], "{zone}, autumn");
    }
}

#[test]
fn lists_and_ranges_are_fixed_times() {
    let spring = ("2027-03-27T12:00:00Z", "2027-03-28T12:00:00Z");
    let autumn = ("2026-10-24T12:00:00Z", "2026-10-25T12:00:00Z");
    for (expression, (from, to), expected) in [
        ("30 2,14 * * *", spring, &["2027-03-27T13:30:00Z", "2027-03-28T01:00:00Z"][..]),
        ("0,30 2 * * *", spring, &["2027-03-28T01:00:00Z"]),
        ("0 1-3 * * *", spring, &["2027-03-28T00:00:00Z", "2027-03-28T01:00:00Z"]),
        ("0,30 2 * * *", autumn, &["2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z"]),
        (
            "0 1-3 * * *",
            autumn,
            &["2026-10-24T23:00:00Z", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"],
        ),
    ] {
        assert_eq!(between(&cron(expression, "Europe/Berlin"), from, to), expected, "{expression}");
    }
    // In Nuuk the gap is the last hour of a Saturday.
    let saturdays = cron("30 23 * * SAT", "America/Nuuk");
    let found = between(&saturdays, "2027-03-27T12:00:00Z", "2027-03-29T12:00:00Z");
    assert_eq!(found, ["2027-03-28T01:00:00Z"]);
}

/// Fixed times against a clock that is watched minute by minute: each comes due when the clock first
/// shows it or passes it. Samoa once left out a whole day.
#[test]
fn fixed_times_are_due_when_the_clock_first_shows_or_passes_them() {
    for (zone, from) in [
        ("Europe/Berlin", "2026-10-24T10:00:00Z"),
        ("Europe/Berlin", "2027-03-27T10:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T00:00:00Z"),
        ("Australia/Lord_Howe", "2027-04-03T00:00:00Z"),
        ("America/Nuuk", "2027-03-27T10:00:00Z"),
        ("Pacific/Apia", "2011-12-29T00:00:00Z"),
    ] {
        let zone_of = TimeZone::get(zone).unwrap();
        let start: Timestamp = from.parse().unwrap();
        let minutes = (0..3 * 24 * 60).map(|n| start + SignedDuration::from_mins(n));
        for (expression, hours, step) in [
            ("0-59 0-23 * * *", 0..24, 1),
            ("0,20,40 0-3 * * *", 0..4, 20),
            ("0 2 * * *", 2..3, 60),
        ] {
            let schedule = cron(expression, zone);
            let times = Times::of(&schedule, 0).unwrap();
            let is_due = |time: &DateTime| {
                hours.contains(&time.hour()) && i32::from(time.minute()) % step == 0
            };
            let mut latest = zone_of.to_datetime(start);
            let mut due = Vec::new();
            for minute in minutes.clone().skip(1) {
                let shown = zone_of.to_datetime(minute);
                let next = latest + SignedDuration::from_mins(1);
                let passed = next.series(1.minute()).take_while(|time| *time <= shown);
                if passed.into_iter().any(|time| is_due(&time)) {
                    due.push(minute);
                }
                latest = latest.max(shown);
            }
            let mut next = due.iter().peekable();
            for minute in minutes.clone() {
                while next.next_if(|due| **due <= minute).is_some() {}
                let Some(expected) = next.peek() else { break };
                let found = times.after(minute.as_millisecond().try_into().unwrap());
                assert_eq!(
                    found.map(show),
                    Some(expected.to_string()),
                    "{zone}, {expression}, {minute}"
                );
            }
        }
    }
}

#[test]
fn wildcards_run_through_both_parts_of_a_repeated_time_and_skip_a_gap() {
    let half_hours = cron("*/30 * * * *", "Australia/Lord_Howe");
    let autumn = between(&half_hours, "2027-04-03T14:00:00Z", "2027-04-03T16:00:00Z");
    // 01:30, then 01:30 and 02:00 again, 02:30.
    let expected = ["14:30", "15:00", "15:30", "16:00"].map(|at| format!("2027-04-03T{at}:00Z"));
    assert_eq!(autumn, expected);
    let quarters = cron("*/15 2 * * *", "Europe/Berlin");
    let spring = between(&quarters, "2027-03-27T12:00:00Z", "2027-03-28T12:00:00Z");
    assert!(spring.is_empty(), "there is no such hour: {spring:?}");
}

/// Over a whole year, every day of each zone has one occurrence of a fixed time, whatever its
/// clocks do.
#[test]
fn a_fixed_time_occurs_once_on_every_day_of_a_year() {
    for zone in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"] {
        for hour in 0..4 {
            for minute in [0, 20, 45] {
                let daily = cron(&format!("{minute} {hour} * * *"), zone);
                let found = between(&daily, "2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z");
                assert_eq!(found.len(), 365, "{hour}:{minute} in {zone}");
                let times: Vec<u64> = found.iter().map(|found| at(found)).collect();
                let distances = times.windows(2).map(|two| two[1] - two[0]);
                let is_daily = |ms: u64| (23 * HOUR_MS..=25 * HOUR_MS).contains(&ms);
                assert!(distances.into_iter().all(is_daily), "{hour}:{minute} in {zone}");
            }
        }
    }
}

#[test]
fn a_fixed_distance_counts_from_its_start_or_its_creation() {
    let created = at("2026-11-27T10:00:07Z");
    let of = |schedule: &Schedule, after: &str| {
        Times::of(schedule, created).unwrap().after(at(after)).map(show).unwrap_or_default()
    };
    let five = every(5 * MINUTE_MS);
    assert_eq!(of(&five, "2026-11-27T10:00:07Z"), "2026-11-27T10:05:07Z");
    assert_eq!(of(&five, "2026-11-27T10:05:06.999Z"), "2026-11-27T10:05:07Z");
    assert_eq!(of(&five, "2026-11-27T10:05:07Z"), "2026-11-27T10:10:07Z");
    let started = Schedule {
        starts_at: Some(at("2026-12-01T00:00:00Z")),
        ends_at: Some(at("2026-12-01T00:10:00Z")),
        ..five
    };
    assert_eq!(of(&started, "2026-11-27T10:00:00Z"), "2026-12-01T00:00:00Z", "the start itself");
    assert_eq!(of(&started, "2026-12-01T00:05:00Z"), "2026-12-01T00:10:00Z", "the end itself");
    assert_eq!(of(&started, "2026-12-01T00:10:00Z"), "", "nothing after the end");
    let nightly = Schedule { starts_at: started.starts_at, ..cron("30 3 * * *", "UTC") };
    assert_eq!(of(&nightly, "2026-11-27T10:00:00Z"), "2026-12-01T03:30:00Z");
}

#[test]
fn jitter_delays_within_its_limit_and_before_the_next_occurrence() {
    let spread = |jitter_ms, period_ms| {
        let schedule = Schedule { jitter_ms, ..every(period_ms) };
        let times = Times::of(&schedule, 0).unwrap();
        let first = times.next_after(DAY_MS);
        let next = std::iter::successors(first, |next| times.next_after(next.due_at));
        let all: Vec<NextOccurrence> = next.take(500).collect();
        assert!(all.windows(2).all(|two| two[0].fires_at < two[1].due_at));
        all.iter().map(|next| next.fires_at - next.due_at).collect::<Vec<u64>>()
    };
    let waits = spread(10_000, MINUTE_MS);
    assert!(waits.iter().all(|&ms| ms <= 10_000));
    let (low, high) = (waits.iter().min(), waits.iter().max());
    assert!(low < Some(&1_000) && high > Some(&9_000), "{low:?} to {high:?}");
    assert!(spread(DAY_MS, MINUTE_MS).iter().all(|&ms| ms < MINUTE_MS));
    assert!(spread(0, MINUTE_MS).iter().all(|&ms| ms == 0));
}

/// The plan for an occurrence that was due `late_ms` ago.
fn plan(schedule: &Schedule, missed: Missed, due_at: u64, now: u64) -> Plan {
    let plan = Plan::of(&Times::of(schedule, 0).unwrap(), missed, due_at, now);
    if missed != Missed::All {
        assert!(plan.next.is_none_or(|next| next.due_at > now), "the next one is to come");
    }
    plan
}

#[test]
fn an_occurrence_in_time_gets_a_job_whatever_the_rule() {
    let hourly = cron("0 * * * *", "UTC");
    let due = at("2026-11-27T10:00:00Z");
    for missed in Missed::ALL {
        for late_ms in [0, 7, 9_000] {
            let Plan { run, missed, next } = plan(&hourly, *missed, due, due + late_ms);
            assert_eq!((run, missed), (Some(due), 0));
            assert_eq!(next.map(|next| next.due_at), Some(due + HOUR_MS));
        }
    }
}

#[test]
fn of_missed_occurrences_the_latest_gets_a_job_within_an_hour() {
    for schedule in [cron("*/10 * * * *", "UTC"), every(10 * MINUTE_MS)] {
        let due = at("2026-11-27T10:00:00Z");
        let of = |rule, minutes: u64| {
            let Plan { run, missed, next } = plan(&schedule, rule, due, due + minutes * MINUTE_MS);
            (
                run.map(|run| (run - due) / MINUTE_MS),
                missed,
                next.map(|next| (next.due_at - due) / MINUTE_MS),
            )
        };
        assert_eq!(of(Missed::Latest, 9), (Some(0), 0, Some(10)));
        assert_eq!(of(Missed::Latest, 35), (Some(30), 3, Some(40)));
        assert_eq!(of(Missed::None, 35), (None, 4, Some(40)));
        assert_eq!(of(Missed::None, 30), (Some(30), 3, Some(40)), "one of them is in time");
        // One after the other.
        assert_eq!(of(Missed::All, 35), (Some(0), 0, Some(10)));
    }
    let daily = cron("0 3 * * *", "UTC");
    let due = at("2026-11-27T03:00:00Z");
    let late = |ms| plan(&daily, Missed::Latest, due, due + ms);
    assert_eq!((late(HOUR_MS).run, late(HOUR_MS).missed), (Some(due), 0));
    assert_eq!((late(HOUR_MS + 1).run, late(HOUR_MS + 1).missed), (None, 1));
    assert_eq!(late(25 * HOUR_MS).run, Some(due + DAY_MS), "that of today");
    assert_eq!(late(30 * HOUR_MS).missed, 2);
}

/// Whatever moved the time at which it fires: its zone could not be read for a time.
#[test]
fn lateness_counts_from_the_jittered_time() {
    let daily = Schedule { jitter_ms: 6 * HOUR_MS, ..cron("0 3 * * *", "UTC") };
    let times = Times::of(&daily, 0).unwrap();
    let days = std::iter::successors(times.next_after(0), |day| times.next_after(day.due_at));
    let NextOccurrence { due_at, fires_at } =
        days.take(100).find(|day| day.fires_at - day.due_at > 2 * HOUR_MS).unwrap();
    let runs = |rule, now| Plan::of(&times, rule, due_at, now).run == Some(due_at);
    assert!(runs(Missed::Latest, fires_at + HOUR_MS));
    assert!(!runs(Missed::Latest, fires_at + HOUR_MS + 1));
    assert!(runs(Missed::None, fires_at + 10_000));
    assert!(!runs(Missed::None, fires_at + 10_001));
}

#[test]
fn an_occurrence_whose_times_cannot_be_read_is_tried_again_a_minute_later() {
    let next = Some(NextOccurrence { due_at: 7, fires_at: 9 + MINUTE_MS });
    assert_eq!(Plan::try_again(7, 9), Plan { run: None, missed: 0, next });
}

/// After an interruption that ends while the jitter of the latest occurrence passes.
#[test]
fn catching_up_waits_for_the_jitter_of_the_latest_occurrence() {
    let hourly = cron("0 * * * *", "UTC");
    for schedule in [hourly, every(HOUR_MS)] {
        let schedule = Schedule { jitter_ms: HOUR_MS, ..schedule };
        let times = Times::of(&schedule, 0).unwrap();
        let due = at("2026-11-27T10:00:00Z");
        let all: Vec<NextOccurrence> =
            (0..50).map(|n| times.with_jitter(due + n * HOUR_MS)).collect();
        let plan = |rule, due: &NextOccurrence, now| Plan::of(&times, rule, due.due_at, now);
        for rule in [Missed::Latest, Missed::None] {
            for two in all.windows(2) {
                let [first, second] = two else { panic!() };
                let runs = Plan { run: Some(second.due_at), missed: 1, next: None };
                let next = times.next_after(second.due_at);
                assert_eq!(plan(rule, first, second.fires_at), Plan { next, ..runs });
                let waits = Plan { run: None, missed: 1, next: Some(*second) };
                let now = second.fires_at - 1;
                if now >= second.due_at && now > first.fires_at + 10_000 {
                    assert_eq!(plan(rule, first, now), waits, "the latest one is to come");
                }
            }
            let (last, now) = (&all[49], all[49].due_at);
            assert!(last.fires_at > now);
            let waits = Plan { run: None, missed: 49, next: Some(*last) };
            assert_eq!(plan(rule, &all[0], now), waits);
        }
    }
}

/// An owner that is busy for a moment misses nothing, although the next one is due already.
#[test]
fn an_occurrence_with_a_long_jitter_is_in_time_after_the_next_one_is_due() {
    let schedule = Schedule { jitter_ms: MINUTE_MS, ..every(MINUTE_MS) };
    let times = Times::of(&schedule, 0).unwrap();
    let all = std::iter::successors(times.next_after(DAY_MS), |n| times.next_after(n.due_at));
    let last_second = |next: &NextOccurrence| next.fires_at - next.due_at > MINUTE_MS - 1_000;
    let late = all.take(10_000).find(last_second).unwrap();
    let next = times.with_jitter(late.due_at + MINUTE_MS);
    let now = late.fires_at + 1_001;
    assert!(now > next.due_at && now < next.fires_at);
    for rule in Missed::ALL {
        let expected = Plan { run: Some(late.due_at), missed: 0, next: Some(next) };
        assert_eq!(Plan::of(&times, *rule, late.due_at, now), expected);
    }
}

#[test]
fn the_last_occurrence_fires_until_the_end() {
    for room_ms in [0, 7_000] {
        let (jitter_ms, ends_at) = (HOUR_MS, Some(HOUR_MS + room_ms));
        let schedule = Schedule { jitter_ms, ends_at, ..every(HOUR_MS) };
        let last = |n| {
            let name = format!("s{n}");
            let schedule = Schedule { name, ..schedule.clone() };
            let last = Times::of(&schedule, 0).unwrap().next_after(0).unwrap();
            last.fires_at - last.due_at
        };
        let waits: Vec<u64> = (0..200).map(last).collect();
        assert!(waits.iter().all(|&ms| ms <= room_ms), "{waits:?}");
        assert!(waits.iter().any(|&ms| ms * 10 >= room_ms * 9), "{waits:?}");
    }
}

#[test]
fn a_month_of_missed_seconds_is_counted_up_to_a_limit() {
    for schedule in [cron("* * * * * *", "UTC"), every(1_000)] {
        let due = at("2026-11-27T10:00:00Z");
        let now = due + 30 * DAY_MS + 500;
        let Plan { run, missed, next } = plan(&schedule, Missed::Latest, due, now);
        assert_eq!(run, Some(now - 500));
        assert_eq!(next.map(|next| next.due_at), Some(now + 500));
        assert_eq!(missed, 1_000);
    }
    let rarely = cron("50 * * * * *", "UTC");
    let due = at("2026-11-27T10:00:50Z");
    let now = due + 30 * DAY_MS - 5_000;
    assert_eq!(plan(&rarely, Missed::Latest, due, now).run, Some(now - 55_000));
}

#[test]
fn every_missed_occurrence_gets_its_job_in_order() {
    let schedule = cron("*/10 * * * *", "UTC");
    let due = at("2026-11-27T10:00:00Z");
    let now = due + 3 * DAY_MS;
    let (mut next, mut runs) = (due, Vec::new());
    while next <= now {
        let plan = plan(&schedule, Missed::All, next, now);
        runs.extend(plan.run);
        next = plan.next.unwrap().due_at;
    }
    assert_eq!(runs.len(), 3 * 144 + 1);
    assert!(runs.windows(2).all(|two| two[1] == two[0] + 10 * MINUTE_MS));
}

#[test]
fn planning_takes_few_microseconds() {
    let schedule = cron("*/10 * * * *", "Europe/Berlin");
    let due = at("2026-11-27T10:00:00Z");
    let began = std::time::Instant::now();
    for n in 0..1_000 {
        plan(&schedule, Missed::Latest, due + n * 10 * MINUTE_MS, due + n * 10 * MINUTE_MS);
    }
    // Printed, not asserted: it depends on the machine.
    println!("{:?} for each occurrence", began.elapsed() / 1_000);
}
