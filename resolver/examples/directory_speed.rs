//! How fast the directory is on one core, and how much memory a path costs: `directory_speed [PATHS] [SHAPE]`.
//!
//! Every shape runs in a process of its own, so that its memory is its own.

#[path = "../src/directory/mod.rs"]
#[allow(dead_code, unreachable_pub, unused_imports)]
mod directory;

use std::time::{Duration, Instant};

use directory::{Children, Client, Directory, Matching, Resolver, Rules, WARM};
use longshore_protocol::messages::resolver::{Change, PathText};
use longshore_protocol::{Epoch, Glob, Incarnation, Path, PublisherId, PublisherInfo, Terms};

const SHAPES: [&str; 3] = ["thousands", "uuids", "parents"];
/// Paths whose texts are made before the clock runs, and that share a message of answers.
const BATCH: usize = 4_096;
/// Paths between two looks at the clock.
const STRIDE: usize = 64;
const WRITER: Client = Client(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let count = args.next().map_or(Ok(1_000_000), |text| text.parse())?;
    match args.next() {
        Some(shape) => measure(count, &shape),
        None => {
            println!(
                "{count} paths       register  again     resolve   list      match     unregister \
                 sweep     (million/s)  bytes/path  slowest 64 writes"
            );
            for shape in SHAPES {
                let itself = std::env::current_exe()?;
                let args = [count.to_string(), shape.to_owned()];
                std::process::Command::new(itself).args(args).status()?;
            }
            Ok(())
        }
    }
}

