//! What the running system has that begins like the typed word. Silent on failure, and never
//! longer than [`TIMEOUT`].

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;
use longshore::{Cluster, Glob, Path, PathListed, Queues, ReadClient, Subscriber};

use crate::commands::sys::{bases, below, read, text};
use crate::config::{self, Config, ConfigOverrides, SystemFlags};
use crate::output::shell_word;
use crate::tls::Tls;
use crate::token_store::TokenStore;

/// The longest time that a person waits for a completion.
const TIMEOUT: Duration = Duration::from_millis(500);
/// The most candidates: more help nobody, and the shell has to lay them out.
const CANDIDATES_MAX: usize = 500;

/// Paths, a level at a time: a folder ends with `/`, so that its children complete next.
pub(super) fn paths(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let typed = if typed.is_empty() { "/" } else { typed };
    let Some((folder, _)) = typed.rsplit_once('/') else { return Vec::new() };
    let listed = ask(async |cluster| {
        let client = ReadClient::builder().name("longshore").connect(cluster);
        let folder = if folder.is_empty() { Path::root() } else { Path::new(folder).ok()? };
        let mut listed = client.list(folder).await.ok()?.paths;
        if let Some(itself) = Path::new(typed).ok().filter(|path| *path != Path::root()) {
            // Also what is below a queue.
            listed.extend(client.list(itself).await.ok()?.paths);
        }
        Some(listed)
    });
    candidates(listed.iter().flatten().map(shown), typed)
}

/// A path as it is typed.
fn shown(listed: &PathListed) -> String {
    match listed.queue || listed.value {
        true => listed.path.to_string(),
        false => format!("{}/", listed.path),
    }
}

/// The names of connected workers.
pub(super) fn workers(typed: &OsStr) -> Vec<CompletionCandidate> {
    let names = ask(async |cluster| {
        let client = ReadClient::builder().name("longshore").connect(cluster.clone());
        let (bases, _) = bases(&client, "publishers").await.ok()?;
        let paths = bases.iter().filter_map(|base| below(base, "workers")).collect();
        let subscriber = Subscriber::connect(cluster);
        let mut names = Vec::new();
        for (_, metric) in read(&subscriber, paths).await {
            let metric = metric.unwrap_or_default();
            let workers = metric["workers"].as_array().into_iter().flatten();
            names.extend(workers.map(|worker| text(worker, "name").to_owned()));
        }
        Some(names)
    });
    candidates(names.into_iter().flatten(), &typed.to_string_lossy())
}

/// The names of publishers.
pub(super) fn publishers(typed: &OsStr) -> Vec<CompletionCandidate> {
    let names = ask(async |cluster| {
        let found = Queues::connect(cluster).publishers(&Glob::everything()).await;
        let (_, publishers) = found.ok()?;
        Some(publishers.into_iter().map(|one| one.name).collect::<Vec<_>>())
    });
    candidates(names.into_iter().flatten(), &typed.to_string_lossy())
}

/// The names of stored contexts.
pub(super) fn contexts(typed: &OsStr) -> Vec<CompletionCandidate> {
    let names = config::contexts().ok().and_then(|contexts| contexts.names().ok());
    candidates(names.into_iter().flatten(), &typed.to_string_lossy())
}

/// The names in the token file.
pub(super) fn tokens(typed: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let file = value_of(&words, "--file").map(PathBuf::from);
    let configured = || Config::load(&overrides(&words)).ok()?.access.tokens.value;
    let tokens = file.or_else(configured).and_then(|file| TokenStore::new(file).read().ok()?);
    let names = tokens.iter().flat_map(|tokens| tokens.iter().map(|token| token.name.clone()));
    candidates(names, &typed.to_string_lossy())
}

/// The names that begin like the typed word. Shells insert a candidate without quotes, and any
/// client chooses names: one that a shell would interpret, or that reads as a flag, is left out.
fn candidates(names: impl IntoIterator<Item = String>, typed: &str) -> Vec<CompletionCandidate> {
    let is_safe =
        |name: &str| matches!(shell_word(name), Cow::Borrowed(_)) && !name.starts_with('-');
    let mut names: Vec<String> =
        names.into_iter().filter(|name| name.starts_with(typed) && is_safe(name)).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().take(CANDIDATES_MAX).map(CompletionCandidate::new).collect()
}

/// Asks the system that the typed command would use.
fn ask<T, F: Future<Output = Option<T>>>(query: impl FnOnce(Cluster) -> F) -> Option<T> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let config = Config::load(&overrides(&words)).ok()?;
    let cluster = Tls::load(&config).ok()?.cluster(&config);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let answer =
        runtime.block_on(async { tokio::time::timeout(TIMEOUT, query(cluster)).await.ok() });
    runtime.shutdown_background();
    answer.flatten()
}

/// The global flags among the typed words, which need not parse yet.
fn overrides(words: &[OsString]) -> ConfigOverrides {
    let value = |flag| value_of(words, flag);
    let text = |flag| value(flag).map(str::to_owned);
    ConfigOverrides {
        resolvers: value("--resolver").map(|list| list.split(',').map(str::to_owned).collect()),
        context: text("--context"),
        config: value("--config").map(Into::into),
        system: SystemFlags {
            cluster: text("--cluster"),
            tls_ca: text("--tls-ca"),
            tls_certificate: text("--tls-certificate"),
            tls_key: text("--tls-key"),
            tls_server_name: text("--tls-server-name"),
            token_file: text("--token-file"),
        },
        ..ConfigOverrides::default()
    }
}

/// The value of the last such flag.
fn value_of<'a>(words: &'a [OsString], flag: &str) -> Option<&'a str> {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let at = words.iter().rposition(|word| {
        word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    match words[at].split_once('=') {
        Some((_, value)) => Some(value),
        None => words.get(at + 1).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn global_flags_are_found_in_a_line_that_does_not_parse_yet() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let found = overrides(&words("longshore -- longshore --resolver=a:1,b:1 stat /jo"));
        assert_eq!(found.resolvers, Some(vec!["a:1".to_owned(), "b:1".to_owned()]));
        let found = overrides(&words("longshore -- longshore stat --context prod --config /c /"));
        assert_eq!((found.context, found.config), (Some("prod".into()), Some("/c".into())));
        assert_eq!(found.resolvers, None);
        assert!(overrides(&words("longshore stat --resolver")).resolvers.is_none());
    }

    #[test]
    fn candidates_begin_like_the_word_are_sorted_and_unique() {
        let names =
            ["web-2", "web-1", "mail", "web-1", "", "web;id", "web$(id)"].map(str::to_owned);
        let values: Vec<_> =
            candidates(names, "web").iter().map(|one| one.get_value().to_owned()).collect();
        assert_eq!(values, ["web-1", "web-2"]);
        assert!(candidates(["--all".to_owned()], "").is_empty());
    }
}
