//! A limit on attempts with the same key.

use std::fmt;
use std::mem::replace;
use std::sync::Arc;
use std::task::{Context, Poll};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_layer::Layer;
use tower_service::Service;

use crate::work::handler::service::failure_of;
use crate::work::kinds::Running;
use crate::work::lease_signal::LeaseSignal;
use crate::{Completion, JobFailure, JobRequest, JobService};

/// A layer that runs at most `limit` attempts with the same key at once, in this process: per
/// customer, per mailbox. It protects what the handlers use; it is no lock, because other workers
/// have their own.
///
/// Further attempts wait, in their order, and count as running: with many jobs of one key they take
/// up the worker's concurrency. Memory is bounded by it, too: keys in use are remembered. A blocking
/// handler that outlives its attempt, as after a [`Timeout`](crate::Timeout), uses its key until it
/// returns.
pub struct ConcurrencyByKey<F> {
    limit: usize,
    key: Arc<F>,
    keys: Arc<Keys>,
}

/// The keys in use: the attempts of each, and its permits.
type Keys = Mutex<HashMap<String, (usize, Arc<Semaphore>)>>;

impl<F: Fn(&JobRequest) -> Option<String>> ConcurrencyByKey<F> {
    /// At most `limit` at once, from 1, of the attempts for which `key` returns the same text.
    /// Those without a key run at once.
    pub fn new(limit: usize, key: F) -> ConcurrencyByKey<F> {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        ConcurrencyByKey { limit, key: Arc::new(key), keys: Arc::default() }
    }
}

impl<F> Clone for ConcurrencyByKey<F> {
    fn clone(&self) -> ConcurrencyByKey<F> {
        ConcurrencyByKey { limit: self.limit, key: self.key.clone(), keys: self.keys.clone() }
    }
}

impl<F> fmt::Debug for ConcurrencyByKey<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys.lock().len();
        f.debug_struct("ConcurrencyByKey").field("limit", &self.limit).field("keys", &keys).finish()
    }
}

impl<S, F> Layer<S> for ConcurrencyByKey<F> {
    type Service = ConcurrencyByKeyService<S, F>;

    fn layer(&self, inner: S) -> ConcurrencyByKeyService<S, F> {
        ConcurrencyByKeyService { inner, limits: self.clone() }
    }
}

/// The service of [`ConcurrencyByKey`].
#[derive(Debug)]
pub struct ConcurrencyByKeyService<S, F> {
    inner: S,
    limits: ConcurrencyByKey<F>,
}

impl<S: Clone, F> Clone for ConcurrencyByKeyService<S, F> {
    fn clone(&self) -> ConcurrencyByKeyService<S, F> {
        ConcurrencyByKeyService { inner: self.inner.clone(), limits: self.limits.clone() }
    }
}

/// An attempt that uses a key; forgets the key with its last attempt.
struct KeyUse {
    keys: Arc<Keys>,
    key: String,
}

impl KeyUse {
    fn begin(keys: &Arc<Keys>, key: String, limit: usize) -> (KeyUse, Arc<Semaphore>) {
        let mut guard = keys.lock();
        let new = || (0, Arc::new(Semaphore::new(limit)));
        let (attempts, permits) = guard.entry(key.clone()).or_insert_with(new);
        *attempts += 1;
        (KeyUse { keys: keys.clone(), key }, permits.clone())
    }
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        let mut keys = self.keys.lock();
        if let Some((attempts, _)) = keys.get_mut(&self.key) {
            *attempts -= 1;
            if *attempts == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

/// Frees the key of an attempt when it has ended, and its blocking handler, if it has one.
struct UntilThreadsEnd {
    place: Option<(OwnedSemaphorePermit, KeyUse)>,
    signal: Arc<LeaseSignal>,
}

impl Drop for UntilThreadsEnd {
    fn drop(&mut self) {
        if self.signal.has_threads()
            && let Ok(runtime) = Handle::try_current()
        {
            let (place, signal) = (self.place.take(), self.signal.clone());
            runtime.spawn(async move {
                signal.threads_ended().await;
                drop(place);
            });
        }
    }
}

impl<S, F> Service<JobRequest> for ConcurrencyByKeyService<S, F>
where
    S: JobService,
    S::Future: 'static,
    F: Fn(&JobRequest) -> Option<String> + Send + Sync + 'static,
{
    type Response = Completion;
    type Error = JobFailure;
    type Future = Running;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), JobFailure>> {
        self.inner.poll_ready(context).map_err(failure_of)
    }

    fn call(&mut self, request: JobRequest) -> Running {
        // The service that is ready is called later; its clone may not be ready.
        let next = self.inner.clone();
        let mut ready = replace(&mut self.inner, next);
        let Some(key) = (self.limits.key)(&request) else {
            let attempt = ready.call(request);
            return Box::pin(async move { attempt.await.map_err(failure_of) });
        };
        let (key_use, permits) = KeyUse::begin(&self.limits.keys, key, self.limits.limit);
        Box::pin(async move {
            let permit = tokio::select! {
                biased;
                // The job may be another worker's by now.
                _ = request.context.cancelled() => return Err(JobFailure::Release),
                permit = permits.acquire_owned() => permit,
            };
            // It is never closed.
            let place = permit.ok().map(|permit| (permit, key_use));
            let _held = UntilThreadsEnd { place, signal: request.context.signal.clone() };
            ready.call(request).await.map_err(failure_of)
        })
    }
}
