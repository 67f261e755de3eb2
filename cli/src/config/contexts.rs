//! Contexts: named systems, one TOML file each, and the selected one.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::file::line_of;
use super::raw_value::Key;
use super::tls::TlsSection;
use super::{Origin, Setting, values};
use crate::files;

/// The most bytes of a context's name.
const NAME_BYTES_MAX: usize = 64;

/// The stored contexts: `contexts/NAME.toml` in the configuration folder, and `context`, the name
/// of the selected one.
#[derive(Clone, Debug)]
pub(crate) struct Contexts {
    folder: PathBuf,
}

/// A named system.
#[derive(Debug)]
pub(crate) struct NamedContext {
    pub(crate) name: String,
    pub(super) file: PathBuf,
    /// The text of the file.
    pub(super) text: String,
    /// The resolver's replicas.
    pub(crate) resolvers: Setting<Vec<String>>,
    pub(super) cluster: Key<String>,
    pub(super) token_file: Key<String>,
    pub(super) tls: TlsSection,
}

/// A context's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextFile {
    resolvers: Spanned<Vec<String>>,
    #[serde(default)]
    cluster: Key<String>,
    #[serde(default)]
    token_file: Key<String>,
    #[serde(default)]
    tls: TlsSection,
}

impl NamedContext {
    /// Its keys beside the replicas, as they are written, each with its origin.
    pub(crate) fn other_keys(&self) -> Vec<(&'static str, Setting<String>)> {
        let TlsSection { ca, certificate, key, server_name, client_certificates } = &self.tls;
        let keys = [
            ("cluster", &self.cluster),
            ("token_file", &self.token_file),
            ("tls.ca", ca),
            ("tls.certificate", certificate),
            ("tls.key", key),
            ("tls.server_name", server_name),
            ("tls.client_certificates", client_certificates),
        ];
        let written = |(name, key): (&'static str, &Key<String>)| {
            let key = key.as_ref()?;
            let line = line_of(&self.text, key.span().start);
            let origin = Origin::File { file: self.file.clone(), line };
            Some((name, Setting { value: key.get_ref().text(), origin }))
        };
        keys.into_iter().filter_map(written).collect()
    }
}

/// What a new context stores beside its replicas, as `KEY = VALUE` of each section.
#[derive(Clone, Default, Debug)]
pub(crate) struct ContextKeys {
    /// Those outside of sections.
    pub(crate) top: Vec<(&'static str, String)>,
    /// Those of `[tls]`.
    pub(crate) tls: Vec<(&'static str, String)>,
}

impl Contexts {
    /// The contexts in the program's configuration folder.
    pub(crate) fn in_folder(folder: PathBuf) -> Contexts {
        Contexts { folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join("contexts").join(format!("{name}.toml"))
    }

    fn selection(&self) -> PathBuf {
        self.folder.join("context")
    }

    /// All names, sorted. Files whose names are no context's are left out.
    pub(crate) fn names(&self) -> Result<Vec<String>, String> {
        let folder = self.folder.join("contexts");
        let named = |why: io::Error| format!("cannot read {}: {why}", folder.display());
        let mut names = Vec::new();
        match fs::read_dir(&folder) {
            Ok(entries) => {
                for entry in entries {
                    let file = entry.map_err(named)?.file_name();
                    let name = file.to_str().and_then(|name| name.strip_suffix(".toml"));
                    names.extend(name.filter(|name| parse_name(name).is_ok()).map(str::to_owned));
                }
            }
            Err(why) if is_absent(&why) => {}
            Err(why) => return Err(named(why)),
        }
        names.sort_unstable();
        Ok(names)
    }

    /// One context. An error names its file and line, or the names that exist.
    pub(crate) fn read(&self, name: &str) -> Result<NamedContext, String> {
        let name = parse_name(name)?;
        let file = self.file(&name);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(why) if is_absent(&why) => return Err(self.unknown(&name)),
            Err(why) => return Err(format!("cannot read {}: {why}", file.display())),
        };
        let at =
            |offset, why: &str| format!("{}:{}: {why}", file.display(), line_of(&text, offset));
        let ContextFile { resolvers, cluster, token_file, tls } = toml::from_str(&text)
            .map_err(|error| at(error.span().map_or(0, |span| span.start), error.message()))?;
        let start = resolvers.span().start;
        let value = values::replicas(resolvers.into_inner())
            .map_err(|why| at(start, &format!("resolvers: {why}")))?;
        let line = line_of(&text, start);
        let origin = Origin::File { file: file.clone(), line };
        let resolvers = Setting { value, origin };
        Ok(NamedContext { name, file, text, resolvers, cluster, token_file, tls })
    }

    fn unknown(&self, name: &str) -> String {
        let names = self.names().unwrap_or_default().join(", ");
        match names.is_empty() {
            true => format!(
                "there is no context {name}; add it: longshore context add {name} \
                 --resolver HOST:PORT,…"
            ),
            false => format!("there is no context {name}; there are: {names}"),
        }
    }

    /// The name of the selected context, if one is selected.
    pub(crate) fn selected(&self) -> Result<Option<Setting<String>>, String> {
        let file = self.selection();
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(why) if is_absent(&why) => return Ok(None),
            Err(why) => return Err(format!("cannot read {}: {why}", file.display())),
        };
        let name = text.trim();
        if name.is_empty() {
            return Ok(None);
        }
        let value = parse_name(name).map_err(|why| format!("{}:1: {why}", file.display()))?;
        Ok(Some(Setting { value, origin: Origin::File { file, line: 1 } }))
    }

    /// Stores a context. Without `replace`, an existing one is an error.
    pub(crate) fn add(
        &self,
        name: &str,
        resolvers: &[String],
        keys: &ContextKeys,
        replace: bool,
    ) -> Result<(), String> {
        let file = self.file(name);
        if !replace && file.exists() {
            return Err(format!("context {name} exists already; --replace replaces it"));
        }
        write_system(&file, resolvers, keys)
    }

    /// Selects a context.
    pub(crate) fn select(&self, name: &str) -> Result<(), String> {
        self.read(name)?;
        write_atomically(&self.selection(), &format!("{name}\n"))
    }

    /// Selects none.
    pub(crate) fn select_none(&self) -> Result<(), String> {
        remove(&self.selection()).map(|_| ())
    }

    /// Removes a context, also one whose file is damaged.
    pub(crate) fn remove(&self, name: &str) -> Result<(), String> {
        match remove(&self.file(name))? {
            true => Ok(()),
            false => Err(self.unknown(name)),
        }
    }
}

/// Writes a file that names a system: a context, or a configuration.
pub(crate) fn write_system(
    file: &Path,
    resolvers: &[String],
    keys: &ContextKeys,
) -> Result<(), String> {
    // A text of JSON is one of TOML, too.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let list: Vec<String> = resolvers.iter().map(|one| quoted(one)).collect();
    let line = |(key, value): &(&str, String)| format!("{key} = {}\n", quoted(value));
    let mut text = format!("resolvers = [{}]\n", list.join(", "));
    text.extend(keys.top.iter().map(line));
    if !keys.tls.is_empty() {
        text += "\n[tls]\n";
        text.extend(keys.tls.iter().map(line));
    }
    write_atomically(file, &text)
}

/// Validates a name: it is part of a file's name, and typed often.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && text.chars().all(fits) && text.len() <= NAME_BYTES_MAX {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} is not a context's name; use up to {NAME_BYTES_MAX} letters, digits, '-', '_' \
         and '.', the first one a letter or a digit"
    ))
}

