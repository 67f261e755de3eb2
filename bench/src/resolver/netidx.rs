//! netidx's resolver and its clients: anonymous, on loopback, with one resolver server.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{bail, ensure};
use netidx::config::{Config, DefaultAuthMech, file};
use netidx::path::Path;
use netidx::protocol::resolver::{FromRead, PublisherPriority, ToRead};
use netidx::publisher::{Publisher as NetidxPublisher, PublisherBuilder, Val};
use netidx::resolver_client::{DesiredAuth, ResolverRead, ResolverWrite};
use netidx::resolver_server::{Server, config as server_config};
use poolshark::global::GPooled;

use super::work::{NetidxRegisters, RESOLVE_BATCH, Work, batches, build_all, pipelined};

/// Paths that one call registers: the fastest of 5,000 to 1,000,000.
const REGISTER_BATCH: usize = 100_000;
/// Lists that one call requests: 1 is no faster and 100 are slower.
const LIST_BATCH: usize = 10;
/// Simultaneous calls of a read client: one is in flight, the next waits behind it.
const CALLS_PER_CLIENT: usize = 2;

/// Serves until the server is dropped.
pub(crate) async fn serve() -> anyhow::Result<(SocketAddr, Server)> {
    use server_config::file::{Auth, ConfigBuilder, MemberServerBuilder};
    let member = MemberServerBuilder::default()
        .auth(Auth::Anonymous)
        .addr("127.0.0.1:0".parse()?)
        .bind_addr("127.0.0.1".parse()?)
        .build()?;
    let config = ConfigBuilder::default().member_servers(vec![member]).build()?;
    // Reads are not delayed, since no publisher was there before.
    let server = Server::new(server_config::Config::from_file(config)?, false, 0).await?;
    Ok((*server.local_addr(), server))
}

/// The configuration of this resolver's clients.
pub(crate) fn client_config(resolver: SocketAddr) -> anyhow::Result<Config> {
    let config = file::ConfigBuilder::default()
        .addrs(vec![(resolver, file::Auth::Anonymous)])
        .default_auth(DefaultAuthMech::Anonymous)
        .default_bind_config("local")
        .build()?;
    Config::from_file(config)
}

/// A publisher of all paths.
pub(super) struct Publisher {
    config: Config,
    registers: NetidxRegisters,
    paths: Vec<Path>,
    publication: Option<Publication>,
}

/// Keeps the paths published while it exists.
#[expect(dead_code, reason = "keeps the paths published until it is dropped")]
enum Publication {
    ByResolverWrite(ResolverWrite),
    ByPublisher(NetidxPublisher, Vec<Val>),
}

impl Publisher {
    pub(super) fn prepare(work: &Work, address: SocketAddr) -> anyhow::Result<Publisher> {
        Ok(Publisher {
            config: client_config(address)?,
            registers: work.netidx_registers,
            paths: work.paths().map(Path::from).collect(),
            publication: None,
        })
    }

    /// Registers all paths; returns once the resolver has them.
    pub(super) async fn register(&mut self) -> anyhow::Result<()> {
        let (config, paths) = (self.config.clone(), std::mem::take(&mut self.paths));
        self.publication = Some(match self.registers {
            NetidxRegisters::ByResolverWrite => {
                let (auth, priority) = (DesiredAuth::Anonymous, PublisherPriority::Normal);
                let client = ResolverWrite::new(config, auth, "127.0.0.1:1".parse()?, priority)?;
                // The client sends a batch only after the answer to the one before.
                for batch in batches(paths.len(), REGISTER_BATCH) {
                    client.publish(paths[batch].iter().cloned()).await?;
                }
                Publication::ByResolverWrite(client)
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
                Publication::ByPublisher(publisher, values)
            }
        });
        Ok(())
    }
}

/// Resolves and lists paths.
pub(super) struct Reader {
    config: Config,
    paths: Arc<[Path]>,
    parents: Arc<[Path]>,
}

impl Reader {
    pub(super) fn prepare(work: &Work, address: SocketAddr) -> anyhow::Result<Reader> {
        Ok(Reader {
            config: client_config(address)?,
            paths: build_all(work.resolve_order(), |text| Ok(Path::from(text)))?,
            parents: build_all(work.parents(), |text| Ok(Path::from(text)))?,
        })
    }

    /// Resolves all paths; returns how many have a publisher.
    pub(super) async fn resolve(&self, clients: usize) -> anyhow::Result<u64> {
        let all = self.clients(clients);
        let turns = all.iter().cycle().cloned();
        let calls = batches(self.paths.len(), RESOLVE_BATCH).zip(turns).map(|(batch, client)| {
            let paths = self.paths.clone();
            async move {
                let (publishers, answers) = client.resolve(paths[batch].iter().cloned()).await?;
                ensure!(publishers.len() == 1, "{} publishers", publishers.len());
                Ok(answers.iter().filter(|answer| answer.publishers.len() == 1).count() as u64)
            }
        });
        pipelined(calls, CALLS_PER_CLIENT * clients).await
    }

    /// Lists the paths below all parents; returns their number.
    pub(super) async fn list(&self, clients: usize) -> anyhow::Result<u64> {
        let all = self.clients(clients);
        let turns = all.iter().cycle().cloned();
        let calls = batches(self.parents.len(), LIST_BATCH).zip(turns).map(|(batch, client)| {
            let parents = self.parents.clone();
            async move {
                let requests = parents[batch].iter().cloned().map(ToRead::List).collect();
                let (_, answers) = client.send(&GPooled::orphan(requests)).await?;
                let mut listed = 0;
                for answer in answers.iter() {
                    match answer {
                        FromRead::List(paths) => listed += paths.len() as u64,
                        other => bail!("unexpected answer {other:?}"),
                    }
                }
                Ok(listed)
            }
        });
        pipelined(calls, CALLS_PER_CLIENT * clients).await
    }

    fn clients(&self, count: usize) -> Vec<ResolverRead> {
        let client = |_| ResolverRead::new(self.config.clone(), DesiredAuth::Anonymous);
        (0..count).map(client).collect()
    }
}
