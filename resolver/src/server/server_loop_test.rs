//! The server loop in virtual time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_access::Policy;
use longshore_protocol::frame::{FrameWriter, Messages};
use longshore_protocol::messages::resolver::{
    Change, FromReplica, PathAnswer, Resolve, ToReplica, WatchPaths, WatchPublishers,
};
use longshore_protocol::{
    Epoch, Glob, Incarnation, Path, PublisherId, PublisherInfo, Role, SessionId,
};
use longshore_transport::{LinkReceiver, LinkSender, Listener, ListenerOptions, ServerInfo};
use tokio::sync::{Semaphore, mpsc};

use crate::Cluster;
use crate::directory::{Client, Directory, Rules};
use crate::replica_link::{Caller, connect, now};
use crate::server::access::ClientAccess;
use crate::server::server_loop::{EVENTS_QUEUED_MAX, Event, SWEPT_PER_PASS_MAX, ServerLoop};
use crate::sleep_detector::fake_sleep;

const TTL: Duration = Duration::from_secs(120);
const STALL_MAX: Duration = Duration::from_secs(15);

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

/// A server loop that is complete, and one publisher that was active just now. Only the test
/// advances the clock.
struct Scenario {
    server_loop: ServerLoop,
    events: mpsc::Sender<Event>,
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
            stall_max: STALL_MAX,
            fresh,
            publishers_max: 8,
            paths_max: 100_000,
            watches_max: 100_000,
        };
        let directory = Directory::new(now(), Incarnation([1; 16]), rules);
        let (events, received) = mpsc::channel(EVENTS_QUEUED_MAX);
        let server_loop = ServerLoop::new("left".into(), directory, received, events.downgrade());
        let mut scenario = Scenario { server_loop, events };
        scenario.announce(1);
        scenario
    }

    fn announce(&mut self, number: u8) {
        let client = Client(number.into());
        self.server_loop.directory.announce(now(), client, &info(number), &[]).unwrap();
    }

    /// The publisher sends a request now.
    async fn send_activity(&mut self, number: u8) {
        self.ask(Client(number.into()), ToReplica::Status { id: 1 }).await;
    }

    async fn ask(&mut self, client: Client, request: ToReplica) {
        let mut out = FrameWriter::new();
        request.encode(&mut out);
        self.send_frame(client, out).await;
    }

    async fn send_frame(&mut self, client: Client, out: FrameWriter) {
        let none = Arc::new(Semaphore::new(0)).try_acquire_many_owned(0);
        let (messages, permit) = (Messages::new(out.into_body()), none.unwrap());
        let event = Event::Frame { client, messages, at: now(), permit };
        self.events.send(event).await.unwrap();
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.server_loop.requests.get().iter().filter(|(_, count)| *count > 0).collect()
    }

    fn sees(&self, number: u8) -> bool {
        self.server_loop.directory.writer(Client(number.into())).is_ok()
    }

    fn is_complete(&self) -> bool {
        self.server_loop.directory.is_complete()
    }

    /// A publisher that stops with more paths than one pass removes.
    async fn give_work(&mut self) {
        self.announce(2);
        let slot = self.server_loop.directory.writer(Client(2)).unwrap();
        for n in 0..5 * SWEPT_PER_PASS_MAX {
            let path = Path::new(&format!("/jobs/{n}")).unwrap();
            self.server_loop.directory.change(slot, Change::Publish, &path).unwrap();
        }
        self.server_loop.directory.clear(Client(2)).unwrap();
        self.events.send(Event::Ready { client: Client(9) }).await.unwrap();
        self.pass().await;
        assert!(self.server_loop.sweeping);
    }

    /// One pass. The timeout of an hour detects a loop that waits for ever.
    async fn pass(&mut self) {
        let pass = tokio::time::timeout(secs(3_600), self.server_loop.pass());
        assert_eq!(pass.await, Ok(true));
        self.server_loop.invariant();
    }

    /// Runs the loop without events until `end`.
    async fn pass_until(&mut self, end: Instant) {
        while now() < end {
            let pass = tokio::time::timeout_at(end.into(), self.server_loop.pass());
            let passed = pass.await;
            self.server_loop.invariant();
            if passed.is_err() {
                // The loop waits for longer. Run one more pass with the clock at the end.
                self.events.send(Event::Ready { client: Client(9) }).await.unwrap();
                self.pass().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_publisher_is_hidden_in_time_by_a_running_loop() {
    let mut scenario = Scenario::new().await;
    scenario.pass_until(now() + TTL - secs(2)).await;
    assert!(scenario.sees(1));
    scenario.pass_until(now() + secs(1)).await;
    assert!(!scenario.sees(1));
}

#[tokio::test(start_paused = true)]
async fn an_idle_loop_that_stalled_hides_no_publisher() {
    let mut scenario = Scenario::new().await;
    scenario.pass_until(now() + secs(59)).await;
    tokio::time::advance(secs(200)).await;
    scenario.pass().await;
    assert!(scenario.sees(1));
    // A minute was left before the stall, and still is; then it is over.
    scenario.pass_until(now() + secs(59)).await;
    assert!(scenario.sees(1), "the time of the stall does not count");
    scenario.pass_until(now() + secs(2)).await;
    assert!(!scenario.sees(1));
}

#[tokio::test(start_paused = true)]
async fn a_publisher_first_heard_after_a_stall_gets_its_full_time_once() {
    // The loop may handle the event before it reads the clock, or after.
    for _ in 0..16 {
        let mut scenario = Scenario::new().await;
        scenario.pass_until(now() + secs(59)).await;
        tokio::time::advance(secs(200)).await;
        scenario.send_activity(1).await;
        scenario.pass().await;
        let last_active = now();
        scenario.pass_until(last_active + TTL - Duration::from_millis(1)).await;
        assert!(scenario.sees(1));
        scenario.pass_until(last_active + TTL).await;
        assert!(!scenario.sees(1), "it has been silent for all of it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_loop_that_stalled_hides_no_publisher() {
    let mut scenario = Scenario::new().await;
    scenario.give_work().await;
    for _ in 0..2 {
        tokio::time::advance(secs(200)).await;
        scenario.pass().await;
        assert!(scenario.server_loop.sweeping && scenario.sees(1));
    }
    scenario.pass_until(now() + secs(121)).await;
    assert!(!scenario.sees(1));
}

#[tokio::test(start_paused = true)]
async fn after_a_long_stall_the_replica_warms_for_half_a_writer_ttl() {
    let mut scenario = Scenario::new().await;
    tokio::time::advance(STALL_MAX - secs(1)).await;
    scenario.pass().await;
    assert!(scenario.is_complete(), "its writers have not given up yet");
    tokio::time::advance(STALL_MAX + secs(1)).await;
    scenario.pass().await;
    assert!(!scenario.is_complete(), "it does not know what was published meanwhile");
    scenario.pass_until(now() + TTL / 2 - secs(1)).await;
    assert!(!scenario.is_complete());
    scenario.pass_until(now() + secs(2)).await;
    assert!(scenario.is_complete());
}

#[tokio::test(start_paused = true)]
async fn a_stall_extends_the_warming() {
    let mut scenario = Scenario::new().await;
    tokio::time::advance(secs(16)).await;
    scenario.pass().await;
    scenario.pass_until(now() + secs(55)).await;
    // Too short to begin to warm again, but no publisher could be heard meanwhile.
    tokio::time::advance(secs(14)).await;
    scenario.pass().await;
    scenario.pass_until(now() + secs(4)).await;
    assert!(!scenario.is_complete());
    scenario.pass_until(now() + secs(2)).await;
    assert!(scenario.is_complete());
}

/// The monotonic clock of the loop stops while its machine sleeps: it has to read the boot clock.
#[tokio::test(start_paused = true)]
async fn after_a_long_sleep_the_replica_warms_for_half_a_writer_ttl() {
    let mut scenario = Scenario::new().await;
    fake_sleep::sleep(STALL_MAX - secs(1));
    scenario.pass().await;
    assert!(scenario.is_complete(), "its writers have not given up yet");
    // An hour of sleep while idle, and below one while busy.
    fake_sleep::sleep(secs(3_600));
    scenario.pass().await;
    assert!(!scenario.is_complete() && scenario.sees(1));
    scenario.pass_until(now() + TTL / 2 - secs(1)).await;
    assert!(!scenario.is_complete());
    scenario.pass_until(now() + secs(2)).await;
    assert!(scenario.is_complete() && scenario.sees(1));
    scenario.give_work().await;
    fake_sleep::sleep(secs(3_600));
    scenario.pass().await;
    assert!(!scenario.is_complete() && scenario.sees(1));
}

const WATCHER: Client = Client(5);

/// The loop's side of a link, and what a client reads at its other end.
struct TestLink {
    sender: LinkSender,
    receiver: LinkReceiver,
    open_ends: OpenEnds,
}

/// What keeps the link open.
type OpenEnds = (Listener, LinkReceiver, LinkSender);

async fn test_link() -> TestLink {
    let info = ServerInfo { instance: [1; 16], epoch: 0, name: "left".into(), serves: |_| true };
    let loopback = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(loopback, info, ListenerOptions::default()).unwrap();
    let address = listener.local_address().to_string();
    let caller = Caller {
        cluster: Cluster::new([address.clone()]),
        role: Role::ResolverReader,
        session: SessionId([9; 16]),
        name: "right".into(),
    };
    let (here, there) = tokio::join!(listener.accept(), connect(&caller, &address));
    let ((sender, reads), (other, receiver)) = (here.split(), there.unwrap().split());
    TestLink { sender, receiver, open_ends: (listener, reads, other) }
}

/// The answers of a frame.
async fn answers(receiver: &mut LinkReceiver) -> Vec<FromReplica> {
    let messages = Messages::new(receiver.recv().await.unwrap());
    let decode = |(tag, body)| FromReplica::decode(tag, body).unwrap();
    messages.filter_map(|message| decode(message.unwrap())).collect()
}

/// A loop with a client that watches all publishers over a real link that is full: it does not
/// read.
struct SlowWatcher {
    scenario: Scenario,
    receiver: LinkReceiver,
    _open_ends: OpenEnds,
    /// The number of tasks before the loop waits for it.
    tasks: usize,
}

impl SlowWatcher {
    async fn new() -> SlowWatcher {
        let mut scenario = Scenario::begin(true);
        let slot = scenario.server_loop.directory.writer(Client(1)).unwrap();
        for n in 0..50_000 {
            let path = Path::new(&format!("/jobs/{n}")).unwrap();
            scenario.server_loop.directory.change(slot, Change::Publish, &path).unwrap();
        }
        let TestLink { sender, receiver, open_ends } = test_link().await;
        let (client, access) = (WATCHER, ClientAccess::everything().into());
        let joined = Event::Joined { client, sender: sender.clone(), writes: false, access };
        scenario.events.send(joined).await.unwrap();
        let watch = WatchPublishers { id: 1, watch: 1, glob: Glob::new("/**").unwrap() };
        scenario.ask(WATCHER, ToReplica::WatchPublishers(watch)).await;
        let globs = vec![Glob::new("/**").unwrap()];
        let watch = WatchPaths { id: 1, watch: 2, globs };
        scenario.ask(WATCHER, ToReplica::WatchPaths(watch)).await;
        scenario.pass().await;
        // On a busy machine the first request takes the whole slice, and the second one waits.
        if scenario.server_loop.further_pushes.is_empty() {
            scenario.pass().await;
        }
        assert_eq!(
            scenario.server_loop.further_pushes,
            [WATCHER],
            "so many paths are sent in parts"
        );
        // More than the kernel takes.
        for _ in 0..3 {
            let mut out = FrameWriter::new();
            out.message(99, |out| out.string(&"x".repeat(15 << 20)));
            sender.send(out.finish()).unwrap();
        }
        let tasks = SlowWatcher::tasks();
        SlowWatcher { scenario, receiver, _open_ends: open_ends, tasks }
    }

    fn tasks() -> usize {
        tokio::runtime::Handle::current().metrics().num_alive_tasks()
    }

    /// Changes for its watches and requests of it alternate.
    async fn wait_for_reader(&mut self) {
        for number in 2..7 {
            self.scenario.announce(number);
            let slot = self.scenario.server_loop.directory.writer(Client(number.into())).unwrap();
            let path = Path::new(&format!("/{number}")).unwrap();
            self.scenario.server_loop.directory.change(slot, Change::Publish, &path).unwrap();
            if number % 2 == 1 {
                self.scenario.pass_for_work().await;
            }
            self.scenario.ask(WATCHER, ToReplica::Status { id: number.into() }).await;
            self.scenario.pass().await;
            assert!(self.scenario.server_loop.is_slow_reader(WATCHER));
            assert_eq!(SlowWatcher::tasks(), self.tasks + 1, "one task waits for it to read");
        }
    }
}

impl Scenario {
    /// A pass that does not wait.
    async fn pass_for_work(&mut self) {
        self.events.send(Event::Ready { client: Client(9) }).await.unwrap();
        self.pass().await;
    }
}

#[tokio::test]
async fn a_client_that_reads_again_gets_the_latest_state_and_answers_in_order() {
    let SlowWatcher { mut scenario, receiver, _open_ends, .. } = {
        let mut slow_reader = SlowWatcher::new().await;
        slow_reader.wait_for_reader().await;
        slow_reader
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
    assert!(!scenario.server_loop.is_slow_reader(WATCHER));
}

#[tokio::test]
async fn no_task_waits_for_a_client_that_has_left() {
    let mut slow_reader = SlowWatcher::new().await;
    slow_reader.wait_for_reader().await;
    slow_reader.scenario.events.send(Event::Left { client: WATCHER }).await.unwrap();
    slow_reader.scenario.pass().await;
    assert_eq!(slow_reader.scenario.server_loop.directory.watches_len(), 0);
    // Well before the link ends after 10 s because its other side takes nothing.
    let end = now() + secs(5);
    while SlowWatcher::tasks() > slow_reader.tasks {
        assert!(now() < end, "a task still waits for it");
        slow_reader.scenario.pass_for_work().await;
    }
}

#[tokio::test]
async fn event_handling_ends_with_its_slice() {
    let mut scenario = Scenario::begin(true);
    // 30 clients leave, each with a thousand watches to remove: no machine does that in 1 ms.
    for client in 10..40 {
        for watch in 0..1_000 {
            let glob = Glob::new(&format!("/{client}/{watch}/**")).unwrap();
            scenario.server_loop.directory.watch(Client(client), watch, glob).unwrap();
        }
        scenario.events.send(Event::Left { client: Client(client) }).await.unwrap();
    }
    scenario.pass().await;
    assert!(scenario.server_loop.directory.watches_len() > 0, "all were handled in one pass");
    while scenario.server_loop.directory.watches_len() > 0 {
        scenario.pass().await;
    }
}

#[tokio::test]
async fn requests_are_counted_by_kind_and_refused_ones_separately() {
    let mut scenario = Scenario::begin(true);
    let TestLink { sender, receiver: _receiver, open_ends: _open_ends } = test_link().await;
    for (client, writes) in [(WATCHER, false), (Client(1), true)] {
        let (sender, access) = (sender.clone(), ClientAccess::everything().into());
        let joined = Event::Joined { client, sender, writes, access };
        scenario.events.send(joined).await.unwrap();
    }
    scenario.pass().await;
    assert!(scenario.counts().is_empty());
    scenario.ask(WATCHER, ToReplica::Status { id: 1 }).await;
    for _ in 0..3 {
        scenario.ask(Client(1), ToReplica::Confirm { id: 2 }).await;
    }
    let mut unknown = FrameWriter::new();
    unknown.message(69, |out| out.u64(3));
    scenario.send_frame(WATCHER, unknown).await;
    // On a busy machine some of the passes are a timer's.
    let end = now() + secs(20);
    while scenario.counts().iter().map(|(_, count)| count).sum::<u64>() < 5 {
        assert!(now() < end, "{:?}", scenario.counts());
        scenario.pass_for_work().await;
    }
    assert_eq!(scenario.counts(), [("status", 1), ("confirm", 3), ("refused", 1)]);
}

#[tokio::test]
async fn while_a_replica_warms_writers_get_most_of_the_turns() {
    let order = async |fresh: bool| {
        let mut scenario = Scenario::begin(fresh);
        let TestLink { sender, mut receiver, open_ends: _open_ends } = test_link().await;
        let (readers, writers) = (100..105, 1..8);
        // The readers come first.
        for number in readers.chain(writers) {
            let (client, sender, writes) = (Client(number), sender.clone(), number < 100);
            let access = ClientAccess::everything().into();
            scenario.events.send(Event::Joined { client, sender, writes, access }).await.unwrap();
            scenario.ask(client, ToReplica::Status { id: number }).await;
        }
        for _ in 0..12 {
            scenario.pass().await;
        }
        let mut order = Vec::new();
        while order.len() < 12 {
            // On a busy machine some of the passes were a timer's.
            scenario.pass_for_work().await;
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
async fn a_client_with_a_new_change_waits_for_one_walk_only() {
    let mut server_loop = Scenario::begin(true).server_loop;
    server_loop.further_pushes.extend((0..64).map(Client));
    for round in 1..=64 {
        server_loop.first_pushes.push_back(Client(100));
        server_loop.push_watches();
        assert_eq!(
            (server_loop.first_pushes.len(), server_loop.further_pushes.len()),
            (0, 64 - round)
        );
    }
}

/// The access of a client that may resolve these paths.
fn resolves(paths: &[&str]) -> ClientAccess {
    let rule = format!("[[allow]]\nwho = [\"anonymous\"]\ndo = [\"resolve\"]\npaths = {paths:?}");
    let rights = Policy::parse(&rule).unwrap().rights(None);
    ClientAccess::everything().with_rights(rights.into())
}

#[tokio::test]
async fn a_grown_right_takes_effect_without_another_link() {
    let mut scenario = Scenario::begin(true);
    let slot = scenario.server_loop.directory.writer(Client(1)).unwrap();
    let both = ["/a/1", "/b/1"].map(|text| Path::new(text).unwrap());
    for path in &both {
        scenario.server_loop.directory.change(slot, Change::Publish, path).unwrap();
    }
    let TestLink { sender, mut receiver, open_ends: _open_ends } = test_link().await;
    let access = resolves(&["/a/**"]).into();
    let joined = Event::Joined { client: WATCHER, sender, writes: false, access };
    scenario.events.send(joined).await.unwrap();
    let globs = vec![Glob::new("/*/1").unwrap()];
    scenario.ask(WATCHER, ToReplica::WatchPaths(WatchPaths { id: 1, watch: 2, globs })).await;
    let question = || ToReplica::Resolve(Resolve { id: 3, paths: both.iter().collect() });
    scenario.ask(WATCHER, question()).await;
    let mut sees = async |scenario: &mut Scenario, messages| {
        let (mut watched, mut resolved, mut received) = (Vec::new(), Vec::new(), 0);
        while received < messages {
            scenario.pass_for_work().await;
            let answers = tokio::time::timeout(secs(20), answers(&mut receiver)).await;
            for answer in answers.expect("nothing more is sent") {
                received += 1;
                match answer {
                    FromReplica::PathSnapshot(all) => {
                        assert!(all.first && all.last);
                        watched = all.paths.iter().map(|listed| listed.path.clone()).collect();
                        watched.sort();
                    }
                    FromReplica::Resolved(answer) => resolved = answer.answers,
                    other => panic!("{other:?}"),
                }
            }
        }
        let found = resolved.iter().map(|answer| *answer != PathAnswer::NotFound).collect();
        (watched, found)
    };
    assert_eq!(sees(&mut scenario, 2).await, (vec![both[0].clone()], vec![true, false]));

    let grown = Event::Rights { client: WATCHER, rights: resolves(&["/**"]).rights().clone() };
    scenario.events.send(grown).await.unwrap();
    scenario.ask(WATCHER, question()).await;
    assert_eq!(sees(&mut scenario, 2).await, (both.to_vec(), vec![true, true]));
}
