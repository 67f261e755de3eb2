//! Refusing late writers: the token of a lease, compared in your own store.
//!
//! An attempt whose worker was paused, or lost its link, may go on after another attempt has begun.
//! The publisher refuses its result, but cannot stop what it writes elsewhere. Each delivery of a
//! job has a higher [token](crate::JobContext::token) than the one before: a store that remembers
//! the highest token of a record refuses the late writer.
//!
//! An attempt first *claims* the record: from then on writes with lower tokens are refused, and
//! what it reads afterwards stays true until it writes, unless a later attempt claims the record.
//!
//! ```
//! use longshore::fence::FencedStore;
//! use longshore::prelude::*;
//!
//! async fn add<D: FencedStore<Value = i64, Error = std::io::Error>>(
//!     accounts: &D,
//!     amount: i64,
//!     context: &JobContext,
//! ) -> Result<(), JobFailure> {
//!     let balance = accounts.claim("ada", context.token()).await?.unwrap_or(0);
//!     accounts.write("ada", context.token(), balance + amount).await?;
//!     Ok(())
//! }
//! # fn main() {}
//! ```
//!
//! A fence is no idempotency key: an attempt that has written and then crashed is repeated with a
//! higher token, and would add again. Store the job's id with the record, or compute the value from
//! the job alone.
//!
//! # In a database
//!
//! A column for the token beside the data, in PostgreSQL (`BIGINT`) and SQLite (`INTEGER`):
//!
//! ```sql
//! CREATE TABLE accounts (
//!     name    TEXT   PRIMARY KEY,
//!     balance BIGINT NOT NULL,
//!     token   BIGINT NOT NULL
//! );
//!
//! -- claim: no row means that a later attempt has the record
//! INSERT INTO accounts AS a (name, balance, token) VALUES ($1, 0, $2)
//!     ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE a.token <= excluded.token
//!     RETURNING balance;
//!
//! -- write: 0 rows changed means the same
//! UPDATE accounts SET balance = $3, token = $2 WHERE name = $1 AND token <= $2;
//! ```
//!
//! Each is one statement, so it needs no transaction of its own. In a transaction that writes more,
//! roll back when it changes no row. A token fits a signed 64-bit column.
//!
//! # Limits of a fence
//!
//! Tokens of two publishers cannot be compared. A job stays at its publisher, so a record that one
//! job writes is safe. For a record that many jobs write, their queue needs a single publisher.
//!
//! [`MemoryFencedStore`](../testing/struct.MemoryFencedStore.html) is a fenced store for tests, and
//! [`Torture`](../testing/struct.Torture.html) shows whether a handler needs one.

use std::future::Future;

use crate::Token;

/// A store of records that compares tokens.
pub trait FencedStore {
    /// The content of a record.
    type Value;
    /// Errors of the store itself.
    type Error;

    /// Reads a record, and refuses writes with lower tokens from now on. `None` if it was never
    /// written. If the future is dropped, the claim may have been made, or not.
    fn claim(
        &self,
        key: &str,
        token: Token,
    ) -> impl Future<Output = Result<Option<Self::Value>, FenceError<Self::Error>>> + Send;

    /// Writes a record, unless it was claimed or written with a higher token. Comparison and write
    /// are one step. If the future is dropped, it may have been written, or not.
    fn write(
        &self,
        key: &str,
        token: Token,
        value: Self::Value,
    ) -> impl Future<Output = Result<(), FenceError<Self::Error>>> + Send;
}

/// Why a fenced store did nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FenceError<E> {
    /// A later attempt has claimed or written the record: this one has lost its lease. Return the
    /// error; whatever the handler returns is refused.
    #[error("a later attempt has '{key}': token {token} is stale")]
    Stale {
        /// The record.
        key: String,
        /// The token of this attempt.
        token: Token,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] E),
}