/// The text of the path with that number.
fn path(shape: &str, number: u64) -> String {
    let word = |salt: u64| {
        let mut word = (number ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word ^ word >> 31
    };
    let (high, low) = (word(0), word(7));
    let uuid = || {
        let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
        format!("{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff)
    };
    match shape {
        "uuids" => format!("/jobs/{}", uuid()),
        "parents" => format!("/jobs/{}/x", uuid()),
        _ => format!("/jobs/{:04}/job-{number:015}", number / 1_000),
    }
}

/// The numbers below `count`, in their order or in one that jumps about.
fn numbers(count: u64, shuffled: bool) -> impl Iterator<Item = u64> {
    // A prime that divides no count that anybody would ask for.
    (0..count).map(move |n| if shuffled { n.wrapping_mul(2_147_483_647) % count } else { n })
}

struct Bench {
    directory: Directory,
    shape: String,
    count: u64,
    slowest: Duration,
}

impl Bench {
    /// Does something with all paths, a batch at a time; how many millions a second.
    fn each(&mut self, shuffled: bool, mut with: impl FnMut(&mut Bench, &[PathText<'_>])) -> f64 {
        let mut took = Duration::ZERO;
        let numbers: Vec<u64> = numbers(self.count, shuffled).collect();
        for batch in numbers.chunks(BATCH) {
            let texts: Vec<String> = batch.iter().map(|&n| path(&self.shape, n)).collect();
            let texts: Vec<PathText<'_>> =
                texts.iter().map(|t| PathText::new(t.as_bytes())).collect();
            let begun = worked();
            with(self, &texts);
            took += worked() - begun;
        }
        self.count as f64 / took.as_secs_f64() / 1e6
    }

    fn write(&mut self, shuffled: bool, change: Change) -> f64 {
        let terms = Terms::default();
        let slot = self.directory.writer(WRITER).expect("announced");
        self.each(shuffled, |bench, texts| {
            for stride in texts.chunks(STRIDE) {
                let begun = Instant::now();
                for texts in stride.chunks(WARM) {
                    bench.directory.warm(texts.iter().copied());
                    for &text in texts {
                        bench.directory.write(slot, change, &terms, text).expect("room for it");
                    }
                }
                bench.slowest = bench.slowest.max(begun.elapsed());
            }
        })
    }

    fn resolve(&mut self) -> f64 {
        self.each(true, |bench, texts| {
            let mut resolver = Resolver::default();
            for texts in texts.chunks(WARM) {
                bench.directory.warm(texts.iter().copied());
                texts.iter().for_each(|&text| resolver.answer(&bench.directory, text));
            }
            let answer = resolver.finish(&bench.directory, 1, true);
            assert_eq!(answer.answers.len(), texts.len());
            assert_eq!(answer.sets.len(), 1);
        })
    }

    /// Lists all that lies below a path, row by row.
    fn list(&mut self) -> f64 {
        let (mut below, mut listed) = (vec![Path::new("/jobs").expect("a path")], 0);
        let begun = worked();
        while let Some(path) = below.pop() {
            let (mut children, mut out, mut done) = (Children::new(&path), Vec::new(), false);
            while !done {
                done = children.take(&mut self.directory, STRIDE, &mut out);
                listed += out.len();
                let inner = out.drain(..).filter(|child| !child.published());
                below.extend(inner.map(|child| child.path));
            }
        }
        f64::from(listed as u32) / (worked() - begun).as_secs_f64() / 1e6
    }

    fn list_matching(&mut self, glob: &str) -> f64 {
        let globs = [Glob::new(glob).expect("a glob")];
        let mut matching = Matching::new(&globs).expect("few pieces");
        let (mut out, mut listed, begun) = (Vec::new(), 0, worked());
        while !matching.take(&mut self.directory, STRIDE, &mut out) {
            listed += out.len();
            out.clear();
        }
        listed += out.len();
        assert_eq!(listed as u64, self.count);
        f64::from(listed as u32) / (worked() - begun).as_secs_f64() / 1e6
    }

    fn sweep(&mut self) -> f64 {
        self.directory.clear(WRITER).expect("announced");
        let begun = worked();
        while self.directory.sweep(STRIDE) {}
        self.count as f64 / (worked() - begun).as_secs_f64() / 1e6
    }

    fn announce(&mut self) {
        let info = PublisherInfo {
            id: PublisherId([1; 16]),
            epoch: Epoch(1),
            name: "publisher".into(),
            addresses: vec![([127, 0, 0, 1], 4000).into()],
            later: Default::default(),
        };
        self.directory.announce(Instant::now(), WRITER, &info, &[]).expect("room for one");
    }
}

fn measure(count: u64, shape: &str) -> Result<(), Box<dyn std::error::Error>> {
    let rules = Rules {
        writer_ttl: Duration::from_secs(120),
        stand_still_max: Duration::from_secs(15),
        fresh: true,
        publishers_max: 16,
        paths_max: usize::try_from(count)?,
        watches_max: 16,
    };
    let incarnation = Incarnation(std::array::from_fn(|at| at as u8 * 37));
    let directory = Directory::keyed(Instant::now(), incarnation, [7; 16], rules);
    let mut bench = Bench { directory, shape: shape.to_owned(), count, slowest: Duration::ZERO };
    bench.announce();
    let before = resident()?;
    let register = bench.write(false, Change::Publish);
    let slowest = bench.slowest;
    let bytes = resident()?.saturating_sub(before) / count;
    bench.announce();
    let again = bench.write(true, Change::Publish);
    let resolve = bench.resolve();
    let list = bench.list();
    let list_matching = bench.list_matching("/*/**");
    let unregister = bench.write(true, Change::Unpublish);
    bench.write(true, Change::Publish);
    let sweep = bench.sweep();
    println!(
        "{shape:18} {register:8.2} {again:8.2} {resolve:9.2} {list:9.2} {list_matching:9.2} \
         {unregister:9.2} {sweep:9.2} {bytes:22} {slowest:18.0?}"
    );
    Ok(())
}

/// How long this thread has been at work, as Linux tells it: others may want the core too.
fn worked() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = told.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

/// Bytes of memory that the process has, as Linux tells it.
fn resident() -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1_024)
}
