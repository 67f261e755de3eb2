//! Measures the state machine alone: jobs through enqueue, delivery and settle in one thread, in
//! batches of 500; then bytes of memory per waiting job, speed beside a long queue, and the cost of
//! a snapshot.
//!
//! `longshore bench e2e` measures the same with a journal; `longshore bench backlog` measures cold
//! payloads, cycles and recovery.
//!
//! ```text
//! cargo run --release -p longshore-queue --example apply_speed [JOBS] [WAITING]
//! cargo run --release -p longshore-queue --example apply_speed keys KEYS [JOBS] [WAITING]
//! ```
//!
//! The second form has WAITING jobs wait in a queue with KEYS keys, each job with an order and a
//! limit key, so that the first job of each key blocks the others; then JOBS plain jobs of another
//! queue go through. It prints the bytes of resident memory per waiting job. With 0 keys the jobs
//! are plain: compare two runs.

use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_protocol::limits::HANDLERS_MAX;
use longshore_protocol::messages::work::{
    BatchBuilder, EnqueueBatch, NewSettle, SettleBatch, SettleBatchBuilder, Sources, Tokens,
};
use longshore_protocol::{
    Durability, Epoch, Glob, JobId, LinkId, NewJob, Path, PublisherId, Role, SessionId,
};
use longshore_queue::{Command, Now, Outcomes, Rules, Secret, Start, State};
use rustix::time::{ClockId, clock_gettime};

const BATCH: u64 = 500;
const PAYLOAD_BYTES: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if_eq("keys").is_some() {
        let keys = arguments.next().ok_or("apply_speed keys KEYS")?.parse()?;
        let jobs = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
        let waiting = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
        return with_keys(keys, jobs, waiting);
    }
    let jobs: u64 = arguments.next().map_or(Ok(2_000_000), |text| text.parse())?;
    let waiting: u64 = arguments.next().map_or(Ok(10_000_000), |text| text.parse())?;

    let mut run = Run::new()?;
    run.through(jobs / 10)?;
    let quiet = run.through(jobs)?;
    println!("empty queue      {:>12.0} jobs/s through enqueue, delivery and settle", quiet);

    let before = run.state.memory_bytes();
    run.spent = Duration::ZERO;
    for _ in 0..waiting / BATCH {
        run.enqueue()?;
    }
    let seconds = run.spent.as_secs_f64();
    let bytes = run.state.memory_bytes() - before;
    println!("enqueue alone    {:>12.0} jobs/s, up to {waiting} waiting", waiting as f64 / seconds);
    println!("memory           {:>12.1} bytes per waiting job", bytes as f64 / waiting as f64);
    let busy = run.through(jobs)?;
    println!(
        "{waiting:>11} wait {busy:>12.0} jobs/s, {:.2} × the cost of an empty queue",
        quiet / busy
    );

    let begun = Instant::now();
    drop(run.state.freeze());
    println!("freeze           {:>12.1?}", begun.elapsed());
    let begun = Instant::now();
    let snapshot = run.state.snapshot_bytes();
    let written = begun.elapsed();
    let begun = Instant::now();
    State::restore(&snapshot)?;
    let (mib, read) = (snapshot.len() >> 20, begun.elapsed());
    println!("snapshot         {mib:>12} MiB, written in {written:.1?}, restored in {read:.1?}");
    Ok(())
}

fn with_keys(keys: u64, jobs: u64, waiting: u64) -> Result<(), Box<dyn std::error::Error>> {
    let mut run = Run::new()?;
    run.through(BATCH * 100)?;
    run.path = Path::new("/jobs/keyed")?;
    run.keys = keys;
    let before = resident_bytes()?;
    for _ in 0..waiting / BATCH {
        run.enqueue()?;
    }
    let bytes = resident_bytes()? - before;
    println!("memory           {:>12.1} bytes per waiting job", bytes as f64 / waiting as f64);
    // The oldest job of each key begins, and blocks it; those beyond half of the handlers are
    // ready, and block theirs, too. The other handlers are for plain jobs.
    let pattern = Glob::new("/jobs/keyed")?;
    let sources = Sources::one(pattern);
    let handlers = HANDLERS_MAX;
    run.apply(&Command::Subscribe { link: WORKER, subscription: 2, sources, handlers });
    for _ in 0..keys.min(u64::from(HANDLERS_MAX) / 2).div_ceil(BATCH) {
        run.apply(&Command::Credit { link: WORKER, subscription: 2, count: BATCH as u32 });
    }
    run.path = Path::new("/jobs/speed")?;
    run.keys = 0;
    let rate = run.through(jobs)?;
    println!("plain jobs       {rate:>12.0} jobs/s while {keys} keys are blocked");
    Ok(())
}

