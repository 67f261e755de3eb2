//! The rules of this process's servers: read at its start, and again when a file has changed.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use longshore_access::{
    AccessControl, JWK_FILE_BYTES_MAX, JwtIssuer, JwtKeys, JwtTerms, POLICY_BYTES_MAX, Policy,
    TOKEN_FILE_BYTES_MAX, Tokens,
};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::config::AccessConfig;
use crate::failure::UsageError;
use crate::files;
use crate::repeated_warning::{FAILURE_EVERY, RepeatedWarning};

/// How often the files are compared with what is in force: so long a revoked token is accepted.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// A file that has changed less than this before it was read may change again without another
/// time: its text is compared, too.
const TIME_RESOLUTION: Duration = Duration::from_secs(2);

/// The rules in force, and the files that they come from. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct AccessRules {
    /// For listeners of this process.
    pub(crate) control: AccessControl,
    files: Option<Arc<Mutex<RuleFiles>>>,
}

struct RuleFiles {
    policy: Option<RuleFile<Policy>>,
    tokens: Option<RuleFile<Tokens>>,
    jwt: Option<(JwtTerms, RuleFile<JwtKeys>)>,
}

impl AccessRules {
    /// Reads the configured files.
    pub(crate) fn load(config: &AccessConfig) -> Result<AccessRules, UsageError> {
        let (policy, tokens) = (config.policy.value.as_deref(), config.tokens.value.as_deref());
        let jwt = config.jwt.terms();
        if policy.is_none() && tokens.is_none() && jwt.is_none() {
            return Ok(AccessRules::default());
        }
        let policy = policy.map(|file| RuleFile::read(file, POLICY_BYTES_MAX, parse_policy));
        let tokens = tokens.map(|file| RuleFile::read(file, TOKEN_FILE_BYTES_MAX, parse_tokens));
        let jwt = jwt.map(|(terms, file)| {
            Ok((terms, RuleFile::read(file, JWK_FILE_BYTES_MAX, parse_keys)?))
        });
        let files = RuleFiles {
            policy: policy.transpose().map_err(UsageError)?,
            tokens: tokens.transpose().map_err(UsageError)?,
            jwt: jwt.transpose().map_err(UsageError)?,
        };
        let (policy, tokens) = files.rules();
        let control = AccessControl::new(policy, tokens);
        control.replace_jwt(files.issuer());
        Ok(AccessRules { control, files: Some(Arc::new(Mutex::new(files))) })
    }

    /// Compares the files with what is in force, for as long as the process runs.
    pub(crate) async fn keep_fresh(self) {
        let mut warning = RepeatedWarning::default();
        while self.files.is_some() {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let why = self.reload().await.err();
            if warning.is_due(why.as_deref(), FAILURE_EVERY, Instant::now())
                && let Some(why) = why
            {
                warn!("access: {why}; what was read before stays in force");
            }
        }
    }

    /// Reads what has changed, and puts it into force. A file that cannot be used changes nothing,
    /// and does not keep the other from changing: a token can be revoked beside a broken policy.
    pub(crate) async fn reload(&self) -> Result<(), String> {
        let Some(files) = self.files.clone() else { return Ok(()) };
        let control = self.control.clone();
        let read = spawn_blocking(move || {
            // One at a time: of two, the older read must not win.
            let mut files = files.lock();
            let (has_changed, outcome) = files.reload();
            if has_changed {
                let (policy, tokens) = files.rules();
                for changes in
                    [control.replace(policy, tokens), control.replace_jwt(files.issuer())]
                {
                    if !changes.is_empty() {
                        info!("access: {changes}");
                    }
                }
            }
            outcome
        });
        read.await.map_err(|error| error.to_string())?
    }
}

impl RuleFiles {
    fn rules(&self) -> (Option<Policy>, Option<Tokens>) {
        let policy = self.policy.as_ref().map(|file| file.rules.clone());
        (policy, self.tokens.as_ref().map(|file| file.rules.clone()))
    }

    fn issuer(&self) -> Option<JwtIssuer> {
        let jwt = self.jwt.as_ref();
        jwt.map(|(terms, keys)| JwtIssuer::new(terms.clone(), keys.rules.clone()))
    }

    /// Whether any rules have changed, and what failed.
    fn reload(&mut self) -> (bool, Result<(), String>) {
        let policy = self.policy.as_mut().map_or(Ok(false), RuleFile::reload);
        let tokens = self.tokens.as_mut().map_or(Ok(false), RuleFile::reload);
        let jwt = self.jwt.as_mut().map_or(Ok(false), |(_, keys)| keys.reload());
        let files = [policy, tokens, jwt];
        let has_changed = files.iter().any(|one| matches!(one, Ok(true)));
        let failed: Vec<String> = files.into_iter().filter_map(Result::err).collect();
        let outcome = if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) };
        (has_changed, outcome)
    }
}

/// The line, from 1, if it is known, and what is wrong there.
type Fault = (Option<usize>, String);

