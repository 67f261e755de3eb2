//! Questions other than resolving paths, and requests that a replica refuses.

use longshore_protocol::Path;
use longshore_protocol::messages::resolver::{
    self as wire, Column, FromReplica, Listed, RequestRefusal, TableAnswer,
};

use super::{FOUND, Scenario, found, tracker};
use crate::read_client::answer::{Answer, PathTable, ReadError};
use crate::read_client::core::{Event, Question};

#[test]
fn listings_of_warming_replicas_are_merged() {
    let listed = |id, paths: &[(&str, bool)]| {
        let listed = |&(path, published): &(&str, bool)| wire::PathListed {
            path: Path::new(path).unwrap(),
            queue: published,
            value: false,
            default: false,
        };
        let paths = paths.iter().map(listed).collect();
        FromReplica::Listed(Listed { id, last: true, complete: false, tracker: tracker(), paths })
    };
    let mut scenario = Scenario::new(2, 7);
    scenario.step(Event::Ask { batch: 1, question: Question::List(Path::root()) });
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    scenario.received(listed(id, &[("/b", false), ("/c", true)]));
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    scenario.received(listed(id, &[("/a", true), ("/b", true)]));
    let Ok(Answer::Listed(listing)) = scenario.only_answer() else { panic!("no listing") };
    let paths: Vec<_> = listing.paths.iter().map(|p| (p.path.as_str(), p.published())).collect();
    assert_eq!(paths, [("/a", true), ("/b", true), ("/c", true)]);
    assert!(!listing.complete);
}

#[test]
fn a_refused_request_fails_without_effect_on_the_link() {
    for code in [RequestRefusal::Malformed, RequestRefusal::Forbidden] {
        let mut scenario = Scenario::new(2, 7);
        scenario.ask(1, 1);
        scenario.ask(2, 1);
        scenario.linked();
        let (id, _) = scenario.requests.remove(0);
        scenario.received(FromReplica::Refused { id, code, reason: String::from("why") });
        let refused = scenario.only_answer();
        assert!(matches!(refused, Err(ReadError::Refused { reason, .. }) if reason == "why"));
        scenario.answer(true, FOUND);
        assert_eq!(scenario.complete().1, [found(false)]);
        assert_eq!(scenario.dialled.len(), 1);
    }
}

fn table(
    id: u64,
    last: bool,
    complete: bool,
    rows: &[&str],
    columns: &[(&str, u64)],
) -> FromReplica {
    let rows = rows.iter().map(|&row| row.to_owned()).collect();
    let column = |&(name, rows): &(&str, u64)| Column { name: name.to_owned(), rows };
    let columns = columns.iter().map(column).collect();
    FromReplica::Table(TableAnswer { id, last, complete, tracker: tracker(), rows, columns })
}

fn columns(table: &PathTable) -> Vec<(&str, u64)> {
    table.columns.iter().map(|column| (column.name.as_str(), column.rows)).collect()
}

#[test]
fn a_table_of_one_replica_adds_up_its_parts() {
    let mut scenario = Scenario::new(2, 7);
    scenario.step(Event::Ask { batch: 1, question: Question::Table(Path::root()) });
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    scenario.received(table(id, false, true, &["b", "a"], &[("size", 2), ("age", 1)]));
    scenario.received(table(id, true, true, &["c"], &[("age", 1)]));
    let Ok(Answer::Table(table)) = scenario.only_answer() else { panic!("no table") };
    assert_eq!(table.rows, ["a", "b", "c"]);
    assert_eq!(columns(&table), [("age", 2), ("size", 2)]);
    assert!(table.complete);
}

#[test]
fn tables_of_warming_replicas_are_merged() {
    let mut scenario = Scenario::new(2, 7);
    scenario.step(Event::Ask { batch: 1, question: Question::Table(Path::root()) });
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    scenario.received(table(id, false, false, &["a"], &[("age", 1)]));
    scenario.received(table(id, true, false, &["b"], &[("age", 1), ("size", 1)]));
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    scenario.received(table(id, false, false, &["c"], &[("age", 1)]));
    scenario.received(table(id, true, false, &["a"], &[("age", 1), ("name", 1)]));
    let Ok(Answer::Table(table)) = scenario.only_answer() else { panic!("no table") };
    assert_eq!(table.rows, ["a", "b", "c"]);
    // Whether both counted the same two rows is unknown: it is at least two.
    assert_eq!(columns(&table), [("age", 2), ("name", 1), ("size", 1)]);
    assert!(!table.complete);
}

#[test]
fn a_request_unknown_or_refused_as_busy_goes_to_another_replica() {
    for code in [RequestRefusal::UnknownRequest, RequestRefusal::Busy] {
        let mut scenario = Scenario::new(3, 7);
        let begun = scenario.now;
        scenario.ask(1, 1);
        for nth in 0..3 {
            scenario.linked();
            let (id, _) = scenario.requests.remove(0);
            if nth == 2 && code == RequestRefusal::Busy {
                scenario.requests.insert(0, (id, 1));
                scenario.answer(true, FOUND);
                assert_eq!(scenario.complete().1, [found(false)]);
                break;
            }
            scenario.received(FromReplica::Refused { id, code, reason: "not here".into() });
        }
        assert_eq!((scenario.dialled.len(), scenario.now), (3, begun), "at once");
        if code == RequestRefusal::UnknownRequest {
            let replica = format!("replica-{}:4800", scenario.replica());
            let reason = String::from("not here");
            assert_eq!(scenario.only_answer(), Err(ReadError::Refused { replica, reason }));
        }
    }
}

#[test]
fn a_request_that_the_only_replica_refuses_fails_at_once() {
    let mut scenario = Scenario::new(1, 7);
    scenario.ask(1, 1);
    scenario.ask(2, 1);
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    let code = RequestRefusal::Busy;
    scenario.received(FromReplica::Refused { id, code, reason: "full".into() });
    assert!(matches!(scenario.only_answer(), Err(ReadError::Refused { .. })));
    scenario.answer(true, FOUND);
    assert!(scenario.only_answer().is_ok());
    assert_eq!(scenario.dialled.len(), 1);
}
