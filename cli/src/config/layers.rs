//! The environment over the file over the default.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::file::line_of;
use super::{ENV_CONFIG, Given, Origin, Setting};

/// A configuration file that was found.
pub(super) struct Named {
    pub(super) place: Setting<PathBuf>,
    pub(super) text: String,
}

impl Named {
    /// A file that was asked for must be there; the usual places may be empty.
    pub(super) fn find(
        given: &Given,
        environment: &BTreeMap<String, String>,
    ) -> Result<Option<Named>, String> {
        let asked = given
            .config
            .clone()
            .map(|file| Setting { value: file, origin: Origin::Flag("--config") })
            .or_else(|| {
                let file = environment.get(ENV_CONFIG).filter(|file| !file.is_empty())?;
                Some(Setting {
                    value: PathBuf::from(file),
                    origin: Origin::Environment(ENV_CONFIG),
                })
            });
        if let Some(place) = asked {
            let text = std::fs::read_to_string(&place.value).map_err(|error| {
                format!("cannot read {} ({}): {error}", place.value.display(), place.origin)
            })?;
            return Ok(Some(Named { place, text }));
        }
        let usual = environment
            .get("HOME")
            .map(|home| Path::new(home).join(".config/longshore/config.toml"))
            .into_iter()
            .chain([PathBuf::from("/etc/longshore/config.toml")]);
        for file in usual {
            match std::fs::read_to_string(&file) {
                Ok(text) => {
                    return Ok(Some(Named { place: Setting::default_of(file), text }));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {}
                Err(error) => return Err(format!("cannot read {}: {error}", file.display())),
            }
        }
        Ok(None)
    }
}

/// A variable, and how its text is read.
type FromEnvironment<'a, T> = (&'static str, &'a dyn Fn(&str) -> Result<T, String>);

/// The environment over the file over the default.
pub(super) struct Layers<'a> {
    pub(super) environment: &'a BTreeMap<String, String>,
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Layers<'_> {
    /// The value of a key that no variable stands for.
    pub(super) fn of_file<W, T>(
        &self,
        key: &str,
        written: Option<Spanned<W>>,
        read: impl FnOnce(W) -> Result<T, String>,
        default: T,
    ) -> Result<Setting<T>, String> {
        self.pick(key, None, written, read, default)
    }

    /// The value of a key; an error says where it is written and what was expected.
    pub(super) fn pick<W, T>(
        &self,
        key: &str,
        environment: Option<FromEnvironment<'_, T>>,
        written: Option<Spanned<W>>,
        read: impl FnOnce(W) -> Result<T, String>,
        default: T,
    ) -> Result<Setting<T>, String> {
        if let Some((variable, read)) = environment
            && let Some(text) = self.environment.get(variable).filter(|text| !text.is_empty())
        {
            let value = read(text).map_err(|error| format!("${variable}: {error}"))?;
            return Ok(Setting { value, origin: Origin::Environment(variable) });
        }
        let Some(written) = written else { return Ok(Setting::default_of(default)) };
        let line = line_of(self.text, written.span().start);
        let value = read(written.into_inner())
            .map_err(|error| format!("{}:{line}: {key}: {error}", self.path.display()))?;
        Ok(Setting { value, origin: Origin::File { file: self.path.to_owned(), line } })
    }
}
