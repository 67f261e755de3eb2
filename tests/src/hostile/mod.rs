//! A hostile client: attacks on a running system with TLS, a policy and tokens.
//!
//! *Strangers* trust the system's authority and have nothing else. *Mallory* and *Trudy* each have
//! a token, and below [`GROUND`] the rights of producers, workers and publishers. An attack goes on
//! whatever the servers do; it fails if they do what they must not: admit a stranger, obey a lie,
//! leave a question open.

mod bombs;
mod computing;
mod floods;
mod globs;
mod governor;
mod hashes;
mod hellos;
mod jobs;
mod lies;
mod peer;
mod replays;
mod stalls;
mod subscriptions;

use std::io;
use std::net::SocketAddr;
use std::path::Path as FilePath;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use longshore::PublisherId;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::Instant;

use governor::Governor;
pub use governor::Spent;

/// Where Mallory and Trudy have rights.
pub const GROUND: &str = "/mallory";
/// Where others have jobs, of which Mallory tries to get hold.
pub const OTHERS: &str = "/shop/mail";

/// The longest that a server may take for an answer, or for the end of a connection: far longer
/// than it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest that an attack may go on after its time.
const ATTACK_END_MAX: Duration = Duration::from_secs(120);

/// What an attack did to the servers, or what they did wrong.
type Outcome = Result<u64, Surprise>;

/// The attacked system.
#[derive(Clone, Debug)]
pub struct Target {
    /// The publisher's address.
    pub publisher: SocketAddr,
    /// The publisher's id.
    pub publisher_id: PublisherId,
    /// A replica's address.
    pub replica: SocketAddr,
    /// The cluster's name.
    pub cluster: String,
    /// Mallory's token.
    pub mallory: String,
    /// Trudy's token.
    pub trudy: String,
    /// The system's authority.
    pub authority: RootCertStore,
}

impl Target {
    /// The authority in a PEM file.
    pub fn authority(file: &FilePath) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_file_iter(file).expect("the authority's file");
        roots.add_parsable_certificates(certificates.flatten());
        roots
    }
}

/// How hard an attack tries.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Connections at a time, where an attack is about their number.
    pub connections: usize,
    /// Links at a time, which others need too.
    pub links: usize,
    /// Repetitions, by each of several lanes.
    pub rounds: usize,
    /// Items in one request or flood: jobs, paths, subscriptions.
    pub items: usize,
    /// How long an attack goes on; none to end after its rounds.
    pub lasts: Option<Duration>,
    /// The part of a core that the attackers may use; none for all of it.
    pub core_share: Option<f64>,
}

impl Scale {
    /// So small that all attacks together take seconds, and every limit is still met.
    pub const SHORT: Scale = Scale {
        connections: 100,
        links: 16,
        rounds: 6,
        items: 2_000,
        lasts: None,
        core_share: None,
    };

    /// Ten thousand connections, ten seconds each, half a core.
    pub const LONG: Scale = Scale {
        connections: 10_000,
        links: 200,
        rounds: usize::MAX,
        items: 20_000,
        lasts: Some(Duration::from_secs(10)),
        core_share: Some(0.5),
    };
}

/// An attack under way.
struct Attacker {
    target: Target,
    scale: Scale,
    /// Of strangers: no certificate.
    tls: Arc<ClientConfig>,
    began: Instant,
}

impl Attacker {
    /// Whether the attack goes on after so many rounds.
    fn goes_on(&self, rounds: usize) -> bool {
        rounds < self.scale.rounds
            && self.scale.lasts.is_none_or(|lasts| self.began.elapsed() < lasts)
    }

    /// True in the long form, in which timeouts of the servers are waited for.
    fn is_long(&self) -> bool {
        self.scale.lasts.is_some()
    }
}

/// What a server did that it must not.
#[derive(Debug)]
pub struct Surprise(String);

impl From<io::Error> for Surprise {
    fn from(error: io::Error) -> Surprise {
        Surprise(format!("a connection broke: {error}"))
    }
}

impl std::fmt::Display for Surprise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// An error unless the servers did as they must.
fn expect(held: bool, what: impl FnOnce() -> String) -> Result<(), Surprise> {
    if held { Ok(()) } else { Err(Surprise(what())) }
}

type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// One kind of attack.
#[derive(Clone, Copy)]
pub struct Attack {
    /// Its name.
    pub name: &'static str,
    run: for<'a> fn(&'a Attacker) -> Running<'a>,
}

macro_rules! attacks {
    ($($file:ident { $($name:ident,)* })*) => {
        /// All attacks.
        pub const ATTACKS: &[Attack] = &[$($(Attack {
            name: stringify!($name),
            run: |attacker| Box::pin($file::$name(attacker)),
        },)*)*];
    };
}

attacks! {
    computing {
        computing,
    }
    stalls {
        silent_connections,
        half_client_hellos,
        tls_without_a_handshake,
        half_handshakes,
        a_byte_a_second,
        unread_answers,
    }
    floods {
        client_hellos,
        new_links,
        guessed_tokens,
        announced_publishers,
    }
    hellos {
        old_tls,
        garbage_instead_of_tls,
        endless_client_hellos,
        renegotiations,
        new_keys,
        huge_certificates,
    }
    bombs {
        long_frames,
        long_messages,
        long_lists,
        garbage_on_links,
    }
    subscriptions {
        endless_credits,
        many_subscriptions,
        many_watches,
    }
    globs {
        giant_globs,
        backtracking_globs,
    }
    hashes {
        colliding_ids,
        crowded_buckets,
    }
    replays {
        old_connections,
        old_batches,
        stale_tokens,
    }
    lies {
        leases_of_others,
        sessions_of_others,
        queues_of_others,
        forged_publishers,
        forged_epochs,
    }
}

/// A finished attack.
#[derive(Debug)]
pub struct Report {
    /// Attempts: connections, requests, lies.
    pub attempts: u64,
    /// The time it took, and the processor time of the attackers.
    pub spent: Spent,
}

impl Attack {
    /// Runs the attack on a thread of its own, whose processor time is limited, and blocks until
    /// its end. An error is what a server did wrong.
    pub fn run(&self, target: &Target, scale: Scale) -> Result<Report, Surprise> {
        std::thread::scope(|scope| {
            let attackers = scope.spawn(|| self.run_here(target.clone(), scale));
            attackers.join().unwrap_or_else(|_| Err(Surprise("the attack panicked".into())))
        })
    }

    fn run_here(&self, target: Target, scale: Scale) -> Result<Report, Surprise> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let governor = Governor::start(scale.core_share);
            let tls = Arc::new(strangers_tls(&target)?);
            let attacker = Attacker { target, scale, tls, began: Instant::now() };
            let limit = scale.lasts.unwrap_or_default() + ATTACK_END_MAX;
            let attack = tokio::time::timeout(limit, (self.run)(&attacker));
            let attempts = tokio::select! {
                ended = attack => {
                    ended.map_err(|_| Surprise(format!("it has not ended within {limit:?}")))??
                }
                never = governor.limit() => match never {},
            };
            Ok(Report { attempts, spent: governor.spent() })
        })
    }
}

/// TLS of a client that has nothing but the authority.
fn strangers_tls(target: &Target) -> Result<ClientConfig, Surprise> {
    let builder = tls_builder(target)?;
    Ok(builder.with_no_client_auth())
}

fn tls_builder(
    target: &Target,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>, Surprise> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| Surprise(error.to_string()))?;
    Ok(builder.with_root_certificates(target.authority.clone()))
}
