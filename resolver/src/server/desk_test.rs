//! The desk in virtual time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_protocol::frame::{FrameWriter, Messages};
use longshore_protocol::messages::resolver::{
    Change, FromReplica, ToReplica, WatchPaths, WatchPublishers,
};
use longshore_protocol::{
    Epoch, Glob, Incarnation, Path, PublisherId, PublisherInfo, Role, SessionId,
};
use longshore_transport::{Identity, LinkReceiver, LinkSender, Listener, ListenerOptions};
use tokio::sync::{Semaphore, mpsc};

use crate::Cluster;
use crate::directory::{Client, Directory, Rules};
use crate::replica_link::{Caller, connect, now};
use crate::server::desk::{Desk, SAID_MAX, SWEPT_MAX, Said};
use crate::slept::pretended;

const TTL: Duration = Duration::from_secs(120);
const STAND_STILL_MAX: Duration = Duration::from_secs(15);

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn info(number: u8) -> PublisherInfo {
    PublisherInfo::new(
        PublisherId([number; 16]),
        Epoch(1),
        format!("publisher-{number}"),
        [([127, 0, 0, 1], 4000)],
    )
}

/// A desk that is complete, and one publisher, heard of just now. Nobody but the test moves the
/// clock on.
struct Scenario {
    desk: Desk,
    said: mpsc::Sender<Said>,
}

impl Scenario {
    async fn new() -> Scenario {
        let mut scenario = Scenario::begin(true);
        scenario.pass_until(now() + secs(1)).await;
        scenario
    }

    fn begin(fresh: bool) -> Scenario {
        let rules = Rules {
            writer_ttl: TTL,
            stand_still_max: STAND_STILL_MAX,
            fresh,
            publishers_max: 8,
            paths_max: 100_000,
            watches_max: 100_000,
        };
        let directory = Directory::new(now(), Incarnation([1; 16]), rules);
        let (said, received) = mpsc::channel(SAID_MAX);
        let desk = Desk::new("left".into(), directory, received, said.downgrade());
        let mut scenario = Scenario { desk, said };
        scenario.announce(1);
        scenario
    }

    fn announce(&mut self, number: u8) {
        let client = Client(number.into());
        self.desk.directory.announce(now(), client, &info(number), &[]).unwrap();
    }

    /// The publisher says something now.
    async fn hear(&mut self, number: u8) {
        self.ask(Client(number.into()), ToReplica::Status { id: 1 }).await;
    }

    async fn ask(&mut self, client: Client, request: ToReplica) {
        let mut out = FrameWriter::new();
        request.encode(&mut out);
        self.say(client, out).await;
    }

    async fn say(&mut self, client: Client, out: FrameWriter) {
        let none = Arc::new(Semaphore::new(0)).try_acquire_many_owned(0);
        let (messages, counted) = (Messages::new(out.into_body()), none.unwrap());
        let said = Said::Frame { client, messages, at: now(), counted };
        self.said.send(said).await.unwrap();
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.desk.requests.get().iter().filter(|(_, count)| *count > 0).collect()
    }

    fn sees(&self, number: u8) -> bool {
        self.desk.directory.writer(Client(number.into())).is_ok()
    }

    fn is_complete(&self) -> bool {
        self.desk.directory.is_complete()
    }

    /// A publisher that stops with more paths than one pass takes out.
    async fn give_work(&mut self) {
        self.announce(2);
        let slot = self.desk.directory.writer(Client(2)).unwrap();
        for n in 0..5 * SWEPT_MAX {
            let path = Path::new(&format!("/jobs/{n}")).unwrap();
            self.desk.directory.change(slot, Change::Publish, &path).unwrap();
        }
        self.desk.directory.clear(Client(2)).unwrap();
        self.said.send(Said::Ready { client: Client(9) }).await.unwrap();
        self.pass().await;
        assert!(self.desk.sweeping);
    }

    /// One pass. A desk that waits for an hour, though nothing is said to it, would wait for ever.
    async fn pass(&mut self) {
        let pass = tokio::time::timeout(secs(3_600), self.desk.pass());
        assert_eq!(pass.await, Ok(true));
        self.desk.invariant();
    }

