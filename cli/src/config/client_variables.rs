//! The variables by which commands of another terminal reach a system that was started with flags.

use std::path::{Path, PathBuf};

use super::{
    Authority, Config, ConfigOverrides, ENV_CLUSTER, ENV_CONFIG, ENV_RESOLVERS, Environment,
};

/// What commands need that have only this environment, and the files of the user.
pub(super) fn of(
    system: &Config,
    replicas: &[String],
    file: Option<&Path>,
    mut environment: Environment,
) -> Vec<(&'static str, String)> {
    let mut variables = Vec::new();
    let mut set = |name: &'static str, value: String, environment: &mut Environment| {
        environment.insert(name.to_owned(), value.clone().into());
        variables.push((name, value));
    };
    let typed =
        |environment: &Environment| Config::read(&ConfigOverrides::default(), environment).0;
    if let Some(file) = file {
        set(ENV_CONFIG, absolute(file), &mut environment);
    }
    if !typed(&environment).resolvers.value.iter().any(|at| replicas.contains(at)) {
        set(ENV_RESOLVERS, replicas.join(","), &mut environment);
    }
    // The variable for the replicas may have put a context out of force, with all that it names.
    let found = typed(&environment);
    let authority = |config: &Config| {
        config.tls.ca.value.clone().map(|ca| match ca {
            Authority::System => "system".to_owned(),
            Authority::File(file) => absolute(&file),
        })
    };
    let file = |file: &Option<PathBuf>| file.as_deref().map(absolute);
    let cluster = |config: &Config| Some(config.cluster.value.clone()).filter(|n| !n.is_empty());
    for (name, ours, theirs) in [
        (ENV_CLUSTER, cluster(system), cluster(&found)),
        ("LONGSHORE_TLS_CA", authority(system), authority(&found)),
        (
            "LONGSHORE_TLS_CERTIFICATE",
            file(&system.tls.certificate.value),
            file(&found.tls.certificate.value),
        ),
        ("LONGSHORE_TLS_KEY", file(&system.tls.key.value), file(&found.tls.key.value)),
        (
            "LONGSHORE_TLS_SERVER_NAME",
            system.tls.server_name.value.clone(),
            found.tls.server_name.value.clone(),
        ),
    ] {
        if let Some(value) = ours.filter(|ours| Some(ours) != theirs.as_ref()) {
            set(name, value, &mut environment);
        }
    }
    variables
}

fn absolute(file: &Path) -> String {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    file.display().to_string()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::SystemFlags;

    #[test]
    fn only_what_another_terminal_lacks_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("longshore");
        fs::create_dir_all(home.join("contexts")).unwrap();
        let environment = Environment::from([
            ("XDG_CONFIG_HOME".to_owned(), folder.path().into()),
            ("HOME".to_owned(), "/nonexistent".into()),
        ]);
        let default = ["127.0.0.1:4770".to_owned()];
        let other = ["127.0.0.1:5770".to_owned(), "127.0.0.1:5771".to_owned()];
        let list = "127.0.0.1:5770,127.0.0.1:5771".to_owned();
        let started = |overrides| Config::read(&overrides, &environment).0;
        let plain = || ConfigOverrides { ignore_selected: true, ..ConfigOverrides::default() };
        let variables = |overrides, replicas: &[String], file: Option<&Path>| {
            of(&started(overrides), replicas, file, environment.clone())
        };
        assert_eq!(variables(plain(), &default, None), []);
        assert_eq!(variables(plain(), &other, None), [(ENV_RESOLVERS, list.clone())]);

        // The configuration file that everyone reads needs no variable.
        fs::write(home.join("config.toml"), "cluster = 'prod'\n").unwrap();
        assert_eq!(variables(plain(), &default, None), []);
        let system = SystemFlags {
            cluster: Some("test".to_owned()),
            tls_ca: Some("/tls/ca.pem".to_owned()),
            ..SystemFlags::default()
        };
        let named = ConfigOverrides { system, ..plain() };
        let flags = [(ENV_CLUSTER, "test"), ("LONGSHORE_TLS_CA", "/tls/ca.pem")];
        let flags = flags.map(|(name, value)| (name, value.to_owned()));
        assert_eq!(variables(named, &default, None), flags);

        // Commands heed the selected context, services do not.
        fs::write(home.join("contexts/far.toml"), "resolvers = ['10.0.0.1:4770']\n").unwrap();
        fs::write(home.join("context"), "far\n").unwrap();
        let expected = [(ENV_RESOLVERS, default[0].clone())];
        assert_eq!(variables(plain(), &default, None), expected);

        let clients = home.join("clients.toml");
        fs::write(&clients, "resolvers = ['127.0.0.1:5770']\ncluster = 'prod'\n").unwrap();
        let expected = [(ENV_CONFIG, clients.display().to_string())];
        assert_eq!(variables(plain(), &other, Some(&clients)), expected);
    }
}
