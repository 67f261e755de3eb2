//! `token_file`: by which token servers know this process. From the command line, the environment,
//! and the context in force or else the configuration file; the secret itself only from the
//! environment, as every user sees command lines, and files have too many readers.

use std::path::Path;

use longshore::TokenSource;

use super::layers::{Layers, text};
use super::raw_value::Key;
use super::{Origin, Setting, values};

const KEY: &str = "token_file";
pub(super) const ENV_TOKEN_FILE: &str = "LONGSHORE_TOKEN_FILE";
pub(super) const ENV_TOKEN: &str = "LONGSHORE_TOKEN";

pub(super) fn resolve(
    layers: &Layers<'_>,
    written: Key<String>,
    flag: Option<String>,
    home: Option<&Path>,
) -> Setting<Option<TokenSource>> {
    let file = |text: String| Ok(Some(TokenSource::from_file(values::expand_home(&text, home)?)));
    if let Some(given) = flag {
        let given = layers.flag(KEY, "--token-file", file(given));
        return Setting::default_of(None).or_flag(given, "--token-file");
    }
    let Some(secret) = layers.variable(ENV_TOKEN) else {
        return layers.of_text(KEY, ENV_TOKEN_FILE, written, &file);
    };
    let origin = Origin::Environment(ENV_TOKEN);
    let read = match layers.variable(ENV_TOKEN_FILE) {
        Some(_) => Err(format!("${ENV_TOKEN_FILE} is set, too; unset one of them")),
        None => text(secret)
            .and_then(|secret| TokenSource::from_secret(secret).map_err(|why| why.to_string())),
    };
    match read {
        Ok(source) => Setting { value: Some(source), origin },
        Err(why) => layers.invalid(KEY, &origin, format!("{origin}: {why}"), None),
    }
}
