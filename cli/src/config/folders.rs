//! The user's folders, by the XDG Base Directory Specification.

use std::path::{Path, PathBuf};

use super::Environment;
use super::layers::home;

/// This program's folders; none without `$HOME`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Folders {
    /// The configuration file and the contexts.
    pub(crate) config: Option<PathBuf>,
    /// The journals.
    pub(crate) data: Option<PathBuf>,
}

impl Folders {
    /// From `$XDG_CONFIG_HOME` and `$XDG_DATA_HOME`, else below `$HOME`.
    pub(crate) fn of(environment: &Environment) -> Folders {
        let folder = |variable: &str, below_home: &str| {
            // "All paths must be absolute. If [one is] relative, [it is] invalid and ignored."
            let given = environment.get(variable).map(Path::new).filter(|dir| dir.is_absolute());
            let base = match given {
                Some(given) => given.to_owned(),
                None => Path::new(home(environment)?).join(below_home),
            };
            Some(base.join("longshore"))
        };
        Folders {
            config: folder("XDG_CONFIG_HOME", ".config"),
            data: folder("XDG_DATA_HOME", ".local/share"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_and_empty_folders_are_ignored() {
        let folders = |variables: &[(&str, &str)]| {
            let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.into());
            Folders::of(&variables.iter().map(owned).collect())
        };
        let home = ("HOME", "/home/ann");
        let of_home = Folders {
            config: Some("/home/ann/.config/longshore".into()),
            data: Some("/home/ann/.local/share/longshore".into()),
        };
        assert_eq!(folders(&[home]), of_home);
        assert_eq!(folders(&[home, ("XDG_CONFIG_HOME", ""), ("XDG_DATA_HOME", "data")]), of_home);
        let set = [home, ("XDG_CONFIG_HOME", "/etc/ann"), ("XDG_DATA_HOME", "/srv/ann")];
        assert_eq!(folders(&set).config, Some("/etc/ann/longshore".into()));
        assert_eq!(folders(&set[1..]).data, Some("/srv/ann/longshore".into()));
        assert_eq!(folders(&[]), Folders::default());
    }
}
