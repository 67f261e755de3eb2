//! The rules of a running server, which may change at any time.

mod changes;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

pub use self::changes::{RuleChangeFeed, RuleChanges};
use crate::certificate::{CertificateError, identity_and_end};
use crate::identity::{Identity, NameKind};
use crate::jwt::{Bearer, JwtIssuer, JwtProof, JwtRefusal};
use crate::policy::{Policy, QueueQuota, Quota, Rights};
use crate::tokens::{Secret, SecretHash, TokenRefusal, Tokens};

/// Authenticates and authorizes the clients of a server. Cheap to clone; clones share their rules.
/// By default there is no policy, and every client may do everything.
#[derive(Clone)]
pub struct AccessControl {
    rules: Arc<watch::Sender<Arc<Rules>>>,
    /// What each change was.
    change_feed: broadcast::Sender<RuleChanges>,
}

/// Changes of rules that a [`RuleChangeFeed`] may be behind.
const CHANGE_FEED_LENGTH: usize = 64;

/// What a client presents in its handshake.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// The certificate, in DER, whose chain and key are verified.
    pub certificate: Option<&'a [u8]>,
    /// The handshake's credential; empty for none.
    pub credential: &'a [u8],
    /// True if no other machine or user can read the connection: TLS, or a Unix socket.
    pub is_private: bool,
    /// The user id of a client of a Unix socket (`SO_PEERCRED`).
    pub user: Option<u32>,
}

/// A client that was admitted.
#[derive(Clone, Debug)]
pub struct Client {
    /// Who it is; none if it presented no certificate, token or JWT. Under a policy, a client of a
    /// Unix socket has its user.
    pub identity: Option<Arc<Identity>>,
    /// What it may do.
    pub rights: Arc<Rights>,
    proof: Proof,
}

/// What proves the identity.
#[derive(Clone, Debug)]
enum Proof {
    Nothing,
    Certificate { end_unix_ms: u64 },
    Token { hash: SecretHash, end_unix_ms: Option<u64> },
    Jwt(JwtProof),
}

/// Why a client is not admitted, or no longer. The text is for the client.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessRefusal {
    /// Its certificate gives no usable identity.
    #[error("the client's certificate: {0}")]
    Certificate(#[from] CertificateError),
    /// Its certificate is no longer valid.
    #[error("the client's certificate has expired")]
    CertificateExpired,
    /// Its token is refused.
    #[error("{0}")]
    Token(#[from] TokenRefusal),
    /// Its JWT is refused.
    #[error("{0}")]
    Jwt(#[from] JwtRefusal),
    /// It sent a token that others can read.
    #[error(
        "the token came over a connection without TLS, where others can read it: revoke it, and \
         use TLS"
    )]
    TokenInTheClear,
    /// It has a token, and the server knows none.
    #[error("the client has a token, and this server has no token file")]
    NoTokens,
    /// It has a JWT, and the server accepts none.
    #[error("the client has a JWT, and this server accepts none: its [access.jwt] is not set")]
    NoJwt,
    /// The policy allows nothing to clients without an identity.
    #[error("the client has neither a certificate nor a token that names it")]
    Anonymous,
    /// The policy allows nothing to the identity.
    #[error("the policy allows nothing to {0}")]
    NoRights(Identity),
}

impl AccessRefusal {
    /// True if another certificate or token is needed; false if the policy is to be changed.
    pub fn is_of_identity(&self) -> bool {
        !matches!(self, AccessRefusal::NoRights(_))
    }

    /// The verified identity, if the policy refused it.
    pub fn identity(&self) -> Option<&Identity> {
        match self {
            AccessRefusal::NoRights(identity) => Some(identity),
            _ => None,
        }
    }
}

/// Rules, as they are in force at one time.
struct Rules {
    /// Rises whenever the policy is replaced by another.
    version: u64,
    policy: Option<Policy>,
    tokens: Option<Tokens>,
    jwt: Option<JwtIssuer>,
    /// Rights in use, which the clients of one identity with the same groups share.
    rights: Arc<Mutex<HashMap<RightsKey, Weak<Rights>>>>,
}

