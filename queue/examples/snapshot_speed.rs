//! What a snapshot costs: how long the owner stands still to freeze its state, what the first touch of a frozen piece costs it,
//! how long the parts of the log take to walk and the blocks to write, and how long they take to restore. All times are the
//! processor's, so that what else the machine does is not counted.
//!
//! ```text
//! cargo run --release -p longshore-queue --example snapshot_speed [JOBS] [QUEUES]
//! ```

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::messages::work::{Action, BatchBuilder, Selection, Tokens};
use longshore_protocol::{
    Durability, Epoch, JobId, LinkId, NewJob, Path, PublisherId, Role, SessionId,
};
use longshore_queue::{Command, Now, Outcomes, Restoring, Rules, Secret, Snapshot, Start, State};
use rustix::time::{ClockId, clock_gettime};

const BATCH: u64 = 500;
/// Rows of a piece, and a little more: jobs so far apart lie in pieces of their own.
const APART: u64 = 1_100;
const TOUCHED: u64 = 1_000;
const LINK: LinkId = LinkId(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let jobs: u64 = arguments.next().map_or(Ok(10_000_000), |text| text.parse())?;
    let queues: u64 = arguments.next().map_or(Ok(100_000), |text| text.parse())?;

    let mut run = Run::new()?;
    run.enqueue(queues.min(100_000), |n| Path::new(&format!("/jobs/queue-{n}")))?;
    let frozen = timed(|| run.state.freeze());
    println!("freeze            {:>10.2?}  with {queues} queues of a job each", frozen.1);
    drop(frozen);

    let mut run = Run::new()?;
    run.enqueue(jobs, |_| Path::new("/jobs/speed"))?;
    println!("memory            {:>10} MiB  with {jobs} waiting jobs", memory_mib());
    let warm = run.touch(0);
    let quiet = run.touch(1);
    let (mut frozen, took) = timed(|| run.state.freeze());
    println!("freeze            {took:>10.2?}  with {jobs} jobs");
    let first = run.touch(2);
    let second = run.touch(3);
    println!("a job cancelled   {quiet:>10.2?}  nothing frozen ({warm:.2?} at first)");
    println!("                  {first:>10.2?}  in a frozen piece, which is copied");
    println!("                  {second:>10.2?}  in a piece that was copied already");

    let (mut parts, mut part_bytes) = (0u64, 0u64);
    let walk = |frozen: &dyn Snapshot, parts: &mut u64, bytes: &mut u64| {
        frozen.parts(&mut |part| {
            *parts += 1;
            *bytes += u64::from(black_box(part).length);
        });
    };
    let ((), took) = timed(|| walk(&frozen, &mut parts, &mut part_bytes));
    println!("walk {parts} parts {took:>10.2?}  of {} MiB", part_bytes >> 20);

    let (mut blocks, mut bytes) = (Vec::new(), 0);
    let ((), took) = timed(|| {
        let mut block = Vec::new();
        while frozen.next_block(&mut block) {
            bytes += block.len();
            blocks.push(Bytes::copy_from_slice(&block));
            block.clear();
        }
    });
    println!("write             {took:>10.2?}  {bytes} bytes in {} blocks", blocks.len());
    drop(frozen);
    println!("memory            {:>10} MiB  with the blocks", memory_mib());
    let third = run.touch(4);
    println!("a job cancelled   {third:>10.2?}  in a piece that was written: taken back");
    let (frozen, took) = timed(|| run.state.freeze());
    println!("freeze again      {took:>10.2?}");
    drop(frozen);
    drop(run);

    let (state, took) = timed(|| {
        let mut restoring = Restoring::new();
        blocks.drain(..).try_for_each(|block| restoring.block(block))?;
        restoring.finish()
    });
    println!("restore           {took:>10.2?}  {} jobs", state?.totals().jobs);
    Ok(())
}

fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let begun = spent();
    let done = what();
    (done, spent() - begun)
}

/// What this thread has taken of the processor so far.
fn spent() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Memory that the process takes, in MiB; 0 where that cannot be told.
fn memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1_024
}

struct Run {
    state: State,
    index: u64,
    now: Now,
    out: Outcomes,
    ids: Vec<JobId>,
}

impl Run {
    fn new() -> Result<Run, Box<dyn std::error::Error>> {
        let mut run = Run {
            state: State::new(),
            index: 0,
            now: Now { mono_ms: 0, wall_ms: 1_700_000_000_000 },
            out: Outcomes::default(),
            ids: Vec::new(),
        };
        run.apply(&Command::Start(Start {
            publisher: PublisherId::default(),
            epoch: Epoch(1),
            boot: [0; 16],
            secret: Secret([0x5e; 16]),
            rules: Box::new(Rules::STANDARD),
            durability: Durability::None,
            paths: Vec::new(),
            defaults: vec![Path::new("/jobs")?],
        }));
        run.apply(&Command::LinkUp {
            link: LINK,
            role: Role::Producer,
            session: SessionId([1; 16]),
            name: "speed".to_owned(),
            resume: Tokens::default(),
        });
        Ok(run)
    }

    fn apply(&mut self, command: &Command) -> Duration {
        self.index += 1;
        self.now.mono_ms += 1;
        self.now.wall_ms += 1;
        self.out.clear();
        timed(|| self.state.apply(self.index, self.now, command, &mut self.out)).1
    }

    fn enqueue<E: std::error::Error + 'static>(
        &mut self,
        jobs: u64,
        path: impl Fn(u64) -> Result<Path, E>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let payload = Bytes::from(vec![7; 256]);
        for sequence in 1..=jobs / BATCH {
            let mut builder = BatchBuilder::new();
            for _ in 0..BATCH {
                let number = self.ids.len() as u64;
                let mut random = [0; 10];
                random[2..]
                    .copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
                let id = JobId::new_v7(self.now.wall_ms, random);
                self.ids.push(id);
                builder.push(&NewJob::new(path(number)?, id, payload.clone()));
            }
            let batch = builder.seal(false).to_batch(sequence)?;
            self.apply(&Command::Enqueue { link: LINK, batch });
        }
        Ok(())
    }

    /// Cancels jobs that lie in pieces of their own: the time of each, the median.
    fn touch(&mut self, round: u64) -> Duration {
        // Two rounds in the same pieces, then two in others, then one in those after them.
        let (from, at) = ((round / 2) * TOUCHED, round);
        let mut spent = Vec::new();
        for piece in from..from + TOUCHED {
            let Some(&id) = self.ids.get((piece * APART + 10 * at) as usize) else { break };
            let (action, selection) = (Action::Cancel, Selection::Ids(vec![id]));
            let act = Command::Act { link: LINK, request: 1, action, selection, pace: None };
            spent.push(self.apply(&act));
        }
        spent.sort_unstable();
        spent.get(spent.len() / 2).copied().unwrap_or_default()
    }
}
