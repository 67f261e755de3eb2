//! netidx's side: anonymous, on loopback, one resolver server.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{bail, ensure};
use netidx::config::{Config, DefaultAuthMech, file};
use netidx::path::Path;
use netidx::protocol::resolver::{FromRead, PublisherPriority, ToRead};
use netidx::publisher::{Publisher as WholePublisher, PublisherBuilder, Val};
use netidx::resolver_client::{DesiredAuth, ResolverRead, ResolverWrite};
use netidx::resolver_server::{Server, config as server_config};
use poolshark::global::GPooled;

use super::work::{NetidxRegisters, RESOLVE_BATCH, Work, batches, made, pipelined};

/// Paths that one call registers: of 5,000 to 1,000,000 the fastest.
const REGISTER_BATCH: usize = 100_000;
/// Lists that one call asks for: 1 is no faster, and 100 are slower.
const LIST_BATCH: usize = 10;
/// Calls that a read client is given at a time: one is on its way, the other is ready behind it.
const CALLS: usize = 2;

/// Serves until the server is dropped.
pub(crate) async fn serve() -> anyhow::Result<(SocketAddr, Server)> {
    use server_config::file::{Auth, ConfigBuilder, MemberServerBuilder};
    let member = MemberServerBuilder::default()
        .auth(Auth::Anonymous)
        .addr("127.0.0.1:0".parse()?)
        .bind_addr("127.0.0.1".parse()?)
        .build()?;
    let config = ConfigBuilder::default().member_servers(vec![member]).build()?;
    // Reads are not delayed: nobody can have published before.
    let server = Server::new(server_config::Config::from_file(config)?, false, 0).await?;
    Ok((*server.local_addr(), server))
}

/// What clients of that resolver are configured with.
pub(crate) fn client_config(resolver: SocketAddr) -> anyhow::Result<Config> {
    let config = file::ConfigBuilder::default()
        .addrs(vec![(resolver, file::Auth::Anonymous)])
        .default_auth(DefaultAuthMech::Anonymous)
        .default_bind_config("local")
        .build()?;
    Config::from_file(config)
}

/// A publisher that holds all.
pub(super) struct Publisher {
    config: Config,
    registers: NetidxRegisters,
    paths: Vec<Path>,
    held: Option<Held>,
}

/// What keeps the paths published.
#[expect(dead_code, reason = "held, and never looked at")]
enum Held {
    ByResolverWrite(ResolverWrite),
    ByPublisher(WholePublisher, Vec<Val>),
}

impl Publisher {
    pub(super) fn prepare(work: &Work, address: SocketAddr) -> anyhow::Result<Publisher> {
        Ok(Publisher {
            config: client_config(address)?,
            registers: work.netidx_registers,
            paths: work.paths().map(Path::from).collect(),
            held: None,
        })
    }

    /// Returns once the resolver has all.
    pub(super) async fn register(&mut self) -> anyhow::Result<()> {
        let (config, paths) = (self.config.clone(), std::mem::take(&mut self.paths));
        self.held = Some(match self.registers {
            NetidxRegisters::ByResolverWrite => {
                let (auth, priority) = (DesiredAuth::Anonymous, PublisherPriority::Normal);
                let client = ResolverWrite::new(config, auth, "127.0.0.1:1".parse()?, priority)?;
                // It sends a batch once the one before is answered, however many wait.
                for batch in batches(paths.len(), REGISTER_BATCH) {
                    client.publish(paths[batch].iter().cloned()).await?;
                }
                Held::ByResolverWrite(client)
            }
            NetidxRegisters::ByPublisher => {
                let publisher = PublisherBuilder::new(config)
                    .desired_auth(DesiredAuth::Anonymous)
                    .bind_cfg(Some("local".parse()?))
                    .build()
                    .await?;
                let publish = |path| publisher.publish(path, 0u64);
                let values = paths.into_iter().map(publish).collect::<anyhow::Result<_>>()?;
                publisher.flushed().await;
                Held::ByPublisher(publisher, values)
            }
        });
        Ok(())
    }
}

/// Who asks.
pub(super) struct Reader {
    config: Config,
    paths: Arc<[Path]>,
    parents: Arc<[Path]>,
}

impl Reader {
    pub(super) fn prepare(work: &Work, address: SocketAddr) -> anyhow::Result<Reader> {
        Ok(Reader {
            config: client_config(address)?,
            paths: made(work.asked(), |text| Ok(Path::from(text)))?,
            parents: made(work.parents(), |text| Ok(Path::from(text)))?,
        })
    }

    /// How many have a publisher.
    pub(super) async fn resolve(&self, clients: usize) -> anyhow::Result<u64> {
        let all = self.clients(clients);
        let turns = all.iter().cycle().cloned();
        let ask = batches(self.paths.len(), RESOLVE_BATCH).zip(turns).map(|(batch, client)| {
            let paths = self.paths.clone();
            async move {
                let (publishers, answers) = client.resolve(paths[batch].iter().cloned()).await?;
                ensure!(publishers.len() == 1, "{} publishers", publishers.len());
                Ok(answers.iter().filter(|answer| answer.publishers.len() == 1).count() as u64)
            }
        });
        pipelined(ask, CALLS * clients).await
    }

    /// How many paths are listed below all parents.
    pub(super) async fn list(&self, clients: usize) -> anyhow::Result<u64> {
        let all = self.clients(clients);
        let turns = all.iter().cycle().cloned();
        let ask = batches(self.parents.len(), LIST_BATCH).zip(turns).map(|(batch, client)| {
            let parents = self.parents.clone();
            async move {
                let questions = parents[batch].iter().cloned().map(ToRead::List).collect();
                let (_, answers) = client.send(&GPooled::orphan(questions)).await?;
                let mut listed = 0;
                for answer in answers.iter() {
                    match answer {
                        FromRead::List(paths) => listed += paths.len() as u64,
                        other => bail!("answered with {other:?}"),
                    }
                }
                Ok(listed)
            }
        });
        pipelined(ask, CALLS * clients).await
    }

    fn clients(&self, count: usize) -> Vec<ResolverRead> {
        let client = |_| ResolverRead::new(self.config.clone(), DesiredAuth::Anonymous);
        (0..count).map(client).collect()
    }
}