/// A file with rules, and what it had when it was read last.
struct RuleFile<T> {
    path: PathBuf,
    bytes_max: usize,
    parse: fn(&str) -> Result<T, Fault>,
    stamp: Stamp,
    text: String,
    rules: T,
}

impl<T> RuleFile<T> {
    fn read(
        path: &Path,
        bytes_max: usize,
        parse: fn(&str) -> Result<T, Fault>,
    ) -> Result<RuleFile<T>, String> {
        // Before the text: a change between both is found later.
        let stamp = Stamp::of(path)?;
        let text = text_of(path, bytes_max)?;
        let rules = parsed(path, &text, parse)?;
        Ok(RuleFile { path: path.to_owned(), bytes_max, parse, stamp, text, rules })
    }

    /// Reads the file again if it has changed; true if its rules have.
    fn reload(&mut self) -> Result<bool, String> {
        let stamp = Stamp::of(&self.path)?;
        // A recent stamp differs from the next one, which leads to one more read.
        if stamp == self.stamp && !stamp.is_recent {
            return Ok(false);
        }
        let text = text_of(&self.path, self.bytes_max)?;
        let has_changed = text != self.text;
        if has_changed {
            // On an error, the old stamp lets the next check read it again.
            self.rules = parsed(&self.path, &text, self.parse)?;
            self.text = text;
        }
        self.stamp = stamp;
        Ok(has_changed)
    }
}

/// What changes whenever a file does, or is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    bytes: u64,
    changed: (i64, i64),
    /// Whether it was checked so soon after its change that another has the same time.
    is_recent: bool,
}

impl Stamp {
    fn of(path: &Path) -> Result<Stamp, String> {
        let file = fs::metadata(path).map_err(|why| cannot_read(path, &why))?;
        let changed = (file.ctime(), file.ctime_nsec());
        let at = Duration::from_secs(u64::try_from(file.ctime()).unwrap_or(0));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let is_recent = now < at + TIME_RESOLUTION;
        Ok(Stamp { file: (file.dev(), file.ino()), bytes: file.len(), changed, is_recent })
    }
}

fn text_of(path: &Path, bytes_max: usize) -> Result<String, String> {
    files::read_text(path, bytes_max as u64).map_err(|why| cannot_read(path, &why))
}

fn cannot_read(path: &Path, why: &io::Error) -> String {
    format!("cannot read {}: {why}", path.display())
}

/// Reads rules. The error names the file, and the line if it is known.
fn parsed<T>(path: &Path, text: &str, parse: fn(&str) -> Result<T, Fault>) -> Result<T, String> {
    parse(text).map_err(|(line, why)| match line {
        Some(line) => format!("{}:{line}: {why}", path.display()),
        None => format!("{}: {why}", path.display()),
    })
}

fn parse_policy(text: &str) -> Result<Policy, Fault> {
    Policy::parse(text).map_err(|error| (Some(error.line), error.fault.to_string()))
}

fn parse_tokens(text: &str) -> Result<Tokens, Fault> {
    Tokens::parse(text).map_err(|error| (Some(error.line), error.fault.to_string()))
}

fn parse_keys(text: &str) -> Result<JwtKeys, Fault> {
    JwtKeys::parse(text).map_err(|error| (None, error.to_string()))
}

/// Reads a policy. The error names the file, and the line if its text is wrong.
pub(crate) fn read_policy(path: &Path) -> Result<Policy, String> {
    parsed(path, &text_of(path, POLICY_BYTES_MAX)?, parse_policy)
}

#[cfg(test)]
mod tests {
    use longshore::Path as LongshorePath;
    use longshore_access::{Action, Credentials, Identity, SECRET_RANDOM_BYTES, Secret, Token};

    use super::*;
    use crate::config::{JwtConfig, Setting};

    struct Case {
        folder: tempfile::TempDir,
        rules: AccessRules,
        secret: Secret,
    }

    fn policy(action: &str) -> String {
        format!("[[allow]]\nwho = ['token:shop']\ndo = ['{action}']\npaths = ['/a']\n")
    }

    impl Case {
        fn new() -> Case {
            let folder = tempfile::tempdir().unwrap();
            let secret = Secret::from_random(&mut [1; SECRET_RANDOM_BYTES]);
            let mut tokens = Tokens::default();
            let (name, hash) = ("shop".to_owned(), secret.hash());
            tokens.add(Token { name, hash, created_unix_ms: 0, expires_unix_ms: None }).unwrap();
            let (policy_file, token_file) =
                (folder.path().join("policy.toml"), folder.path().join("tokens.toml"));
            fs::write(&policy_file, policy("work")).unwrap();
            fs::write(&token_file, tokens.to_text()).unwrap();
            let config = AccessConfig {
                policy: Setting::default_of(Some(policy_file)),
                tokens: Setting::default_of(Some(token_file)),
                audit: Setting::default_of(None),
                jwt: JwtConfig::default(),
            };
            let rules = AccessRules::load(&config).unwrap();
            Case { folder, rules, secret }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.folder.path().join(name), text).unwrap();
        }