/// The resident memory of this process.
fn resident_bytes() -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.ok_or("no VmRSS")?.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// The processor time of this thread, which excludes other load on the machine.
fn processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

struct Run {
    state: State,
    index: u64,
    now: Now,
    out: Outcomes,
    path: Path,
    made: u64,
    /// The keys of the jobs to be enqueued; 0 if they have none.
    keys: u64,
    batches: u64,
    settles: u64,
    /// Excludes the clients' work of building batches.
    spent: Duration,
}

const PRODUCER: LinkId = LinkId(1);
const WORKER: LinkId = LinkId(2);

impl Run {
    fn new() -> Result<Run, Box<dyn std::error::Error>> {
        let path = Path::new("/jobs/speed")?;
        let mut run = Run {
            state: State::new(),
            index: 0,
            now: Now { mono_ms: 0, wall_ms: 1_700_000_000_000 },
            out: Outcomes::default(),
            path: path.clone(),
            made: 0,
            keys: 0,
            batches: 0,
            settles: 0,
            spent: Duration::ZERO,
        };
        run.apply(&Command::Start(Start {
            publisher: PublisherId::default(),
            epoch: Epoch(1),
            boot: [0; 16],
            secret: Secret([0x5e; 16]),
            rules: Box::new(Rules::STANDARD),
            durability: Durability::None,
            paths: vec![path, Path::new("/jobs/keyed")?],
            defaults: Vec::new(),
        }));
        for (link, role) in [(PRODUCER, Role::Producer), (WORKER, Role::Worker)] {
            run.apply(&Command::LinkUp {
                link,
                role,
                session: SessionId([link.0 as u8; 16]),
                name: "speed".to_owned(),
                identity: String::new(),
                work: None,
                resume: Tokens::default(),
            });
        }
        let pattern = Glob::new("/jobs/speed")?;
        run.apply(&Command::Subscribe {
            link: WORKER,
            subscription: 1,
            sources: Sources::one(pattern),
            handlers: 1_000,
        });
        Ok(run)
    }

    fn apply(&mut self, command: &Command) {
        self.index += 1;
        self.now.mono_ms += 1;
        self.now.wall_ms += 1;
        self.out.clear();
        let begun = processor_time();
        self.state.apply(self.index, self.now, command, &mut self.out);
        self.spent += processor_time() - begun;
    }

    /// Jobs per second, from enqueue to settle.
    fn through(&mut self, jobs: u64) -> Result<f64, Box<dyn std::error::Error>> {
        self.spent = Duration::ZERO;
        for _ in 0..jobs / BATCH {
            let count = BATCH as u32;
            self.apply(&Command::Credit { link: WORKER, subscription: 1, count });
            let mut tokens: Vec<_> = self.out.assignments.iter().map(|one| one.token).collect();
            self.enqueue()?;
            tokens.extend(self.out.assignments.iter().map(|one| one.token));
            assert_eq!(tokens.len() as u64, BATCH, "every credit is used");
            self.settles += 1;
            let mut builder = SettleBatchBuilder::new();
            let done = NewSettle::Complete { result: None };
            tokens.iter().for_each(|&token| builder.push(token, &done));
            let batch = SettleBatch::decode(builder.seal(self.settles))?;
            self.apply(&Command::Settle { link: WORKER, batch });
        }
        Ok(jobs as f64 / self.spent.as_secs_f64())
    }

    fn enqueue(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        self.batches += 1;
        let batch = self.batch(self.batches)?;
        self.apply(&Command::Enqueue { link: PRODUCER, batch });
        Ok(())
    }

    fn batch(&mut self, sequence: u64) -> Result<EnqueueBatch, Box<dyn std::error::Error>> {
        let payload = Bytes::from(vec![7; PAYLOAD_BYTES]);
        let mut builder = BatchBuilder::new();
        for _ in 0..BATCH {
            self.made += 1;
            let mut random = [0; 10];
            // Distributed like random bits, and the same in every run.
            let bits = self.made.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            random[2..].copy_from_slice(&bits.to_be_bytes());
            let id = JobId::new_v7(self.now.wall_ms, random);
            let mut job = NewJob::new(self.path.clone(), id, payload.clone());
            if let Some(key) = self.made.checked_rem(self.keys) {
                job = job.order_key(format!("order-{key}")).limit_key(format!("limit-{key}"));
            }
            builder.push(&job);
        }
        Ok(builder.seal(false).to_batch(sequence)?)
    }
}
