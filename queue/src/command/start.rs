//! The start of a publisher.

use std::fmt;

use longshore_protocol::{
    Decode, Durability, Encode, Epoch, FrameWriter, Path, PublisherId, Reader, WireError,
};

use crate::rules::Rules;

/// Most paths, and most defaults, that a publisher may be started with.
pub const START_PATHS_MAX: usize = 100_000;

/// The parameters of a start.
#[derive(Clone, PartialEq, Debug)]
pub struct Start {
    /// The publisher's id, which lives as long as its data directory.
    pub publisher: PublisherId,
    /// One more than the last epoch.
    pub epoch: Epoch,
    /// The machine's boot id: within one boot, monotonic time continues by the clock; across boots,
    /// by the wall clock.
    pub boot: [u8; 16],
    /// Keys the index of ids, so that no client can choose ids that collide in it. Drawn when the
    /// data directory is created; only the first start's counts, and later ones repeat it.
    pub secret: Secret,
    /// The rules that apply from now on.
    pub rules: Box<Rules>,
    /// How durable this run's acknowledgements are.
    pub durability: Durability,
    /// Paths that it serves by name.
    pub paths: Vec<Path>,
    /// Paths below which any queue is created on first use.
    pub defaults: Vec<Path>,
}

/// 16 random bytes that no message, listing or log line contains.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Encode for Start {
    fn encode(&self, out: &mut FrameWriter) {
        self.publisher.encode(out);
        self.epoch.encode(out);
        out.put(&self.boot);
        out.put(&self.secret.0);
        self.rules.encode(out);
        self.durability.encode(out);
        self.paths.encode(out);
        self.defaults.encode(out);
    }
}

impl Decode for Start {
    fn decode(r: &mut Reader) -> Result<Start, WireError> {
        Ok(Start {
            publisher: PublisherId::decode(r)?,
            epoch: Epoch::decode(r)?,
            boot: r.id()?,
            secret: Secret(r.id()?),
            rules: Box::new(Rules::decode(r)?),
            durability: Durability::decode(r)?,
            paths: r.list("paths of a start", START_PATHS_MAX)?,
            defaults: r.list("defaults of a start", START_PATHS_MAX)?,
        })
    }
}