        /// Whether the token's client may do an action; an error if it is refused.
        fn may(&self, action: Action) -> Result<bool, String> {
            let credential = self.secret.text();
            let credentials =
                Credentials { certificate: None, credential, is_private: true, user: None };
            let client =
                self.rules.control.admit(&credentials, 0).map_err(|why| why.to_string())?;
            let who: Identity = "token:shop".parse().unwrap();
            assert_eq!(client.identity.as_deref(), Some(&who));
            Ok(client.rights.may(action, &LongshorePath::new("/a").unwrap()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changed_files_are_in_force_after_a_second_and_broken_ones_change_nothing() {
        let case = Case::new();
        assert_eq!(case.may(Action::Work), Ok(true));
        tokio::spawn(case.rules.clone().keep_fresh());
        let mut changes = case.rules.control.changes();
        // Of the same length, and at about the same time.
        case.write("policy.toml", &policy("read"));
        let within = RELOAD_INTERVAL + Duration::from_millis(500);
        tokio::time::timeout(within, changes.changed()).await.unwrap();
        assert_eq!((case.may(Action::Work), case.may(Action::Read)), (Ok(false), Ok(true)));

        case.write("policy.toml", &policy("reed"));
        let why = case.rules.reload().await.unwrap_err();
        assert!(why.contains("policy.toml:") && why.contains("reed"), "{why}");
        assert_eq!(case.may(Action::Read), Ok(true));
        fs::remove_file(case.folder.path().join("policy.toml")).unwrap();
        let why = case.rules.reload().await.unwrap_err();
        assert!(why.contains("policy.toml"), "{why}");
        assert_eq!(case.may(Action::Read), Ok(true), "without its file a policy stays");

        // Beside a broken policy a token is revoked nevertheless.
        case.write("tokens.toml", "");
        assert!(case.rules.reload().await.is_err());
        assert!(case.may(Action::Read).unwrap_err().contains("revoked"));
        case.write("tokens.toml", "[[token]]\n");
        case.write("policy.toml", &policy("work"));
        let why = case.rules.reload().await.unwrap_err();
        assert!(why.contains("tokens.toml:1: missing field `name`"), "{why}");
    }

    #[tokio::test]
    async fn a_broken_key_file_leaves_the_keys_in_force_and_says_so() {
        let mut case = Case::new();
        let keys = include_str!("../../access/src/jwt/golden/keys.json");
        let jwt = include_str!("../../access/src/jwt/golden/rs256.jwt");
        case.write("keys.json", keys);
        let text = |text: &str| Setting::default_of(Some(text.to_owned()));
        let config = AccessConfig {
            policy: Setting::default_of(None),
            tokens: Setting::default_of(None),
            audit: Setting::default_of(None),
            jwt: JwtConfig {
                issuer: text("https://id.example"),
                audience: text("longshore"),
                keys: Setting::default_of(Some(case.folder.path().join("keys.json"))),
                ..JwtConfig::default()
            },
        };
        case.rules = AccessRules::load(&config).unwrap();
        let admitted = || {
            let credential = jwt.trim_end().as_bytes();
            let credentials =
                Credentials { certificate: None, credential, is_private: true, user: None };
            let client = case.rules.control.admit(&credentials, 1_800_000_000_000);
            client.map(|client| client.identity.unwrap().to_string()).map_err(|why| why.to_string())
        };
        assert_eq!(admitted(), Ok("jwt:ann".to_owned()));
        case.write("keys.json", "{\"keys\":[]}");
        let why = case.rules.reload().await.unwrap_err();
        assert!(why.contains("keys.json: no key of the file is for signatures"), "{why}");
        assert_eq!(admitted(), Ok("jwt:ann".to_owned()));
        case.write("keys.json", &keys.replace("\"RS256\"", "\"RS384\""));
        case.rules.reload().await.unwrap();
        assert!(admitted().unwrap_err().contains("does not have the key"));
        case.write("keys.json", keys);
        case.rules.reload().await.unwrap();
        assert!(admitted().is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_used_at_the_start_is_named() {
        let case = Case::new();
        let load = |policy: &str, tokens: &str| {
            let file = |name: &str| Setting::default_of(Some(case.folder.path().join(name)));
            let config = AccessConfig {
                policy: file(policy),
                tokens: file(tokens),
                audit: Setting::default_of(None),
                jwt: JwtConfig::default(),
            };
            AccessRules::load(&config).err().unwrap().0
        };
        assert!(load("nothing.toml", "tokens.toml").contains("nothing.toml"));
        case.write("policy.toml", "[[allow]]\nwho = 1\n");
        assert!(load("policy.toml", "tokens.toml").contains("policy.toml:"));
        case.write("policy.toml", &policy("work"));
        case.write("tokens.toml", "x = 1\n");
        assert!(load("policy.toml", "tokens.toml").contains("tokens.toml:1: unknown field `x`"));
    }
}