    /// The desk at work, with nothing said to it, for as long.
    async fn pass_until(&mut self, end: Instant) {
        while now() < end {
            let pass = tokio::time::timeout_at(end.into(), self.desk.pass());
            let passed = pass.await;
            self.desk.invariant();
            if passed.is_err() {
                // It waits for longer. Once more with the clock at the end, as a shell would that
                // is asked at that moment.
                self.said.send(Said::Ready { client: Client(9) }).await.unwrap();
                self.pass().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_publisher_is_hidden_in_time_by_a_desk_that_never_stood_still() {
    let mut scenario = Scenario::new().await;
    scenario.pass_until(now() + TTL - secs(2)).await;
    assert!(scenario.sees(1));
    scenario.pass_until(now() + secs(1)).await;
    assert!(!scenario.sees(1));
}

#[tokio::test(start_paused = true)]
async fn a_desk_that_stood_still_with_nothing_to_do_hides_nobody() {
    let mut scenario = Scenario::new().await;
    scenario.pass_until(now() + secs(59)).await;
    tokio::time::advance(secs(200)).await;
    scenario.pass().await;
    assert!(scenario.sees(1));
    // A minute was left, and is left still; it is over then.
    scenario.pass_until(now() + secs(59)).await;
    assert!(scenario.sees(1), "the time that the replica stood still counts for nobody");
    scenario.pass_until(now() + secs(2)).await;
    assert!(!scenario.sees(1));
}

#[tokio::test(start_paused = true)]
async fn a_publisher_heard_first_after_a_stand_still_has_its_time_from_then_on_and_no_more() {
    // The desk may come to what was said before it comes to its look at the clock, or after.
    for _ in 0..16 {
        let mut scenario = Scenario::new().await;
        scenario.pass_until(now() + secs(59)).await;
        tokio::time::advance(secs(200)).await;
        scenario.hear(1).await;
        scenario.pass().await;
        let heard = now();
        scenario.pass_until(heard + TTL - Duration::from_millis(1)).await;
        assert!(scenario.sees(1));
        scenario.pass_until(heard + TTL).await;
        assert!(!scenario.sees(1), "it has been silent for all of it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_desk_that_stood_still_with_work_to_do_hides_nobody() {
    let mut scenario = Scenario::new().await;
    scenario.give_work().await;
    for _ in 0..2 {
        tokio::time::advance(secs(200)).await;
        scenario.pass().await;
        assert!(scenario.desk.sweeping && scenario.sees(1));
    }
    scenario.pass_until(now() + secs(121)).await;
    assert!(!scenario.sees(1));
}

#[tokio::test(start_paused = true)]
async fn after_a_long_stand_still_the_replica_warms_for_half_a_writer_ttl() {
    let mut scenario = Scenario::new().await;
    tokio::time::advance(STAND_STILL_MAX - secs(1)).await;
    scenario.pass().await;
    assert!(scenario.is_complete(), "its writers have not given up yet");
    tokio::time::advance(STAND_STILL_MAX + secs(1)).await;
    scenario.pass().await;
    assert!(!scenario.is_complete(), "what was published meanwhile it does not know");
    scenario.pass_until(now() + TTL / 2 - secs(1)).await;
    assert!(!scenario.is_complete());
    scenario.pass_until(now() + secs(2)).await;
    assert!(scenario.is_complete());
}

#[tokio::test(start_paused = true)]
async fn a_stand_still_while_warming_is_made_up_for() {
    let mut scenario = Scenario::new().await;
    tokio::time::advance(secs(16)).await;
    scenario.pass().await;
    scenario.pass_until(now() + secs(55)).await;
    // Short enough to be no reason to warm anew, and yet nobody could be heard meanwhile.
    tokio::time::advance(secs(14)).await;
    scenario.pass().await;
    scenario.pass_until(now() + secs(4)).await;
    assert!(!scenario.is_complete());
    scenario.pass_until(now() + secs(2)).await;
    assert!(scenario.is_complete());
}

/// The clock by which the desk does everything stands still while its machine sleeps: it has to ask
/// the other one.
#[tokio::test(start_paused = true)]
async fn after_the_machine_slept_for_long_the_replica_warms_for_half_a_writer_ttl() {
    let mut scenario = Scenario::new().await;
    pretended::sleep(STAND_STILL_MAX - secs(1));
    scenario.pass().await;
    assert!(scenario.is_complete(), "its writers have not given up yet");
    // An hour with nothing to do, and one in the middle of its work.
    pretended::sleep(secs(3_600));
    scenario.pass().await;
    assert!(!scenario.is_complete() && scenario.sees(1));
    scenario.pass_until(now() + TTL / 2 - secs(1)).await;
    assert!(!scenario.is_complete());
    scenario.pass_until(now() + secs(2)).await;
    assert!(scenario.is_complete() && scenario.sees(1));
    scenario.give_work().await;
    pretended::sleep(secs(3_600));
    scenario.pass().await;
    assert!(!scenario.is_complete() && scenario.sees(1));
}

const WATCHER: Client = Client(5);

/// A link of the desk, and what a client reads at its other end.
struct Ends {
    sender: LinkSender,
    receiver: LinkReceiver,
    others: Others,
}

/// What keeps a link.
type Others = (Listener, LinkReceiver, LinkSender);

async fn ends() -> Ends {
    let identity = Identity { instance: [1; 16], epoch: 0, name: "left".into(), serves: |_| true };
    let loopback = "127.0.0.1:0".parse().unwrap();
    let listening = Listener::bind(loopback, identity, ListenerOptions::default());
    let mut listener = listening.await.unwrap();
    let address = listener.local_address().to_string();
    let caller = Caller {
        cluster: Cluster::new([address.clone()]),
        role: Role::ResolverReader,
        session: SessionId([9; 16]),
        name: "right".into(),
    };
    let (here, there) = tokio::join!(listener.accept(), connect(&caller, &address));
    let ((sender, reads), (other, receiver)) = (here.split(), there.unwrap().split());
    Ends { sender, receiver, others: (listener, reads, other) }
}

/// The answers of a frame.
async fn answers(receiver: &mut LinkReceiver) -> Vec<FromReplica> {
    let messages = Messages::new(receiver.recv().await.unwrap());
    let decode = |(tag, body)| FromReplica::decode(tag, body).unwrap();
    messages.filter_map(|message| decode(message.unwrap())).collect()
}

/// A desk with a client that watches all publishers, over a real link that is full: it does not
/// read.
struct Clogged {
    scenario: Scenario,
    receiver: LinkReceiver,
    _others: Others,
    /// Tasks before anybody waited for it to read.
    tasks: usize,
}

impl Clogged {
    async fn new() -> Clogged {
        let mut scenario = Scenario::begin(true);
        let slot = scenario.desk.directory.writer(Client(1)).unwrap();
        for n in 0..50_000 {
            let path = Path::new(&format!("/jobs/{n}")).unwrap();
            scenario.desk.directory.change(slot, Change::Publish, &path).unwrap();
        }
        let Ends { sender, receiver, others } = ends().await;
        let joined = Said::Joined { client: WATCHER, sender: sender.clone(), writes: false };
        scenario.said.send(joined).await.unwrap();
        let watch = WatchPublishers { id: 1, watch: 1, glob: Glob::new("/**").unwrap() };
        scenario.ask(WATCHER, ToReplica::WatchPublishers(watch)).await;
        let globs = vec![Glob::new("/**").unwrap()];
        let watch = WatchPaths { id: 1, watch: 2, globs };
        scenario.ask(WATCHER, ToReplica::WatchPaths(watch)).await;
        scenario.pass().await;
        assert_eq!(scenario.desk.pushing_on, [WATCHER], "so many paths are told in parts");
        // More than the kernel takes.
        for _ in 0..3 {
            let mut out = FrameWriter::new();
            out.message(99, |out| out.string(&"x".repeat(15 << 20)));
            sender.send(out.finish()).unwrap();
        }
        let tasks = Clogged::tasks();
        Clogged { scenario, receiver, _others: others, tasks }
    }

    fn tasks() -> usize {
        tokio::runtime::Handle::current().metrics().num_alive_tasks()
    }

    /// It is to be told something, and asks something, over and over.
    async fn clog(&mut self) {
        for number in 2..7 {
            self.scenario.announce(number);
            let slot = self.scenario.desk.directory.writer(Client(number.into())).unwrap();
            let path = Path::new(&format!("/{number}")).unwrap();
            self.scenario.desk.directory.change(slot, Change::Publish, &path).unwrap();
            if number % 2 == 1 {
                self.scenario.pass_for_work().await;
            }
            self.scenario.ask(WATCHER, ToReplica::Status { id: number.into() }).await;
            self.scenario.pass().await;
            assert!(self.scenario.desk.is_clogged(WATCHER));
            assert_eq!(Clogged::tasks(), self.tasks + 1, "one waits for it to read");
        }
    }
}

impl Scenario {
    /// A pass that waits for nothing.
    async fn pass_for_work(&mut self) {
        self.said.send(Said::Ready { client: Client(9) }).await.unwrap();
        self.pass().await;
    }
}

#[tokio::test]
async fn a_client_that_reads_again_is_told_once_and_answered_in_its_order() {
    let Clogged { mut scenario, receiver, _others, .. } = {
        let mut clogged = Clogged::new().await;
        clogged.clog().await;
        clogged
    };
    let reading = tokio::spawn(async move {
        let (mut receiver, mut answered, mut seen) = (receiver, Vec::new(), 0);
        while answered.len() < 5 || seen < 6 {
            for answer in answers(&mut receiver).await {
                match answer {
                    FromReplica::Status { id, .. } => answered.push(id),
                    FromReplica::Publishers(all) => seen = all.publishers.len(),
                    _ => {}
                }
            }
        }
        answered
    });
    let end = now() + secs(20);
    while !reading.is_finished() {
        assert!(now() < end, "it is not served");
        scenario.pass().await;
    }
    assert_eq!(reading.await.unwrap(), [2, 3, 4, 5, 6]);
    assert!(!scenario.desk.is_clogged(WATCHER));
}

#[tokio::test]
async fn nobody_waits_for_a_client_that_has_left() {
    let mut clogged = Clogged::new().await;
    clogged.clog().await;
    clogged.scenario.said.send(Said::Left { client: WATCHER }).await.unwrap();
    clogged.scenario.pass().await;
    assert_eq!(clogged.scenario.desk.directory.watches_len(), 0);
    // Well before the link ends because its other side takes nothing, after 10 s.
    let end = now() + secs(5);
    while Clogged::tasks() > clogged.tasks {
        assert!(now() < end, "somebody waits for it still");
        clogged.scenario.pass_for_work().await;
    }
}

#[tokio::test]
async fn hearing_ends_with_its_slice() {
    let mut scenario = Scenario::begin(true);
    // 100 that leave, each with a thousand watches to be forgotten: no machine does that in 1 ms.
    for client in 10..110 {
        for watch in 0..1_000 {
            let glob = Glob::new(&format!("/{client}/{watch}/**")).unwrap();
            scenario.desk.directory.watch(Client(client), watch, glob).unwrap();
        }
        scenario.said.send(Said::Left { client: Client(client) }).await.unwrap();
    }
    scenario.pass().await;
    assert!(scenario.desk.directory.watches_len() > 0, "all were heard in one pass");
    while scenario.desk.directory.watches_len() > 0 {
        scenario.pass().await;
    }
}

#[tokio::test]
async fn what_is_asked_is_counted_by_its_kind_and_what_is_not_begun_apart() {
    let mut scenario = Scenario::begin(true);
    let Ends { sender, receiver: _receiver, others: _others } = ends().await;
    for (client, writes) in [(WATCHER, false), (Client(1), true)] {
        let joined = Said::Joined { client, sender: sender.clone(), writes };
        scenario.said.send(joined).await.unwrap();
    }
    scenario.pass().await;
    assert!(scenario.counts().is_empty());
    scenario.ask(WATCHER, ToReplica::Status { id: 1 }).await;
    for _ in 0..3 {
        scenario.ask(Client(1), ToReplica::Confirm { id: 2 }).await;
    }
    let mut unknown = FrameWriter::new();
    unknown.message(69, |out| out.u64(3));
    scenario.say(WATCHER, unknown).await;
    scenario.pass().await;
    scenario.pass().await;
    assert_eq!(scenario.counts(), [("status", 1), ("confirm", 3), ("refused", 1)]);
}

#[tokio::test]
async fn while_a_replica_warms_writers_have_most_of_the_turns() {
    let order = async |fresh: bool| {
        let mut scenario = Scenario::begin(fresh);
        let Ends { sender, mut receiver, others: _others } = ends().await;
        let (readers, writers) = (100..105, 1..8);
        // Who asks comes first.
        for number in readers.chain(writers) {
            let (client, sender, writes) = (Client(number), sender.clone(), number < 100);
            scenario.said.send(Said::Joined { client, sender, writes }).await.unwrap();
            scenario.ask(client, ToReplica::Status { id: number }).await;
        }
        for _ in 0..12 {
            scenario.pass().await;
        }
        let mut order = Vec::new();
        while order.len() < 12 {
            for answer in answers(&mut receiver).await {
                let FromReplica::Status { id, .. } = answer else { panic!("{answer:?}") };
                order.push(id);
            }
        }
        order
    };
    assert_eq!(order(false).await, [1, 2, 3, 100, 4, 5, 6, 101, 7, 102, 103, 104]);
    assert_eq!(order(true).await, [100, 101, 102, 103, 104, 1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn a_client_with_news_waits_for_one_walk_and_not_for_all_of_them() {
    let mut desk = Scenario::begin(true).desk;
    desk.pushing_on.extend((0..64).map(Client));
    for round in 1..=64 {
        desk.pushing.push_back(Client(100));
        desk.push_watches();
        assert_eq!((desk.pushing.len(), desk.pushing_on.len()), (0, 64 - round));
    }
}
