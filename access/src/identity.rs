//! The name by which a policy knows a client.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

/// The longest name of an identity, in bytes.
pub const IDENTITY_BYTES_MAX: usize = 256;

/// Who a client is: a name, and where it comes from. Names of different kinds are different
/// identities, whatever their text: an authority that limits DNS names does not limit common names.
/// Its text is the kind and the name, such as `dns:worker-1.example.com`.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Where the name comes from.
    pub kind: NameKind,
    /// The name: 1 to 256 bytes without control characters.
    pub name: String,
    /// The groups that its JWT claims, sorted. They decide what the client may do, not who it is:
    /// identities of one kind and name are equal.
    pub groups: Arc<[String]>,
}

/// Where the name of an identity comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NameKind {
    /// `uri:`, the first URI among a certificate's alternative names.
    Uri,
    /// `dns:`, the first DNS name among a certificate's alternative names.
    Dns,
    /// `cn:`, the common name of a certificate's subject.
    CommonName,
    /// `token:`, the name of a token.
    Token,
    /// `jwt:`, the subject of a JWT.
    Jwt,
    /// `unix:`, the number of the user whose process has connected over a Unix socket.
    Unix,
}

impl NameKind {
    /// All kinds.
    pub const ALL: [NameKind; 6] = [
        NameKind::Uri,
        NameKind::Dns,
        NameKind::CommonName,
        NameKind::Token,
        NameKind::Jwt,
        NameKind::Unix,
    ];

    /// The text before the colon.
    pub fn prefix(self) -> &'static str {
        match self {
            NameKind::Uri => "uri",
            NameKind::Dns => "dns",
            NameKind::CommonName => "cn",
            NameKind::Token => "token",
            NameKind::Jwt => "jwt",
            NameKind::Unix => "unix",
        }
    }

    /// A name of this kind as it is compared: DNS names have no case, and a final dot means
    /// nothing.
    pub(crate) fn normal(self, name: &str) -> String {
        match self {
            NameKind::Dns => name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase(),
            NameKind::Uri
            | NameKind::CommonName
            | NameKind::Token
            | NameKind::Jwt
            | NameKind::Unix => name.to_owned(),
        }
    }

    /// Whether a pattern of names can match a name of this kind, as far as its characters show.
    pub(crate) fn can_match(self, pattern: &str) -> bool {
        let fits = |c: char| match self {
            NameKind::Token | NameKind::Dns => c.is_ascii_alphanumeric() || "-_.*".contains(c),
            NameKind::Uri => c.is_ascii_graphic(),
            NameKind::Unix => c.is_ascii_digit() || c == '*',
            NameKind::CommonName | NameKind::Jwt => !c.is_control(),
        };
        let starts_a_number = self != NameKind::Unix || starts_a_user(pattern);
        pattern.trim() == pattern && pattern.chars().all(fits) && starts_a_number
    }
}

/// Whether the number of a user, as the kernel's is written, can begin as this pattern does.
fn starts_a_user(pattern: &str) -> bool {
    let first = pattern.split('*').next().unwrap_or_default();
    let is_number = |number: u32| number.to_string() == first;
    first.parse().map_or(first.is_empty(), is_number)
}

/// Why a text is not an identity.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityTextError {
    /// It has no known kind.
    #[error(
        "{0:?} does not begin with a kind of name; write uri:NAME, dns:NAME, cn:NAME, \
         token:NAME, jwt:NAME or unix:UID"
    )]
    Kind(String),
    /// The name is empty, too long or contains a control character.
    #[error(
        "the name in {0:?} cannot serve; it has 1 to {IDENTITY_BYTES_MAX} bytes \
         and no control character"
    )]
    Name(String),
}

impl Identity {
    /// An identity without groups.
    pub fn new(kind: NameKind, name: impl Into<String>) -> Identity {
        Identity { kind, name: name.into(), groups: Arc::default() }
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Identity) -> bool {
        (self.kind, &self.name) == (other.kind, &other.name)
    }
}

impl Eq for Identity {}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.kind, &self.name).hash(state);
    }
}

impl FromStr for Identity {
    type Err = IdentityTextError;

    fn from_str(text: &str) -> Result<Identity, IdentityTextError> {
        let (prefix, name) =
            text.split_once(':').ok_or_else(|| IdentityTextError::Kind(text.to_owned()))?;
        let kind = NameKind::ALL.into_iter().find(|kind| kind.prefix() == prefix);
        let kind = kind.ok_or_else(|| IdentityTextError::Kind(text.to_owned()))?;
        let fits = (1..=IDENTITY_BYTES_MAX).contains(&name.len());
        if !fits || name.chars().any(char::is_control) {
            return Err(IdentityTextError::Name(text.to_owned()));
        }
        Ok(Identity::new(kind, kind.normal(name)))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.prefix(), self.name)
    }
}
