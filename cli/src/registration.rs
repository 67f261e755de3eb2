//! Whether a publisher is registered at the resolver when it starts.

use std::time::Duration;

use longshore::{PublicationStatus, ReplicaHealth, WriteClient};
use serde_json::{Value, json};
use tokio::time::timeout;

/// How long a start waits for the first replica. A publisher serves without a resolver too: its
/// links with workers and producers go on.
const FIRST_REPLICA_WAIT: Duration = Duration::from_secs(3);
/// How long it then waits for the others, so that clients of any replica find it.
const OTHER_REPLICAS_WAIT: Duration = Duration::from_secs(1);

/// The replicas that know a publisher, and those that do not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Registration {
    registered: Vec<String>,
    /// With the reason, if one is known.
    missing: Vec<(String, Option<String>)>,
}

impl Registration {
    /// Waits until the replicas have acknowledged what the publisher registers, for a few seconds.
    pub(crate) async fn complete(client: Option<&WriteClient>) -> Registration {
        let Some(client) = client else { return Registration::of(&[]) };
        if timeout(FIRST_REPLICA_WAIT, client.flushed(1)).await.is_ok() {
            let all = client.status().len();
            let _ = timeout(OTHER_REPLICAS_WAIT, client.flushed(all)).await;
        }
        let registration = Registration::of(&client.status());
        if registration.registered.is_empty() {
            tracing::warn!("{registration}");
        }
        registration
    }

    /// The registration that these states show.
    pub(crate) fn of(replicas: &[PublicationStatus]) -> Registration {
        let (mut registered, mut missing) = (Vec::new(), Vec::new());
        for status in replicas {
            let connected = matches!(status.health, ReplicaHealth::Connected { .. });
            match connected && status.pending == 0 {
                true => registered.push(status.replica.clone()),
                false => missing.push((status.replica.clone(), status.last_error.clone())),
            }
        }
        Registration { registered, missing }
    }

    /// The replicas that know the publisher.
    pub(crate) fn json(&self) -> Value {
        json!(self.registered)
    }

    /// In a few words.
    pub(crate) fn brief(&self) -> String {
        let (registered, all) = (self.registered.len(), self.registered.len() + self.missing.len());
        match registered {
            0 => format!("not registered at any of {all} replicas"),
            _ => format!("registered at {registered} of {all} replicas"),
        }
    }
}

impl std::fmt::Display for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let missing = self.missing.iter().map(|(replica, why)| match why {
            Some(why) => format!("{replica} ({why})"),
            None => format!("{replica} (no answer)"),
        });
        let missing = missing.collect::<Vec<_>>().join(", ");
        match (self.registered.is_empty(), self.missing.is_empty()) {
            (true, _) => write!(
                f,
                "NOT REGISTERED: no replica of the resolver has answered: {missing}; the publisher \
                 serves, and registers as soon as one answers"
            ),
            (false, true) => write!(f, "registered at {}", self.registered.join(", ")),
            (false, false) => {
                write!(f, "registered at {}; not yet at {missing}", self.registered.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn status(replica: &str, connected: bool, pending: usize, why: &str) -> PublicationStatus {
        let since = Instant::now();
        PublicationStatus {
            replica: replica.to_owned(),
            health: match connected {
                true => ReplicaHealth::Connected { since },
                false => ReplicaHealth::Connecting { since },
            },
            pending,
            refused: 0,
            last_error: (!why.is_empty()).then(|| why.to_owned()),
        }
    }

    #[test]
    fn registered_is_connected_with_nothing_pending() {
        let all = [
            status("a:1", true, 0, "an earlier error"),
            status("b:1", true, 3, ""),
            status("c:1", false, 0, "connection refused"),
        ];
        let some = Registration::of(&all);
        assert_eq!(
            some.to_string(),
            "registered at a:1; not yet at b:1 (no answer), c:1 (connection refused)"
        );
        assert_eq!(
            (some.brief().as_str(), some.json()),
            ("registered at 1 of 3 replicas", json!(["a:1"]))
        );
        let none = Registration::of(&all[2..]).to_string();
        assert!(none.starts_with("NOT REGISTERED") && none.contains("c:1 (connection refused)"));
        assert_eq!(Registration::of(&all[..1]).to_string(), "registered at a:1");
    }
}
