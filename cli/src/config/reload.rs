//! What becomes of a configuration that is read again while a service runs. Pure.

use std::fmt;

use super::Row;

/// Which service runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// One replica of the resolver.
    Resolver,
    /// A publisher.
    Publisher,
}

/// A key whose value differs from the one in force.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Change {
    pub(crate) key: &'static str,
    was: String,
    is: String,
}

/// What differs, each in the order of the keys.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Plan {
    /// Can be applied at once.
    pub(crate) live: Vec<Change>,
    /// Takes a restart.
    pub(crate) restart: Vec<Change>,
}

/// Compares what is in force with what was read. Keys in `fixed` were said on the service's own
/// command line: the file does not matter to them.
pub(crate) fn plan(service: Service, fixed: &[&str], in_force: &[Row], read: &[Row]) -> Plan {
    let mut plan = Plan::default();
    for (old, new) in in_force.iter().zip(read) {
        if old.value == new.value || !concerns(service, new.key) || fixed.contains(&new.key) {
            continue;
        }
        let change = Change { key: new.key, was: old.text(), is: new.text() };
        let place = if is_live(new.key) { &mut plan.live } else { &mut plan.restart };
        place.push(change);
    }
    plan
}

/// Whether a service looks at a key at all.
fn concerns(service: Service, key: &str) -> bool {
    match service {
        Service::Resolver => {
            let of_server = [
                "log",
                "timing.reader_ttl",
                "timing.writer_ttl",
                "timing.handshake_timeout",
                "timing.request_timeout_min",
            ];
            key.starts_with("resolver.") || of_server.contains(&key)
        }
        Service::Publisher => {
            key.starts_with("publisher.")
                || key.starts_with("timing.")
                || ["log", "resolvers", "data"].contains(&key)
        }
    }
}

/// Whether a key can change while its service runs.
fn is_live(key: &str) -> bool {
    matches!(
        key,
        "log"
            | "resolver.connections_max"
            | "resolver.writers_kept"
            | "resolver.tools_kept"
            | "resolver.watches_max"
            | "resolver.paths_max"
    )
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.key, self.was, self.is)
    }
}

impl fmt::Display for Plan {
    /// As the log puts it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |changes: &[Change]| {
            changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        match (self.live.is_empty(), self.restart.is_empty()) {
            (true, true) => f.write_str("nothing has changed"),
            (false, true) => write!(f, "applied: {}", list(&self.live)),
            (true, false) => write!(f, "nothing applied; needs a restart: {}", list(&self.restart)),
            (false, false) => {
                write!(f, "applied: {}; needs a restart: {}", list(&self.live), list(&self.restart))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::config::{Config, Given, rows};

    fn row(key: &'static str, value: &str) -> Row {
        Row { key, value: json!(value), origin: "somewhere".to_owned() }
    }

    fn keys(changes: &[Change]) -> Vec<&'static str> {
        changes.iter().map(|change| change.key).collect()
    }

    const KEYS: [&str; 9] = [
        "resolvers",
        "data",
        "log",
        "publisher.listen",
        "resolver.listen",
        "resolver.watches_max",
        "timing.writer_ttl",
        "timing.tries",
        "resolver.name",
    ];

    #[test]
    fn each_service_is_told_what_concerns_it_and_nothing_that_its_command_line_has_said() {
        let in_force = KEYS.map(|key| row(key, "old"));
        let mut read = KEYS.map(|key| row(key, "new"));
        let found = plan(Service::Resolver, &["resolver.listen"], &in_force, &read);
        assert_eq!(keys(&found.live), ["log", "resolver.watches_max"]);
        assert_eq!(keys(&found.restart), ["timing.writer_ttl", "resolver.name"]);

        let found = plan(Service::Publisher, &["data"], &in_force, &read);
        assert_eq!(keys(&found.live), ["log"]);
        assert_eq!(
            keys(&found.restart),
            ["resolvers", "publisher.listen", "timing.writer_ttl", "timing.tries"]
        );

        read = KEYS.map(|key| Row { origin: "elsewhere".to_owned(), ..row(key, "old") });
        assert_eq!(plan(Service::Resolver, &[], &in_force, &read), Plan::default());
    }

    #[test]
    fn one_line_says_what_was_applied_and_what_was_not() {
        let in_force = [row("log", "info"), row("resolver.name", "a")];
        let said = |log, name| {
            plan(Service::Resolver, &[], &in_force, &[row("log", log), row("resolver.name", name)])
                .to_string()
        };
        assert_eq!(said("info", "a"), "nothing has changed");
        assert_eq!(said("debug", "a"), "applied: log from info to debug");
        assert_eq!(
            said("info", "b"),
            "nothing applied; needs a restart: resolver.name from a to b"
        );
        assert_eq!(
            said("debug", "b"),
            "applied: log from info to debug; needs a restart: resolver.name from a to b"
        );
    }

    #[test]
    fn the_page_for_operators_names_every_key_that_can_change_and_every_number() {
        let page = include_str!("../../../docs/RESOLVER.md");
        let row = page.lines().find(|line| line.starts_with("| `log`; of a replica")).unwrap();
        let (_, numbers) = page.split_once("## The numbers").unwrap();
        let config = Config::resolve(&Given::default(), &BTreeMap::new()).unwrap();
        for Row { key, .. } in rows(&config) {
            assert_eq!(row.contains(&format!("`{key}`")), is_live(key), "{key}");
            if let Some((section, name)) = key.split_once('.')
                && ["reader", "writer", "timeout", "wait", "tries", "max"]
                    .iter()
                    .any(|n| name.contains(n))
                && (section != "publisher" || key.ends_with("clock_skew_max"))
            {
                let name = name.strip_prefix("retry_wait").unwrap_or(name);
                assert!(numbers.contains(name), "{key}");
            }
        }
    }
}