/// The client; none without an identity, or if there is no policy: then all are equal.
type RightsKey = Option<(Identity, Arc<[String]>)>;

impl Rules {
    /// Rules after these. With the same policy every identity keeps its rights.
    fn followed_by(&self, policy: Option<Policy>, tokens: Option<Tokens>) -> Rules {
        let (version, rights) = match policy == self.policy {
            true => (self.version, self.rights.clone()),
            false => (self.version + 1, Arc::default()),
        };
        Rules { version, policy, tokens, jwt: self.jwt.clone(), rights }
    }

    fn rights(&self, who: Option<&Identity>) -> Arc<Rights> {
        let key = self.policy.as_ref().and(who).map(|who| (who.clone(), who.groups.clone()));
        let mut all = self.rights.lock();
        if let Some(rights) = all.get(&key).and_then(Weak::upgrade) {
            return rights;
        }
        let rights = Arc::new(match &self.policy {
            None => Rights::everything(),
            Some(policy) => policy.rights(who),
        });
        if all.len() == all.capacity() {
            all.retain(|_, rights| rights.strong_count() > 0);
            // Room for as many again: so each insertion pays for a constant part of a sweep.
            let live = all.len();
            all.reserve(live + 1);
        }
        all.insert(key, Arc::downgrade(&rights));
        rights
    }
}

impl Default for AccessControl {
    fn default() -> AccessControl {
        AccessControl::new(None, None)
    }
}

impl AccessControl {
    /// Rules of a policy and of tokens. Without a policy every admitted client may do everything;
    /// without tokens a client that has one is refused.
    pub fn new(policy: Option<Policy>, tokens: Option<Tokens>) -> AccessControl {
        let rules = Rules { version: 0, policy, tokens, jwt: None, rights: Arc::default() };
        let (rules, _) = watch::channel(Arc::new(rules));
        let (change_feed, _) = broadcast::channel(CHANGE_FEED_LENGTH);
        AccessControl { rules: Arc::new(rules), change_feed }
    }

    /// Replaces policy and tokens. Servers apply them to open links at once: a link that has lost a
    /// right ends.
    pub fn replace(&self, policy: Option<Policy>, tokens: Option<Tokens>) -> RuleChanges {
        self.change(|before| before.followed_by(policy, tokens))
    }

    /// Replaces the issuer of JWTs, at first none, in the same way: a link whose key is gone ends.
    pub fn replace_jwt(&self, jwt: Option<JwtIssuer>) -> RuleChanges {
        self.change(|before| {
            let Rules { version, policy, tokens, rights, .. } = before;
            let (version, policy, tokens) = (*version, policy.clone(), tokens.clone());
            Rules { version, policy, tokens, jwt, rights: rights.clone() }
        })
    }

    fn change(&self, change: impl FnOnce(&Rules) -> Rules) -> RuleChanges {
        // A second change at the same time waits, and follows this one, also in the feed.
        let mut changes = RuleChanges::default();
        self.rules.send_modify(|rules| {
            let after = Arc::new(change(rules));
            changes = RuleChanges::between(rules, &after);
            *rules = after;
            if !changes.is_empty() {
                // An error means that nobody reads the feed.
                let _ = self.change_feed.send(changes.clone());
            }
        });
        changes
    }

    /// How much a client may use of each server.
    pub fn quota(&self, who: Option<&Identity>) -> Quota {
        let rules = self.rules.borrow();
        rules.policy.as_ref().map(|policy| policy.quota(who)).unwrap_or_default()
    }

    /// The quotas of queues of a client; none if no client has one.
    pub fn queue_quotas(&self, who: Option<&Identity>) -> Vec<QueueQuota> {
        let rules = self.rules.borrow();
        rules.policy.as_ref().map(|policy| policy.queue_quotas(who)).unwrap_or_default()
    }

    /// True if a client may have a quota of queues.
    pub fn has_queue_quotas(&self) -> bool {
        self.rules.borrow().policy.as_ref().is_some_and(Policy::has_queue_quotas)
    }

