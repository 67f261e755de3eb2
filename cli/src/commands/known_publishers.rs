//! Which publishers the replicas know. Replicas do not know each other: one that no publisher names
//! in `resolvers` is healthy and finds nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore::{KnownPublisher, PublisherId, ReadClient, ReplicaError};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Context;

/// How long a note waits for each replica.
const NOTE_ANSWER_MAX: Duration = Duration::from_secs(2);
/// Most publishers that a message names.
const NAMED_MAX: usize = 8;

/// What publishers of queues and replicas have to do so that both know each other.
const REMEDY: &str = "add it to --resolver, or `resolvers` in the configuration file, of every \
                      publisher, and restart these one at a time";

/// A replica, and the publishers that it knows, or why it did not answer.
pub(super) type Answer = (String, Result<Vec<KnownPublisher>, ReplicaError>);

/// Asks each replica, in their order.
pub(super) async fn query_all(client: &ReadClient, replicas: Vec<String>) -> Vec<Answer> {
    let mut queries = JoinSet::new();
    for (index, replica) in replicas.into_iter().enumerate() {
        let client = client.clone();
        queries.spawn(async move {
            let known = client.publishers_known(&replica).await;
            (index, (replica, known))
        });
    }
    let mut answers = queries.join_all().await;
    answers.sort_unstable_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// The registered publishers of queues. Those of values alone do not count: a replica publishes its
/// own metrics, perhaps only at itself.
fn registered(known: &[KnownPublisher]) -> impl Iterator<Item = &KnownPublisher> {
    known.iter().filter(|one| one.departure.is_none() && !one.declared.is_empty())
}

/// A replica that lacks publishers.
pub(super) struct Gap {
    pub(super) replica: String,
    /// Publishers that are registered at another replica and not at this one.
    lacks: Vec<String>,
}

impl Gap {
    /// What is wrong, and the remedy.
    pub(super) fn message(&self) -> String {
        let shown = self.lacks.len().min(NAMED_MAX);
        let mut names = self.lacks[..shown].join(", ");
        if self.lacks.len() > shown {
            names.push_str(&format!(" and {} more", self.lacks.len() - shown));
        }
        format!(
            "it does not know publisher {names}, and whoever asks it does not find the queues \
             there: {REMEDY}; a publisher that has just started needs some seconds"
        )
    }
}

/// The replicas that do not know every registered publisher of queues.
pub(super) fn gaps(answers: &[Answer]) -> Vec<Gap> {
    let mut all: BTreeMap<PublisherId, &str> = BTreeMap::new();
    for known in answers.iter().filter_map(|(_, known)| known.as_ref().ok()) {
        all.extend(registered(known).map(|one| (one.info.id, one.info.name.as_str())));
    }
    let gap_of = |(replica, known): &Answer| {
        let known = known.as_ref().ok()?;
        let is_known = |id: &PublisherId| registered(known).any(|one| one.info.id == *id);
        let lacks = all.iter().filter(|(id, _)| !is_known(id));
        let lacks = lacks.map(|(id, name)| format!("{name} ({})", id.prefix()));
        Some(Gap { replica: replica.clone(), lacks: lacks.collect() })
    };
    answers.iter().filter_map(gap_of).filter(|gap| !gap.lacks.is_empty()).collect()
}

/// For a command that found nothing: notes which replicas know no publisher.
pub(super) fn note_if_none(context: &Context) -> impl Future<Output = ()> + use<> {
    note_if_none_at(context.read_client(), context.cluster().replicas)
}

async fn note_if_none_at(client: ReadClient, replicas: Vec<String>) {
    let count = replicas.len();
    let Ok(answers) = timeout(NOTE_ANSWER_MAX, query_all(&client, replicas)).await else { return };
    let knows_none = |(replica, known): &Answer| {
        let none = known.as_ref().is_ok_and(|known| registered(known).next().is_none());
        none.then(|| replica.clone())
    };
    let empty: Vec<String> = answers.iter().filter_map(knows_none).collect();
    if empty.is_empty() {
        return;
    }
    let start = match empty.len() == count {
        true => "start one (longshore publisher run), or, if there are some, ",
        false => "",
    };
    report_note!(
        "replica {} knows no publisher, and so finds nothing: {start}{REMEDY}; longshore check \
         compares the replicas that --resolver names",
        empty.join(", "),
    );
}

#[cfg(test)]
mod tests {
    use longshore::protocol::messages::resolver::Declared;
    use longshore::protocol::{Epoch, PublisherInfo};
    use longshore::{Departure, Path};

    use super::*;

    fn publisher(n: u8, declared: &[&str], departure: Option<Departure>) -> KnownPublisher {
        let id = PublisherId([n; 16]);
        let paths = declared.iter().map(|path| Path::new(path).unwrap()).collect();
        KnownPublisher {
            info: PublisherInfo::new(id, Epoch(1), format!("p{n}"), [([127, 0, 0, 1], 4780)]),
            registrations: 1,
            silent_ms: 0,
            departure,
            declared: Declared { defaults: paths, ..Declared::default() },
        }
    }

    #[test]
    fn a_replica_lacks_the_publishers_of_queues_that_another_one_knows() {
        let of_queues = |n| publisher(n, &["/"], None);
        let missing = publisher(2, &["/"], Some(Departure::Silent));
        let answers = [
            ("old:1".to_owned(), Ok(vec![of_queues(1), of_queues(2), publisher(3, &[], None)])),
            ("behind:1".to_owned(), Ok(vec![of_queues(1), missing])),
            ("new:1".to_owned(), Ok(vec![publisher(4, &[], None)])),
            ("down:1".to_owned(), Err(ReplicaError::Silent(NOTE_ANSWER_MAX))),
        ];
        let gaps: Vec<_> = gaps(&answers).into_iter().map(|gap| (gap.replica, gap.lacks)).collect();
        let (p1, p2) = ("p1 (01010101)".to_owned(), "p2 (02020202)".to_owned());
        let expected =
            [("behind:1".to_owned(), vec![p2.clone()]), ("new:1".to_owned(), vec![p1, p2])];
        assert_eq!(gaps, expected);
    }
}
