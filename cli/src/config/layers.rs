//! Precedence of settings: environment, then file, then default.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::file::line_of;
use super::raw_value::{Key, ValueType};
use super::resolver_source::{ResolverSource, Sources, resolver_source};
use super::{
    ConfigOverrides, Contexts, ENV_CONFIG, ENV_CONTEXT, ENV_RESOLVERS, Environment, NamedContext,
    Origin, Problem, Setting,
};

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
        folder: Option<&Path>,
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
        let defaults = folder
            .map(|folder| folder.join("config.toml"))
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
    /// Where invalid values are reported; the default takes their place.
    pub(super) problems: &'a RefCell<Vec<Problem>>,
}

impl Layers<'_> {
    /// Resolves a key that no variable sets.
    pub(super) fn of_file<W: ValueType, T>(
        &self,
        key: &str,
        written: Key<W>,
        read: impl FnOnce(W) -> Result<T, String>,
        default: T,
    ) -> Setting<T> {
        self.pick(key, None, written, read, default)
    }

    /// Resolves a text that the variable or the file sets.
    pub(super) fn of_text<T: Default>(
        &self,
        key: &str,
        variable: &'static str,
        written: Key<String>,
        read: &dyn Fn(String) -> Result<T, String>,
    ) -> Setting<T> {
        let of_variable = |value: &OsStr| read(text(value)?.to_owned());
        self.pick(key, Some((variable, &of_variable)), written, read, T::default())
    }

    /// Resolves a key. A problem names its origin and what was expected.
    pub(super) fn pick<W: ValueType, T>(
        &self,
        key: &str,
        environment: Option<FromEnvironment<'_, T>>,
        written: Key<W>,
        read: impl FnOnce(W) -> Result<T, String>,
        default: T,
    ) -> Setting<T> {
        if let Some((variable, read)) = environment
            && let Some(text) = self.variable(variable)
        {
            let origin = Origin::Environment(variable);
            return match read(text) {
                Ok(value) => Setting { value, origin },
                Err(why) => self.invalid(key, &origin, format!("{origin}: {why}"), default),
            };
        }
        let Some(written) = written else { return Setting::default_of(default) };
        let line = line_of(self.text, written.span().start);
        let origin = Origin::File { file: self.path.to_owned(), line };
        match written.into_inner().of_type(key).and_then(read) {
            Ok(value) => Setting { value, origin },
            Err(why) => self.invalid(key, &origin, format!("{origin}: {key}: {why}"), default),
        }
    }

    /// The value of a flag, unless it is invalid.
    pub(super) fn flag<T>(
        &self,
        key: &str,
        flag: &'static str,
        read: Result<T, String>,
    ) -> Option<T> {
        let problem = |why| {
            let message = format!("{flag}: {why}");
            self.invalid(key, &Origin::Flag(flag), message, ());
        };
        read.map_err(problem).ok()
    }

    /// The context in force, if one names the system.
    pub(super) fn context(
        &self,
        overrides: &ConfigOverrides,
        folder: Option<PathBuf>,
        named_file: bool,
    ) -> (Setting<Option<String>>, Option<NamedContext>) {
        let none = Setting::default_of(None);
        if overrides.resolvers.is_some() {
            return (none, None);
        }
        let contexts = folder.map(Contexts::in_folder);
        let selected = match &contexts {
            Some(contexts) if !overrides.ignore_selected => contexts.selected(),
            _ => Ok(None),
        };
        let sources = Sources {
            context_flag: overrides.context.is_some(),
            variable: self.variable(ENV_RESOLVERS).is_some(),
            context_variable: self.variable(ENV_CONTEXT).is_some(),
            named_file,
            selected: !matches!(selected, Ok(None)),
        };
        if resolver_source(sources) == ResolverSource::Layers {
            return (none, None);
        }
        let name = if let Some(name) = overrides.context.clone() {
            Ok(Setting { value: name, origin: Origin::Flag("--context") })
        } else if let Some(name) = self.variable(ENV_CONTEXT) {
            let origin = Origin::Environment(ENV_CONTEXT);
            text(name).map(|name| Setting { value: name.to_owned(), origin })
        } else {
            selected.and_then(|name| name.ok_or_else(|| "no context is selected".to_owned()))
        };
        let name = match name {
            Ok(name) => name,
            Err(why) => return (self.invalid("context", &Origin::Default, why, None), None),
        };
        let read = contexts
            .ok_or_else(|| "contexts need $XDG_CONFIG_HOME or $HOME".to_owned())
            .and_then(|contexts| contexts.read(&name.value));
        match read {
            Ok(context) => {
                let value = Some(context.name.clone());
                (Setting { value, origin: name.origin }, Some(context))
            }
            Err(why) => {
                let message = format!("{}: {why}", name.origin);
                (self.invalid("context", &name.origin, message, None), None)
            }
        }
    }

    /// A variable that is set and not empty.
    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.get(name).map(OsString::as_os_str).filter(|text| !text.is_empty())
    }

    /// Reports an invalid value, and returns the default.
    pub(super) fn invalid<T>(
        &self,
        key: &str,
        origin: &Origin,
        message: String,
        default: T,
    ) -> Setting<T> {
        let problem = Problem { key: Some(key.to_owned()), origin: origin.to_string(), message };
        self.problems.borrow_mut().push(problem);
        Setting::default_of(default)
    }
}