    /// The version of the policy: what was computed from it is valid as long as it stays.
    pub fn version(&self) -> u64 {
        self.rules.borrow().version
    }

    /// False if every admitted client may do everything.
    pub fn has_policy(&self) -> bool {
        self.rules.borrow().policy.is_some()
    }

    /// Every change from now on, for an audit log.
    pub fn change_feed(&self) -> RuleChangeFeed {
        RuleChangeFeed(self.change_feed.subscribe())
    }

    /// Notified when the rules change.
    pub fn changes(&self) -> RuleWatch {
        RuleWatch(self.rules.subscribe())
    }

    /// Admits a client, or refuses it. A token or JWT precedes the certificate; one that is refused
    /// never falls back to the certificate.
    pub fn admit(
        &self,
        credentials: &Credentials<'_>,
        now_unix_ms: u64,
    ) -> Result<Client, AccessRefusal> {
        let rules = self.rules.borrow().clone();
        let (identity, proof) = if !credentials.credential.is_empty() {
            if !credentials.is_private {
                return Err(AccessRefusal::TokenInTheClear);
            }
            if Bearer::is_jwt(credentials.credential) {
                let issuer = rules.jwt.as_ref().ok_or(AccessRefusal::NoJwt)?;
                let jwt = issuer.verify(credentials.credential, now_unix_ms)?;
                return self.admitted(
                    &rules,
                    Some(jwt.identity),
                    Proof::Jwt(jwt.proof),
                    now_unix_ms,
                );
            }
            let tokens = rules.tokens.as_ref().ok_or(AccessRefusal::NoTokens)?;
            let token = tokens.verify(credentials.credential, now_unix_ms)?;
            let secret =
                Secret::parse(credentials.credential).map_err(|_| TokenRefusal::Malformed)?;
            let identity = Identity::new(NameKind::Token, token.name);
            let end_unix_ms = token.expires_unix_ms;
            (Some(identity), Proof::Token { hash: secret.hash(), end_unix_ms })
        } else if let Some(der) = credentials.certificate {
            let (identity, end_unix_ms) = identity_and_end(der)?;
            (identity, Proof::Certificate { end_unix_ms })
        } else {
            // A user stays what it is for as long as its process has the socket. Without a policy
            // it has no name: its session is the same at the port, where nothing names it.
            let user = credentials.user.filter(|_| rules.policy.is_some());
            let of_user = |user: u32| Identity::new(NameKind::Unix, user.to_string());
            (user.map(of_user), Proof::Nothing)
        };
        self.admitted(&rules, identity, proof, now_unix_ms)
    }

    fn admitted(
        &self,
        rules: &Rules,
        identity: Option<Identity>,
        proof: Proof,
        now_unix_ms: u64,
    ) -> Result<Client, AccessRefusal> {
        let client = Client {
            rights: rules.rights(identity.as_ref()),
            identity: identity.map(Arc::new),
            proof,
        };
        self.check(rules, &client, now_unix_ms)?;
        Ok(client)
    }

    /// The client under the present rules: its rights, and the end of its token. An error if it
    /// would not be admitted now.
    pub fn recheck(&self, client: &Client, now_unix_ms: u64) -> Result<Client, AccessRefusal> {
        let rules = self.rules.borrow().clone();
        let mut now = Client { rights: rules.rights(client.identity.as_deref()), ..client.clone() };
        self.check(&rules, &now, now_unix_ms)?;
        if let (Proof::Token { end_unix_ms, .. }, Some(who)) = (&mut now.proof, &now.identity) {
            let token = rules.tokens.as_ref().and_then(|tokens| tokens.get(&who.name));
            *end_unix_ms = token.and_then(|token| token.expires_unix_ms);
        }
        Ok(now)
    }

