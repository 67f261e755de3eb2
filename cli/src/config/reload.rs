//! Compares a reloaded configuration with the one in force, without side effects.

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
pub(crate) struct KeyChange {
    pub(crate) key: &'static str,
    old: String,
    new: String,
}

/// The keys that differ, in their order.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct ReloadPlan {
    /// Keys that can be applied at once.
    pub(crate) live: Vec<KeyChange>,
    /// Keys that need a restart.
    pub(crate) restart: Vec<KeyChange>,
}

/// Compares the configuration in force with the one just read. Keys in `fixed` were set on the
/// service's own command line, which takes precedence over the file.
pub(crate) fn plan_reload(
    service: Service,
    fixed: &[&str],
    in_force: &[Row],
    read: &[Row],
) -> ReloadPlan {
    let mut plan = ReloadPlan::default();
    for (old, new) in in_force.iter().zip(read) {
        if old.value == new.value || !concerns(service, new.key) || fixed.contains(&new.key) {
            continue;
        }
        let change = KeyChange { key: new.key, old: old.text(), new: new.text() };
        let changes = if is_live(new.key) { &mut plan.live } else { &mut plan.restart };
        changes.push(change);
    }
    plan
}

/// Whether a service reads a key.
fn concerns(service: Service, key: &str) -> bool {
    // The files of `[tls]` and `[access]` are read again; which files these are needs a restart.
    if ["cluster", "token_file"].contains(&key)
        || key.starts_with("tls.")
        || key.starts_with("access.")
    {
        return true;
    }
    match service {
        Service::Resolver => {
            let of_server = [
                "log",
                "log_format",
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
                || ["log", "log_format", "resolvers", "data", "homes"].contains(&key)
        }
    }
}

/// Whether a key can change while its service runs.
fn is_live(key: &str) -> bool {
    matches!(
        key,
        "log"
            | "resolver.connections_max"
            | "resolver.writers_reserved"
            | "resolver.tools_reserved"
            | "resolver.watches_max"
            | "resolver.paths_max"
    )
}

impl fmt::Display for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.key, self.old, self.new)
    }
}

impl fmt::Display for ReloadPlan {
    /// The text of the log line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |changes: &[KeyChange]| {
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
    use crate::config::{Config, ConfigOverrides, rows};

    fn row(key: &'static str, value: &str) -> Row {
        Row { key, value: json!(value), origin: "somewhere".to_owned() }
    }

    fn keys(changes: &[KeyChange]) -> Vec<&'static str> {
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
    fn a_reload_ignores_unrelated_keys_and_those_set_by_flags() {
        let in_force = KEYS.map(|key| row(key, "old"));
        let mut read = KEYS.map(|key| row(key, "new"));
        let found = plan_reload(Service::Resolver, &["resolver.listen"], &in_force, &read);
        assert_eq!(keys(&found.live), ["log", "resolver.watches_max"]);
        assert_eq!(keys(&found.restart), ["timing.writer_ttl", "resolver.name"]);

        let found = plan_reload(Service::Publisher, &["data"], &in_force, &read);
        assert_eq!(keys(&found.live), ["log"]);
        assert_eq!(
            keys(&found.restart),
            ["resolvers", "publisher.listen", "timing.writer_ttl", "timing.tries"]
        );

        read = KEYS.map(|key| Row { origin: "elsewhere".to_owned(), ..row(key, "old") });
        assert_eq!(plan_reload(Service::Resolver, &[], &in_force, &read), ReloadPlan::default());
    }

    #[test]
    fn one_line_reports_applied_keys_and_pending_restarts() {
        let in_force = [row("log", "info"), row("resolver.name", "a")];
        let report = |log, name| {
            plan_reload(
                Service::Resolver,
                &[],
                &in_force,
                &[row("log", log), row("resolver.name", name)],
            )
            .to_string()
        };
        assert_eq!(report("info", "a"), "nothing has changed");
        assert_eq!(report("debug", "a"), "applied: log from info to debug");
        assert_eq!(
            report("info", "b"),
            "nothing applied; needs a restart: resolver.name from a to b"
        );
        assert_eq!(
            report("debug", "b"),
            "applied: log from info to debug; needs a restart: resolver.name from a to b"
        );
    }

    #[test]
    fn resolver_page_lists_every_reloadable_key() {
        let page = include_str!("../../../docs/RESOLVER.md");
        let row = page.lines().find(|line| line.starts_with("| `log`; of a replica")).unwrap();
        let config = Config::resolve(&ConfigOverrides::default(), &BTreeMap::new()).unwrap();
        for Row { key, .. } in rows(&config) {
            assert_eq!(row.contains(&format!("`{key}`")), is_live(key), "{key}");
        }
    }
}
