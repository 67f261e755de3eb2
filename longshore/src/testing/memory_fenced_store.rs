//! A fenced store for tests.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longshore_protocol::Token;
use tokio::task::yield_now;

use crate::fence::{FenceError, FencedStore};

/// A [`FencedStore`] in memory. Clones share their records. Each call awaits before and after it
/// takes effect, as a call over a network does.
#[derive(Clone, Debug)]
pub struct MemoryFencedStore<V> {
    records: Arc<Mutex<HashMap<String, Record<V>>>>,
}

#[derive(Clone, Debug)]
struct Record<V> {
    token: Token,
    value: Option<V>,
}

impl<V> Default for MemoryFencedStore<V> {
    fn default() -> MemoryFencedStore<V> {
        MemoryFencedStore { records: Arc::default() }
    }
}

impl<V: Clone> MemoryFencedStore<V> {
    /// The content of a record, for an invariant.
    pub fn get(&self, key: &str) -> Option<V> {
        self.records().get(key)?.value.clone()
    }

    fn records(&self) -> MutexGuard<'_, HashMap<String, Record<V>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises the record's token, writes `value` if there is one, and returns the content.
    fn raise(
        &self,
        key: &str,
        token: Token,
        value: Option<V>,
    ) -> Result<Option<V>, FenceError<Infallible>> {
        let mut records = self.records();
        let record = records.entry(key.to_owned()).or_insert(Record { token, value: None });
        if record.token > token {
            return Err(FenceError::Stale { key: key.to_owned(), token });
        }
        record.token = token;
        record.value = value.or(record.value.take());
        Ok(record.value.clone())
    }
}

impl<V: Clone + Send> FencedStore for MemoryFencedStore<V> {
    type Value = V;
    type Error = Infallible;

    async fn claim(&self, key: &str, token: Token) -> Result<Option<V>, FenceError<Infallible>> {
        yield_now().await;
        let content = self.raise(key, token, None);
        yield_now().await;
        content
    }

    async fn write(&self, key: &str, token: Token, value: V) -> Result<(), FenceError<Infallible>> {
        yield_now().await;
        let written = self.raise(key, token, Some(value));
        yield_now().await;
        written.map(drop)
    }
}