    fn check(&self, rules: &Rules, client: &Client, now_unix_ms: u64) -> Result<(), AccessRefusal> {
        match (&client.proof, client.identity.as_deref()) {
            (Proof::Certificate { end_unix_ms }, _) if now_unix_ms >= *end_unix_ms => {
                return Err(AccessRefusal::CertificateExpired);
            }
            (Proof::Jwt(proof), _) => {
                let issuer = rules.jwt.as_ref().ok_or(AccessRefusal::NoJwt)?;
                issuer.recheck(proof, now_unix_ms)?;
            }
            (Proof::Token { hash, .. }, Some(Identity { name, .. })) => {
                let token = rules.tokens.as_ref().and_then(|tokens| tokens.get(name));
                let token = token.filter(|token| token.hash.is(hash));
                let token = token.ok_or(TokenRefusal::Unknown)?;
                if token.expires_unix_ms.is_some_and(|end| now_unix_ms >= end) {
                    return Err(TokenRefusal::Expired { name: name.clone() }.into());
                }
            }
            _ => {}
        }
        match client.identity.as_deref() {
            _ if !client.rights.is_nothing() => Ok(()),
            None => Err(AccessRefusal::Anonymous),
            Some(who) => Err(AccessRefusal::NoRights(who.clone())),
        }
    }
}

impl Client {
    /// When its certificate, token or JWT ends, in milliseconds since 1970.
    pub fn end_unix_ms(&self) -> Option<u64> {
        match self.proof {
            Proof::Nothing => None,
            Proof::Certificate { end_unix_ms } => Some(end_unix_ms),
            Proof::Token { end_unix_ms, .. } => end_unix_ms,
            Proof::Jwt(ref proof) => Some(proof.end_unix_ms),
        }
    }
}

/// Waits for changes of rules.
#[derive(Clone)]
pub struct RuleWatch(watch::Receiver<Arc<Rules>>);

impl RuleWatch {
    /// Waits until the rules change; pending for ever once no server has them. Cancel safe.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl fmt::Debug for AccessControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.borrow();
        f.debug_struct("AccessControl")
            .field("policy", &rules.policy.is_some())
            .field("tokens", &rules.tokens.as_ref().map(Tokens::len))
            .field("jwt", &rules.jwt.is_some())
            .finish()
    }
}

