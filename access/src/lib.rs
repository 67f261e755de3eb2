//! Who a client is, and what it may do. Pure: no socket, no clock, no file is opened here.
//!
//! [`identity_of`] reads an [`Identity`] from a certificate; [`Tokens`] verifies the secrets of
//! bearer tokens, [`JwtIssuer`] the JWTs of an OpenID Connect provider. A [`Policy`] allows
//! [`Action`]s on paths; [`Rights`] are everything that it allows one client. [`AccessControl`] has
//! the rules of a running server. [`AuditChain`] makes the lines of an audit log.

mod action;
mod audit;
mod certificate;
mod control;
mod identity;
mod jwt;
mod policy;
mod tokens;

pub use action::{Action, UnknownAction};
pub use audit::{
    AUDIT_LINE_BYTES_MAX, AUDIT_TEXT_BYTES_MAX, AuditChain, AuditFault, AuditOutcome, AuditRecord,
    AuditVerifier, NotAnAuditLine,
};
pub use certificate::{CertificateError, identity_of};
pub use control::{
    AccessControl, AccessRefusal, Client, Credentials, RuleChangeFeed, RuleChanges, RuleWatch,
};
pub use identity::{IDENTITY_BYTES_MAX, Identity, IdentityTextError, NameKind};
pub use jwt::{
    Bearer, JWK_FILE_BYTES_MAX, JWT_KEYS_MAX, JWT_LEEWAY_MS, JwkFault, JwkFileError, JwtIssuer,
    JwtKeys, JwtRefusal, JwtTerms, NotABearer,
};
pub use policy::{
    Binding, Decision, Effect, LinksLimit, POLICY_BYTES_MAX, Policy, PolicyError, PolicyFault,
    QUOTA_BYTES_MIN, QUOTA_MESSAGES_MIN, QueueLimits, QueueQuota, Quota, Rights, Rule, SERVER_PATH,
};
pub use tokens::{
    NotAHash, NotASecret, SECRET_RANDOM_BYTES, SECRET_TEXT_BYTES, Secret, SecretHash,
    TIME_UNIX_MS_MAX, TOKEN_FILE_BYTES_MAX, TOKEN_NAME_BYTES_MAX, TOKENS_MAX, Token, TokenFault,
    TokenFileError, TokenRefusal, Tokens, VerifiedToken,
};
