//! Longshore's resolver and its clients.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use longshore_protocol::{Epoch, Path, PublisherId, PublisherInfo, Terms};
use longshore_resolver::{
    CheckedTerms, Cluster, PathAnswer, ReadClient, ResolverServer, ServerOptions, WriteClient,
};

use super::work::{RESOLVE_BATCH, Work, batches, build_all, pipelined};

/// Batches that one read client has in flight.
const IN_FLIGHT: usize = 8;

/// Serves until the process exits.
pub(crate) async fn serve() -> anyhow::Result<SocketAddr> {
    // No publisher was there before.
    let options = ServerOptions { fresh: true, ..ServerOptions::default() };
    let server = ResolverServer::bind("127.0.0.1:0".parse()?, options)?;
    let address = server.local_address();
    tokio::spawn(server.run(std::future::pending()));
    Ok(address)
}

/// A publisher of all paths.
pub(super) struct Publisher {
    address: SocketAddr,
    paths: Vec<Path>,
    client: Option<WriteClient>,
}

impl Publisher {
    pub(super) fn prepare(work: &Work, address: SocketAddr) -> anyhow::Result<Publisher> {
        let paths =
            work.paths().map(|text| Ok(Path::new(&text)?)).collect::<anyhow::Result<_>>()?;
        Ok(Publisher { address, paths, client: None })
    }

    /// Registers all paths; returns once the replica has them.
    pub(super) async fn register(&mut self) -> anyhow::Result<()> {
        let publisher = PublisherInfo {
            id: PublisherId([1; 16]),
            epoch: Epoch(1),
            name: "bench".to_owned(),
            addresses: vec!["127.0.0.1:1".parse()?],
            tls_name: None,
            later: Default::default(),
        };
        let cluster = Cluster::new([self.address.to_string()]);
        let client = WriteClient::connect(cluster, publisher);
        let terms = CheckedTerms::new(Terms::default())?;
        let paths = std::mem::take(&mut self.paths).into_iter();
        client.publish_all(paths.map(|path| (path, terms.clone())));
        client.flushed(1).await;
        let states = client.status();
        let state = states.first().context("no replica")?;
        ensure!(
            state.pending == 0 && state.refused == 0,
            "not all paths are registered: {state:?}"
        );
        self.client = Some(client);
        Ok(())
    }
}

/// Resolves and lists paths.
pub(super) struct Reader {
    cluster: Cluster,
    paths: Arc<[Path]>,
    parents: Arc<[Path]>,
}

impl Reader {
    pub(super) fn prepare(work: &Work, address: SocketAddr) -> anyhow::Result<Reader> {
        let make = |text: String| Ok(Path::new(&text)?);
        Ok(Reader {
            cluster: Cluster::new([address.to_string()]),
            paths: build_all(work.resolve_order(), make)?,
            parents: build_all(work.parents(), make)?,
        })
    }

    /// Resolves all paths; returns how many have a publisher.
    pub(super) async fn resolve(&self, clients: usize) -> anyhow::Result<u64> {
        let all = self.clients(clients);
        let turns = all.iter().cycle().cloned();
        let calls = batches(self.paths.len(), RESOLVE_BATCH).zip(turns).map(|(batch, client)| {
            let paths = self.paths.clone();
            async move {
                let resolution = client.resolve(paths[batch].to_vec()).await?;
                let found = |answer: &&PathAnswer| {
                    matches!(
                        answer,
                        PathAnswer::Publishers { set, by_default: false, .. } if set.len() == 1
                    )
                };
                Ok(resolution.answers.iter().filter(found).count() as u64)
            }
        });
        pipelined(calls, IN_FLIGHT * clients).await
    }

    /// Lists the paths below all parents; returns their number.
    pub(super) async fn list(&self, clients: usize) -> anyhow::Result<u64> {
        let all = self.clients(clients);
        let turns = all.iter().cycle().cloned();
        let calls = (0..self.parents.len()).zip(turns).map(|(index, client)| {
            let parents = self.parents.clone();
            async move { Ok(client.list(parents[index].clone()).await?.paths.len() as u64) }
        });
        pipelined(calls, IN_FLIGHT * clients).await
    }

    fn clients(&self, count: usize) -> Vec<ReadClient> {
        let client = |_| ReadClient::builder().name("bench").connect(self.cluster.clone());
        (0..count).map(client).collect()
    }
}
