//! Precedence of settings: environment, then file, then default.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::file::line_of;
use super::raw_value::{Key, ValueType};
use super::{ConfigOverrides, ENV_CONFIG, Environment, Origin, Setting};

/// The configuration file: its location and text.
pub(super) struct ConfigSource {
    pub(super) path: Setting<PathBuf>,
    pub(super) text: String,
}

impl ConfigSource {
    /// Reads the configuration file. A file given explicitly must exist; the default locations may
    /// be empty.
    pub(super) fn find(
        overrides: &ConfigOverrides,
        environment: &Environment,
    ) -> Result<Option<ConfigSource>, String> {
        let explicit = overrides
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
        if let Some(path) = explicit {
            let text = std::fs::read_to_string(&path.value).map_err(|error| {
                format!("cannot read {} ({}): {error}", path.value.display(), path.origin)
            })?;
            return Ok(Some(ConfigSource { path, text }));
        }
        let defaults = home(environment)
            .map(|home| Path::new(home).join(".config/longshore/config.toml"))
            .into_iter()
            .chain([PathBuf::from("/etc/longshore/config.toml")]);
        for file in defaults {
            match std::fs::read_to_string(&file) {
                Ok(text) => {
                    return Ok(Some(ConfigSource { path: Setting::default_of(file), text }));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {}
                Err(error) => return Err(format!("cannot read {}: {error}", file.display())),
            }
        }
        Ok(None)
    }
}

/// The home directory, if `$HOME` is set.
pub(super) fn home(environment: &Environment) -> Option<&OsStr> {
    environment.get("HOME").map(OsString::as_os_str).filter(|home| !home.is_empty())
}

/// A variable's value as UTF-8.
pub(super) fn text(value: &OsStr) -> Result<&str, String> {
    value.to_str().ok_or_else(|| format!("{value:?} is not UTF-8; write it in UTF-8"))
}

/// A variable and the parser of its value.
type FromEnvironment<'a, T> = (&'static str, &'a dyn Fn(&OsStr) -> Result<T, String>);

/// The environment and the file, in that order of precedence.
pub(super) struct Layers<'a> {
    pub(super) environment: &'a Environment,
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Layers<'_> {
    /// Resolves a key that no variable sets.
    pub(super) fn of_file<W: ValueType, T>(
        &self,
        key: &str,
        written: Key<W>,
        read: impl FnOnce(W) -> Result<T, String>,
        default: T,
    ) -> Result<Setting<T>, String> {
        self.pick(key, None, written, read, default)
    }

    /// Resolves a key. An error names its origin and what was expected.
    pub(super) fn pick<W: ValueType, T>(
        &self,
        key: &str,
        environment: Option<FromEnvironment<'_, T>>,
        written: Key<W>,
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
        let value = written
            .into_inner()
            .of_type(key)
            .and_then(read)
            .map_err(|error| format!("{}:{line}: {key}: {error}", self.path.display()))?;
        Ok(Setting { value, origin: Origin::File { file: self.path.to_owned(), line } })
    }
}
