//! The terms with which a publisher registers its paths.

use std::time::Duration;

use longshore_protocol::frame::{FrameWriter, Messages};
use longshore_protocol::messages::resolver::{
    Announced, Change, Digest, FromReplica, ToReplica, Written,
};
use longshore_protocol::{Homes, Path, PublicationKind, Role, Terms};
use longshore_publisher::{Publisher, PublisherOptions, ValueOptions, ValuePublisher};
use longshore_resolver::Cluster;
use longshore_transport::{Listener, ListenerOptions, ServerInfo};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

/// A replica that records everything that is published, until it has `count` changes.
async fn answer(mut listener: Listener, count: usize) -> Vec<(Change, Terms, String)> {
    let (sender, mut receiver) = listener.accept().await.split();
    let mut answer = Vec::new();
    while answer.len() < count {
        for message in Messages::new(receiver.recv().await.unwrap()) {
            let (tag, body) = message.unwrap();
            let answer = match ToReplica::decode(tag, body).unwrap() {
                Some(ToReplica::Announce(announce)) => FromReplica::Announced(Announced {
                    id: announce.id,
                    stored: vec![Digest::default()],
                    writer_ttl_ms: 120_000,
                }),
                Some(ToReplica::Write(write)) => {
                    let before = answer.len();
                    for group in write.groups {
                        let path =
                            |path: &str| (group.change, group.terms.clone(), path.to_owned());
                        answer.extend(group.paths.iter().map(|text| path(text.as_str().unwrap())));
                    }
                    let done = (answer.len() - before) as u64;
                    FromReplica::Written(Written {
                        id: write.id,
                        last: true,
                        done,
                        refused: Vec::new(),
                    })
                }
                other => panic!("a publisher sent {other:?}"),
            };
            let mut out = FrameWriter::new();
            answer.encode(&mut out);
            sender.send(out.finish()).unwrap();
        }
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_and_defaults_are_published_with_their_terms() {
    let info = ServerInfo {
        instance: [1; 16],
        epoch: 0,
        name: "replica".into(),
        serves: |role| role == Role::ResolverWriter,
    };
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(address, info, ListenerOptions::default()).unwrap();
    let cluster = Cluster::new([listener.local_address().to_string()]);

    let dir = tempfile::tempdir().unwrap();
    let names = vec!["right".into(), "left".into()];
    let homes = Homes::new([("/jobs/*".parse().unwrap(), names)]).unwrap();
    let publisher = Publisher::open(PublisherOptions {
        paths: vec![Path::new("/jobs/mail").unwrap()],
        defaults: vec![Path::new("/jobs").unwrap()],
        homes: homes.clone(),
        priority: 3,
        weight: 7,
        cluster: Some(cluster),
        ..PublisherOptions::new(dir.path())
    })
    .await
    .unwrap();
    let mut answer = timeout(PATIENCE, answer(listener, 3)).await.unwrap();
    answer.sort_by(|a, b| a.2.cmp(&b.2));
    // Its own metrics are values, which have no homes.
    let metrics =
        Terms { kind: PublicationKind::Value, priority: 3, weight: 7, ..Terms::default() };
    let terms = Terms { homes, priority: 3, weight: 7, ..Terms::default() };
    assert_eq!(
        answer,
        [
            (Change::PublishDefault, terms.clone(), "/jobs".into()),
            (Change::Publish, terms, "/jobs/mail".into()),
            (Change::PublishDefault, metrics, "/sys/publishers/publisher".into()),
        ]
    );
    drop(publisher);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_published_with_default_or_own_terms() {
    let info = ServerInfo {
        instance: [1; 16],
        epoch: 0,
        name: "replica".into(),
        serves: |role| role == Role::ResolverWriter,
    };
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(address, info, ListenerOptions::default()).unwrap();
    let publisher = ValuePublisher::builder()
        .usual(ValueOptions { priority: 3, weight: 7 })
        .connect(Cluster::new([listener.local_address().to_string()]))
        .await
        .unwrap();
    let values = publisher.values();
    let path = |text| Path::new(text).unwrap();
    let _usual = values.publish(path("/usual"), 1u64).unwrap();
    let options = ValueOptions { priority: 1, weight: 0 };
    let _own = values.publish_with(path("/own"), 1u64, options).unwrap();
    let _made = values.publish_default(path("/made")).unwrap();
    let mut answer = timeout(PATIENCE, answer(listener, 3)).await.unwrap();
    answer.sort_by(|a, b| a.2.cmp(&b.2));
    let terms = |priority, weight| {
        let kind = PublicationKind::Value;
        Terms { kind, priority, weight, ..Terms::default() }
    };
    assert_eq!(
        answer,
        [
            (Change::PublishDefault, terms(3, 7), "/made".into()),
            (Change::Publish, terms(1, 0), "/own".into()),
            (Change::Publish, terms(3, 7), "/usual".into()),
        ]
    );
}
