//! The environment over the file over the default.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::file::line_of;
use super::written::{Form, Key};
use super::{ENV_CONFIG, Environment, Given, Origin, Setting};

/// A configuration file that was found.
pub(super) struct Named {
    pub(super) place: Setting<PathBuf>,
    pub(super) text: String,
}

impl Named {
    /// A file that was asked for must be there; the usual places may be empty.
    pub(super) fn find(given: &Given, environment: &Environment) -> Result<Option<Named>, String> {
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
        let usual = home(environment)
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

/// The user's own folder, if the environment has one.
pub(super) fn home(environment: &Environment) -> Option<&OsStr> {
    environment.get("HOME").map(OsString::as_os_str).filter(|home| !home.is_empty())
}

/// The text of a variable.
pub(super) fn text(value: &OsStr) -> Result<&str, String> {
    value.to_str().ok_or_else(|| format!("{value:?} is not UTF-8; write it in UTF-8"))
}

/// A variable, and how its value is read.
type FromEnvironment<'a, T> = (&'static str, &'a dyn Fn(&OsStr) -> Result<T, String>);

/// The environment over the file over the default.
pub(super) struct Layers<'a> {
    pub(super) environment: &'a Environment,
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Layers<'_> {
    /// The value of a key that no variable stands for.
    pub(super) fn of_file<W: Form, T>(
        &self,
        key: &str,
        written: Key<W>,
        read: impl FnOnce(W) -> Result<T, String>,
        default: T,
    ) -> Result<Setting<T>, String> {
        self.pick(key, None, written, read, default)
    }

    /// The value of a key; an error says where it is written and what was expected.
    pub(super) fn pick<W: Form, T>(
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