impl fmt::Debug for RuleWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RuleWatch")
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::Path;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;
    use crate::action::Action;
    use crate::jwt::{JwtKeys, JwtTerms};
    use crate::tokens::{SECRET_RANDOM_BYTES, Token};

    const END: u64 = 5_000;

    fn policy(who: &str) -> Policy {
        let rule = format!("[[allow]]\nwho = [{who:?}]\ndo = [\"work\"]\npaths = [\"/a/**\"]\n");
        Policy::parse(&rule).unwrap()
    }

    /// A token that ends at `END`, and its secret.
    fn token(name: &str) -> (Tokens, Secret) {
        let secret = Secret::from_random(&mut [7; SECRET_RANDOM_BYTES]);
        let (name, hash) = (name.to_owned(), secret.hash());
        let mut tokens = Tokens::default();
        let token = Token { name, hash, created_unix_ms: 0, expires_unix_ms: Some(END) };
        tokens.add(token).unwrap();
        (tokens, secret)
    }

    fn with_token(secret: &Secret) -> Credentials<'_> {
        Credentials { certificate: None, credential: secret.text(), is_private: true, user: None }
    }

    const NOTHING: Credentials<'_> =
        Credentials { certificate: None, credential: b"", is_private: true, user: None };

    #[test]
    fn without_a_policy_everyone_may_do_everything() {
        let control = AccessControl::default();
        let client = control.admit(&NOTHING, 0).unwrap();
        assert_eq!((client.identity, client.rights), (None, Arc::new(Rights::everything())));
        let (tokens, secret) = token("a");
        assert_eq!(control.admit(&with_token(&secret), 0).unwrap_err(), AccessRefusal::NoTokens);
        control.replace(None, Some(tokens));
        let client = control.admit(&with_token(&secret), 0).unwrap();
        assert_eq!(client.identity.unwrap().to_string(), "token:a");
        assert!(client.rights.paths(Action::Operate).is_everything());
    }

    /// Otherwise each new token would invalidate all computed rights.
    #[test]
    fn the_version_rises_with_the_policy_alone() {
        let control = AccessControl::new(Some(policy("token:a")), None);
        let version = control.version();
        control.replace(Some(policy("token:a")), Some(token("b").0));
        control.replace_jwt(None);
        assert_eq!(control.version(), version);
        control.replace(Some(policy("token:b")), None);
        assert!(control.version() > version);
        let version = control.version();
        control.replace(None, None);
        assert!(control.version() > version);
    }

    #[test]
    fn a_client_without_rights_is_refused() {
        let control = AccessControl::new(Some(policy("token:a")), Some(token("b").0));
        assert_eq!(control.admit(&NOTHING, 0).unwrap_err(), AccessRefusal::Anonymous);
        let refused = control.admit(&with_token(&token("b").1), 0).unwrap_err();
        assert_eq!(refused, AccessRefusal::NoRights("token:b".parse().unwrap()));
        control.replace(Some(policy("anonymous")), None);
        let client = control.admit(&NOTHING, 0).unwrap();
        assert!(client.rights.may(Action::Work, &Path::new("/a/b").unwrap()));
        assert!(!client.rights.may(Action::Act, &Path::new("/a/b").unwrap()));
    }

    #[test]
    fn a_token_is_good_until_it_expires_is_revoked_or_replaced() {
        let (tokens, secret) = token("a");
        let control = AccessControl::new(Some(policy("token:a")), Some(tokens.clone()));
        let client = control.admit(&with_token(&secret), END - 1).unwrap();
        assert_eq!(client.end_unix_ms(), Some(END));
        assert!(control.recheck(&client, END - 1).is_ok());
        let expired = AccessRefusal::Token(TokenRefusal::Expired { name: String::from("a") });
        assert_eq!(control.recheck(&client, END).unwrap_err(), expired);
        assert_eq!(control.admit(&with_token(&secret), END).unwrap_err(), expired);

        let in_the_clear = Credentials { is_private: false, ..with_token(&secret) };
        let refused = control.admit(&in_the_clear, 0).unwrap_err();
        assert_eq!(refused, AccessRefusal::TokenInTheClear);

        let unknown = AccessRefusal::Token(TokenRefusal::Unknown);
        // The same name with another secret is another token.
        let mut renewed = Tokens::default();
        let hash = Secret::from_random(&mut [8; SECRET_RANDOM_BYTES]).hash();
        renewed.add(Token { hash, ..tokens.get("a").unwrap().clone() }).unwrap();
        for tokens in [Some(renewed), Some(Tokens::default()), None] {
            control.replace(Some(policy("token:a")), tokens);
            assert_eq!(control.recheck(&client, 0).unwrap_err(), unknown);
        }
        control.replace(Some(policy("token:b")), Some(tokens));
        let refused = control.recheck(&client, 0).unwrap_err();
        assert!(!refused.is_of_identity(), "{refused}");
    }

    #[test]
    fn a_token_that_is_refused_never_makes_way_for_a_certificate() {
        let der = certificate();
        let control = AccessControl::new(None, Some(token("a").0));
        let with = |credential| Credentials {
            certificate: Some(&der),
            credential,
            is_private: true,
            user: None,
        };
        assert!(control.admit(&with(b""), 0).is_ok());
        for credential in [b"x".as_slice(), Secret::from_random(&mut [9; 32]).text()] {
            let refused = control.admit(&with(credential), 0).unwrap_err();
            assert!(matches!(refused, AccessRefusal::Token(_)), "{refused}");
        }
    }

    /// Of `dns:a.test`, valid to the end of 2001-01-01.
    fn certificate() -> Vec<u8> {
        let mut params = CertificateParams::new(vec![String::from("a.test")]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn an_open_link_ends_with_its_certificate() {
        let der = certificate();
        let control = AccessControl::new(Some(policy("dns:*.test")), None);
        let credentials =
            Credentials { certificate: Some(&der), credential: b"", is_private: true, user: None };
        // 2001-01-01, and the whole second in which it is still valid.
        let end = 978_307_200_000 + 1_000;
        let client = control.admit(&credentials, end - 1).unwrap();
        assert_eq!(client.end_unix_ms(), Some(end));
        assert_eq!(client.identity.as_ref().unwrap().to_string(), "dns:a.test");
        assert_eq!(control.recheck(&client, end).unwrap_err(), AccessRefusal::CertificateExpired);
        let damaged =
            Credentials { certificate: Some(b"x"), credential: b"", is_private: true, user: None };
        let refused = control.admit(&damaged, 0).unwrap_err();
        assert!(matches!(refused, AccessRefusal::Certificate(_)), "{refused}");
    }

    #[test]
    fn a_user_of_a_unix_socket_is_known_by_its_number_unless_it_has_a_token() {
        let control = AccessControl::new(Some(policy("unix:1000")), Some(token("a").0));
        let local = Credentials { user: Some(1000), ..NOTHING };
        let client = control.admit(&local, 0).unwrap();
        assert_eq!(client.identity.as_ref().unwrap().to_string(), "unix:1000");
        assert!(client.end_unix_ms().is_none() && control.recheck(&client, u64::MAX).is_ok());
        let refused = control.admit(&Credentials { user: Some(0), ..NOTHING }, 0).unwrap_err();
        assert_eq!(refused, AccessRefusal::NoRights("unix:0".parse().unwrap()));
        let secret = token("a").1;
        let refused =
            control.admit(&Credentials { user: Some(1000), ..with_token(&secret) }, 0).unwrap_err();
        assert_eq!(refused, AccessRefusal::NoRights("token:a".parse().unwrap()));
        control.replace(Some(policy("unix:100*")), None);
        assert!(control.admit(&local, 0).is_ok());
        let rule = "[[allow]]\nwho = ['unix:ann']\ndo = ['work']\npaths = ['/a']\n";
        assert!(Policy::parse(rule).unwrap_err().to_string().contains("`id -u NAME`"));
    }

    #[test]
    fn clients_of_one_identity_share_their_rights() {
        let (tokens, secret) = token("a");
        let control = AccessControl::new(Some(policy("*")), Some(tokens.clone()));
        let [one, two] = [0; 2].map(|_| control.admit(&with_token(&secret), 0).unwrap());
        assert!(Arc::ptr_eq(&one.rights, &two.rights));
        // Rights that no client has any more are forgotten.
        let rules = control.rules.borrow().clone();
        for number in 0..10_000 {
            let name = number.to_string();
            rules.rights(Some(&Identity::new(NameKind::Dns, name)));
        }
        assert!(rules.rights.lock().len() < 100);
    }

    /// Of `jwt:ann`, in the groups ops and shop; and of the same subject in ops alone.
    const JWTS: [&str; 2] =
        [include_str!("jwt/golden/rs256.jwt"), include_str!("jwt/golden/eddsa.jwt")];

    fn issuer(keys: &str) -> JwtIssuer {
        let terms = JwtTerms {
            issuer: "https://id.example".to_owned(),
            audience: "longshore".to_owned(),
            identity_claim: "sub".to_owned(),
            groups_claim: Some("groups".to_owned()),
        };
        JwtIssuer::new(terms, JwtKeys::parse(keys).unwrap())
    }

    #[test]
    fn a_jwt_is_admitted_with_the_rights_of_its_groups_until_its_key_is_gone() {
        let keys = include_str!("jwt/golden/keys.json");
        let of_group = |group: &str, path: &str| {
            format!("[[allow]]\nwho = ['{group}']\ndo = ['work']\npaths = ['{path}']\n")
        };
        let rules = "[groups]\nshops = ['token:x', 'jwt-group:sh*']\nops = ['token:x']\n"
            .to_owned()
            + &of_group("jwt-group:ops", "/ops")
            + &of_group("group:shops", "/shop")
            + &of_group("group:ops", "/no")
            + &of_group("jwt:ann", "/of/${user}");
        let policy = Policy::parse(&rules).unwrap();
        let control = AccessControl::new(Some(policy.clone()), Some(token("a").0));
        let [both, ops] = JWTS.map(|jwt| Credentials {
            credential: jwt.trim_end().as_bytes(),
            certificate: None,
            is_private: true,
            user: None,
        });
        assert_eq!(control.admit(&both, 0).unwrap_err(), AccessRefusal::NoJwt);
        let changes = control.replace_jwt(Some(issuer(keys)));
        assert_eq!(changes.keys_added, ["ec", "ed", "rsa"]);
        let now = 1_800_000_000_000;
        let client = control.admit(&both, now).unwrap();
        assert_eq!(client.identity.as_ref().unwrap().to_string(), "jwt:ann");
        assert_eq!(client.end_unix_ms(), Some(4_102_444_800_000));
        let may = |client: &Client| {
            ["/ops", "/shop", "/no", "/of/ann"]
                .map(|path| client.rights.may(Action::Work, &Path::new(path).unwrap()))
        };
        assert_eq!(may(&client), [true, true, false, true]);
        // The same identity with other groups has other rights.
        let fewer = control.admit(&ops, now).unwrap();
        assert_eq!(fewer.identity, client.identity);
        assert_eq!(may(&fewer), [true, false, false, true]);
        assert_eq!(may(&control.recheck(&client, now).unwrap()), may(&client));

        let in_the_clear = Credentials { is_private: false, ..both };
        let refused = control.admit(&in_the_clear, now).unwrap_err();
        assert_eq!(refused, AccessRefusal::TokenInTheClear);
        let der = certificate();
        let damaged = [both.credential, b"A"].concat();
        let credentials = Credentials {
            credential: &damaged,
            certificate: Some(&der),
            is_private: true,
            user: None,
        };
        let refused = control.admit(&credentials, now).unwrap_err();
        assert!(matches!(refused, AccessRefusal::Jwt(_)), "{refused}");

        // The policy's changes leave the keys.
        control.replace(Some(policy), None);
        assert!(control.recheck(&client, now).is_ok());
        let without_rsa = keys.replace("\"RS256\"", "\"RS512\"");
        let changes = control.replace_jwt(Some(issuer(&without_rsa)));
        assert_eq!(changes.to_string(), "0 rules added, 0 removed; JWT keys removed: rsa");
        let gone = AccessRefusal::Jwt(JwtRefusal::UnknownKey);
        assert_eq!(control.recheck(&client, now).unwrap_err(), gone);
        assert!(control.recheck(&fewer, now).is_ok());
        control.replace_jwt(None);
        assert_eq!(control.recheck(&fewer, now).unwrap_err(), AccessRefusal::NoJwt);
    }

    #[test]
    fn a_change_names_what_is_new_and_what_is_gone() {
        let (tokens, _) = token("a");
        let control = AccessControl::new(Some(policy("cn:a")), Some(tokens.clone()));
        let mut watch = control.changes();
        assert!(control.replace(Some(policy("cn:a")), Some(tokens)).is_empty());
        let changes = control.replace(Some(policy("cn:b")), Some(token("b").0));
        assert_eq!(
            changes.to_string(),
            "1 rules added, 1 removed; tokens added: b; tokens revoked: a"
        );
        let before = token("b").0.get("b").cloned().unwrap();
        let mut renewed = Tokens::default();
        renewed.add(Token { expires_unix_ms: None, ..before }).unwrap();
        let changes = control.replace(Some(policy("cn:b")), Some(renewed));
        assert_eq!(changes.to_string(), "0 rules added, 0 removed; tokens changed: b");
        let bound = "[publishers]\n\"00000000-0000-0000-0000-000000000001\" = [\"cn:a\"]";
        let changes = control.replace(Some(Policy::parse(bound).unwrap()), None);
        assert!(changes.publishers_changed && changes.rules_removed == 1);
        assert!(futures_ready(watch.changed()));
    }

    fn futures_ready(future: impl Future<Output = ()>) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(future).poll(&mut context).is_ready()
    }
}
