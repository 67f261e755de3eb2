//! Twenty kinds of jobs, and a worker that has a handler for each; for comparison, one kind for the
//! same jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use longshore::middleware::Identity;
use longshore::{
    Codec, CodecError, JobKind, Kinds, ParameterError, Path, Payload, State, Subscription, Worker,
};

/// The number of kinds.
pub const KINDS: usize = 20;

/// A kind for each number below [`KINDS`], whose payload is bytes.
#[derive(Clone)]
pub struct Numbered<const N: usize>(pub Bytes);

/// One kind for the queues of all the others. Its payload begins with the number.
#[derive(Clone)]
pub struct AnyNumber(pub Bytes);

/// The handlers' state: how many jobs of each kind they completed.
pub type Completed = Arc<[AtomicU64; KINDS]>;

/// Payloads as they are.
pub struct RawCodec;

impl<const N: usize> Codec<Numbered<N>> for RawCodec {
    fn encode(value: &Numbered<N>) -> Result<Bytes, CodecError> {
        Ok(value.0.clone())
    }

    fn decode(bytes: &Bytes) -> Result<Numbered<N>, CodecError> {
        Ok(Numbered(bytes.clone()))
    }
}

impl Codec<AnyNumber> for RawCodec {
    fn encode(value: &AnyNumber) -> Result<Bytes, CodecError> {
        Ok(value.0.clone())
    }

    fn decode(bytes: &Bytes) -> Result<AnyNumber, CodecError> {
        Ok(AnyNumber(bytes.clone()))
    }
}

impl Codec<()> for RawCodec {
    fn encode((): &()) -> Result<Bytes, CodecError> {
        Ok(Bytes::new())
    }

    fn decode(_: &Bytes) -> Result<(), CodecError> {
        Ok(())
    }
}

async fn complete<const N: usize>(
    _: Payload<Numbered<N>>,
    State(completed): State<Completed>,
) -> Result<(), CodecError> {
    completed[N].fetch_add(1, Ordering::Relaxed);
    Ok(())
}

async fn complete_any(
    Payload(AnyNumber(payload)): Payload<AnyNumber>,
    State(completed): State<Completed>,
) -> Result<(), CodecError> {
    let count = payload.first().and_then(|number| completed.get(usize::from(*number)));
    count.ok_or_else(|| CodecError::new("no number"))?.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

macro_rules! kinds {
    ($($number:literal)*) => {
        /// A queue of each kind, by number.
        pub const QUEUES: [&str; KINDS] = [$(concat!("/kinds/", $number, "/queue")),*];
        const PATHS: [&str; KINDS] = [$(concat!("/kinds/", $number, "/{name}")),*];

        /// A worker of all kinds.
        pub fn worker_of_all(
            worker: Worker,
            completed: Completed,
        ) -> Subscription<Identity, Kinds<Completed>> {
            worker.state(completed)$(.handle(complete::<$number>))*
        }
    };
}

kinds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);

/// A worker of one kind, for the jobs of all queues.
pub fn worker_of_one(
    worker: Worker,
    completed: Completed,
) -> Subscription<Identity, Kinds<Completed>> {
    worker.state(completed).handle(complete_any)
}

impl<const N: usize> JobKind for Numbered<N> {
    const PATH: &'static str = PATHS[N];
    type Output = ();
    type Codec = RawCodec;

    fn path(&self) -> Result<Path, ParameterError> {
        Path::new(QUEUES[N]).map_err(ParameterError::Path)
    }
}

impl JobKind for AnyNumber {
    const PATH: &'static str = "/kinds/{number}/{name}";
    type Output = ();
    type Codec = RawCodec;

    fn path(&self) -> Result<Path, ParameterError> {
        let number = self.0.first().map_or(0, |number| usize::from(*number));
        Path::new(QUEUES[number % KINDS]).map_err(ParameterError::Path)
    }
}
