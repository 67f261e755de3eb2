//! Publishers on copies of one journal. Each has an id of its own, and both deliver the jobs that
//! were open when the journal was copied.

use std::collections::BTreeMap;

use longshore::protocol::messages::work::PublisherStatus;
use longshore::{PublisherAnswer, PublisherId, Queues};

/// The publishers that serve a journal of another, by journal.
pub(super) fn shared_journals(
    answers: &[PublisherAnswer<PublisherStatus>],
) -> BTreeMap<PublisherId, Vec<String>> {
    let mut journals: BTreeMap<PublisherId, Vec<String>> = BTreeMap::new();
    for PublisherAnswer { publisher, answer } in answers {
        let name = format!("{} ({})", publisher.name, publisher.id.prefix());
        journals.entry(answer.journal).or_default().push(name);
    }
    journals.retain(|_, publishers| publishers.len() > 1);
    journals
}

/// What is wrong with these publishers, and the remedy.
pub(super) fn warning(publishers: &[String]) -> String {
    format!(
        "{} serve copies of one journal: jobs that were open when it was copied run at each of \
         them. Stop all but one, and: longshore publisher forget ID",
        publishers.join(" and ")
    )
}

/// Warns in the log if another publisher serves the journal of this one.
pub(super) async fn warn_at_start(queues: Queues, publisher: PublisherId) {
    let Ok(status) = queues.status().await else { return };
    let own = status.answers.iter().find(|answered| answered.publisher.id == publisher);
    let Some(journal) = own.map(|answered| answered.answer.journal) else { return };
    if let Some(publishers) = shared_journals(&status.answers).get(&journal) {
        tracing::warn!("publishers {}", warning(publishers));
    }
}