/// Replaces a file in one step.
fn write_atomically(file: &Path, text: &str) -> Result<(), String> {
    files::replace(file, text).map_err(|why| format!("cannot write {}: {why}", file.display()))
}

/// Removes a file; false if there is none.
fn remove(file: &Path) -> Result<bool, String> {
    match fs::remove_file(file) {
        Ok(()) => Ok(true),
        Err(why) if is_absent(&why) => Ok(false),
        Err(why) => Err(format!("cannot remove {}: {why}", file.display())),
    }
}

fn is_absent(why: &io::Error) -> bool {
    matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_stored_selected_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let contexts = Contexts::in_folder(folder.path().join("longshore"));
        assert_eq!((contexts.names().unwrap().len(), contexts.selected().unwrap()), (0, None));
        assert!(contexts.select("prod").unwrap_err().contains("context add prod"));
        let replicas = ["a:4770".to_owned(), "[::1]:4770".to_owned()];
        contexts.add("prod", &replicas, &ContextKeys::default(), false).unwrap();
        contexts.add("dev", &replicas[..1], &ContextKeys::default(), false).unwrap();
        assert!(
            contexts
                .add("dev", &replicas, &ContextKeys::default(), false)
                .unwrap_err()
                .contains("--replace")
        );
        contexts.add("dev", &replicas[1..], &ContextKeys::default(), true).unwrap();
        assert_eq!(contexts.names().unwrap(), ["dev", "prod"]);
        assert_eq!(contexts.read("prod").unwrap().resolvers.value, replicas);
        contexts.select("dev").unwrap();
        assert_eq!(contexts.selected().unwrap().unwrap().value, "dev");
        assert!(contexts.read("test").unwrap_err().ends_with("there are: dev, prod"));
        contexts.select_none().unwrap();
        contexts.remove("dev").unwrap();
        assert!(contexts.remove("dev").is_err());
        let files = std::fs::read_dir(folder.path().join("longshore/contexts")).unwrap();
        assert_eq!(files.count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_damaged_file_is_named_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let contexts = Contexts::in_folder(folder.path().to_owned());
        std::fs::create_dir(folder.path().join("contexts")).unwrap();
        for (text, expected) in [
            ("# ours\nresolver = ['a:1']\n", ":2: unknown field `resolver`"),
            ("\nresolvers = ['host:port']\n", ":2: resolvers: "),
            ("resolvers = [\n", ":1: "),
            ("", ":1: missing field `resolvers`"),
        ] {
            std::fs::write(folder.path().join("contexts/prod.toml"), text).unwrap();
            let error = contexts.read("prod").unwrap_err();
            assert!(error.contains(&format!("contexts/prod.toml{expected}")), "{error}");
        }
        std::fs::write(folder.path().join("context"), "../prod\n").unwrap();
        let error = contexts.selected().unwrap_err();
        assert!(error.contains("context:1: \"../prod\" is not a context's name"), "{error}");
    }
}
