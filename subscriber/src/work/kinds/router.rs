//! From a job's path to the handler of its kind.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use longshore_kinds::JobKind;
use longshore_protocol::limits::SOURCES_MAX;
use longshore_protocol::{Glob, Path};
use tower_service::Service;

use super::extract::AttemptParts;
use super::handler::{Handler, Running};
use crate::work::handler::failure::job_error;
use crate::{Completion, Job, JobFailure, JobRequest, RunError, Take, Takes};

/// The handlers of a worker, and the state that they share.
pub struct Kinds<S> {
    state: S,
    routes: Vec<Result<Route<S>, RunError>>,
}

struct Route<S> {
    /// The kind's path, as it declares it.
    template: &'static str,
    pattern: Glob,
    call: Call<S>,
}

/// A handler with its type erased.
type Call<S> = Box<dyn Fn(bytes::Bytes, AttemptParts, &S) -> Running + Send + Sync>;

impl<S: Send + Sync + 'static> Kinds<S> {
    pub(crate) fn new(state: S) -> Kinds<S> {
        Kinds { state, routes: Vec::new() }
    }

    pub(crate) fn add<H: Handler<A, S>, A>(&mut self, handler: H) {
        let template = H::Kind::PATH;
        let route = H::Kind::pattern().map_err(|error| RunError::Kind { template, error });
        self.routes.push(route.map(|pattern| {
            let call: Call<S> =
                Box::new(move |payload, attempt, state| handler.call(payload, attempt, state));
            Route { template, pattern, call }
        }));
    }

    /// The queues to take jobs from, and the service that routes each job to its handler.
    pub(crate) fn build(self) -> Result<(Take, Router<S>), RunError> {
        self.patterns()?;
        let routes = self.routes.into_iter().collect::<Result<Vec<_>, _>>()?;
        let by_path = (0..).zip(&routes).map(|(number, route)| (route.pattern.to_string(), number));
        let by_path = by_path.collect();
        let take = Take::any(routes.iter().map(|route| &route.pattern));
        Ok((take, Router { routes: Arc::new(Routes { state: self.state, routes, by_path }) }))
    }
}

impl<S> Takes for Kinds<S> {
    fn patterns(&self) -> Result<Vec<Glob>, RunError> {
        let mut patterns: Vec<Glob> = Vec::with_capacity(self.routes.len());
        let mut templates: Vec<&'static str> = Vec::with_capacity(self.routes.len());
        for route in &self.routes {
            let Route { template, pattern, .. } = route.as_ref().map_err(RunError::clone)?;
            if let Some(first) = templates.iter().find(|first| overlap(first, template)) {
                return Err(RunError::KindsOverlap { first, second: template });
            }
            templates.push(template);
            patterns.push(pattern.clone());
        }
        match patterns.len() {
            0 => Err(RunError::NoHandler),
            1..=SOURCES_MAX => Ok(patterns),
            over => Err(RunError::TooManyHandlers(over)),
        }
    }
}

/// True if a path matches both templates: the same number of segments, each equal or a parameter.
fn overlap(one: &str, other: &str) -> bool {
    let is_parameter = |segment: &str| segment.starts_with('{');
    one.split('/').count() == other.split('/').count()
        && (one.split('/').zip(other.split('/')))
            .all(|(a, b)| a == b || is_parameter(a) || is_parameter(b))
}

struct Routes<S> {
    state: S,
    routes: Vec<Route<S>>,
    /// Routes by their pattern: finds those without parameters at once.
    by_path: HashMap<String, usize>,
}

impl<S> Routes<S> {
    fn route(&self, path: &Path) -> Option<&Route<S>> {
        match self.by_path.get(path.as_str()) {
            Some(&number) => self.routes.get(number),
            None => self.routes.iter().find(|route| route.pattern.matches(path)),
        }
    }
}

/// All handlers as one service.
pub struct Router<S> {
    routes: Arc<Routes<S>>,
}

impl<S> Clone for Router<S> {
    fn clone(&self) -> Router<S> {
        Router { routes: self.routes.clone() }
    }
}

impl<S: Send + Sync + 'static> Service<JobRequest> for Router<S> {
    type Response = Completion;
    type Error = JobFailure;
    type Future = Running;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), JobFailure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, JobRequest { job, context }: JobRequest) -> Running {
        let Job { path, headers, payload, .. } = job;
        match self.routes.route(&path) {
            Some(route) => {
                let attempt = AttemptParts { path, headers, context };
                (route.call)(payload, attempt, &self.routes.state)
            }
            // Only a layer that has changed the path leads here.
            None => {
                let error = job_error("NoHandler", format_args!("no handler for {path} here"));
                Box::pin(async { Err(JobFailure::Bury(error)) })
            }
        }
    }
}
