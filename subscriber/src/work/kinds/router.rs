//! From a job's path to the handler of its kind.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use longshore_kinds::JobKind;
use longshore_protocol::limits::SOURCES_MAX;
use longshore_protocol::{Glob, Path};
use tower_layer::Layer;
use tower_service::Service;

use super::extract::AttemptParts;
use super::handler::{BlockingHandler, Handler, Running};
use super::options::{KindLimits, KindOptions};
use super::path_tree::PathTree;
use crate::work::handler::failure::job_error;
use crate::work::handler::service::failure_of;
use crate::work::state::ready_jobs::SourceLimits;
use crate::{
    Completion, Job, JobFailure, JobRequest, JobService, JobSource, QueuePatterns,
    QueuePatternsError, RunError,
};

/// The handlers of a worker, and the state that they share.
pub struct Kinds<S> {
    state: Arc<S>,
    routes: Vec<Result<Route<S>, RunError>>,
    fallbacks: Vec<Result<Route<S>, RunError>>,
}

struct Route<S> {
    /// The kind's path, as it declares it; `None` for a fallback.
    template: Option<&'static str>,
    pattern: Glob,
    limits: KindLimits,
    call: Call<S>,
}

/// A handler with its type erased.
type Call<S> = Box<dyn Fn(JobRequest, &S) -> Running + Send + Sync>;

/// Calls a handler that blocks, or one that does not.
type CallHandler<H, S> = fn(&H, Bytes, AttemptParts, &S) -> Running;

/// A kind's handler as the service that its layers wrap.
pub struct KindService<H, A, S> {
    handler: H,
    call: CallHandler<H, S>,
    state: Arc<S>,
    arguments: PhantomData<fn(A)>,
}

impl<H: Clone, A, S> Clone for KindService<H, A, S> {
    fn clone(&self) -> KindService<H, A, S> {
        let KindService { handler, call, state, arguments } = self;
        KindService {
            handler: handler.clone(),
            call: *call,
            state: state.clone(),
            arguments: *arguments,
        }
    }
}

impl<H, A, S> Service<JobRequest> for KindService<H, A, S> {
    type Response = Completion;
    type Error = JobFailure;
    type Future = Running;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), JobFailure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: JobRequest) -> Running {
        call_handler(&self.handler, self.call, request, &self.state)
    }
}

fn call_handler<H, S>(
    handler: &H,
    call: CallHandler<H, S>,
    JobRequest { job, context }: JobRequest,
    state: &S,
) -> Running {
    let Job { path, headers, payload, .. } = job;
    call(handler, payload, AttemptParts { path, headers, context }, state)
}

impl<S: Send + Sync + 'static> Kinds<S> {
    pub(crate) fn new(state: S) -> Kinds<S> {
        Kinds { state: Arc::new(state), routes: Vec::new(), fallbacks: Vec::new() }
    }

    pub(crate) fn add<H: Handler<A, S>, A>(&mut self, handler: H) {
        self.add_plain::<H::Kind, H>(handler, H::call);
    }

    pub(crate) fn add_blocking<H: BlockingHandler<A, S>, A>(&mut self, handler: H) {
        self.add_plain::<H::Kind, H>(handler, H::call_blocking);
    }

    pub(crate) fn add_with<H: Handler<A, S>, A, L>(&mut self, handler: H, options: KindOptions<L>)
    where
        L: Layer<KindService<H, A, S>, Service: JobService + Sync>,
    {
        self.add_layered::<H::Kind, H, A, L>(handler, H::call, options);
    }

    pub(crate) fn add_blocking_with<H: BlockingHandler<A, S>, A, L>(
        &mut self,
        handler: H,
        options: KindOptions<L>,
    ) where
        L: Layer<KindService<H, A, S>, Service: JobService + Sync>,
    {
        self.add_layered::<H::Kind, H, A, L>(handler, H::call_blocking, options);
    }

    fn add_plain<K: JobKind, H>(&mut self, handler: H, call: CallHandler<H, S>)
    where
        H: Send + Sync + 'static,
    {
        let call = move |request, state: &S| call_handler(&handler, call, request, state);
        self.add_route::<K>(KindLimits::default(), Box::new(call));
    }

    fn add_layered<K: JobKind, H, A, L>(
        &mut self,
        handler: H,
        call: CallHandler<H, S>,
        options: KindOptions<L>,
    ) where
        L: Layer<KindService<H, A, S>, Service: JobService + Sync>,
    {
        let (state, arguments) = (self.state.clone(), PhantomData);
        let service = options.layer.layer(KindService { handler, call, state, arguments });
        let call = move |request, _: &S| -> Running {
            let mut service = service.clone();
            Box::pin(async move {
                poll_fn(|context| service.poll_ready(context)).await.map_err(failure_of)?;
                service.call(request).await.map_err(failure_of)
            })
        };
        self.add_route::<K>(options.limits, Box::new(call));
    }

    fn add_route<K: JobKind>(&mut self, limits: KindLimits, call: Call<S>) {
        let template = K::PATH;
        let pattern = K::pattern().map_err(|error| RunError::Kind { template, error });
        let route = |pattern| Route { template: Some(template), pattern, limits, call };
        self.routes.push(pattern.map(route));
    }

    pub(crate) fn add_fallback<H>(&mut self, pattern: &str, service: H)
    where
        H: Service<JobRequest, Response = Completion, Error = JobFailure, Future: Send + 'static>,
        H: Clone + Send + Sync + 'static,
    {
        let pattern = Glob::new(pattern).map_err(|error| QueuePatternsError::Pattern(error).into());
        self.fallbacks.push(pattern.map(|pattern| {
            let call: Call<S> = Box::new(move |request, _| Box::pin(service.clone().call(request)));
            Route { template: None, pattern, limits: KindLimits::default(), call }
        }));
    }

    /// The queues to take jobs from, the limits of each, if there are any, and the service that
    /// routes each job to its handler.
    pub(crate) fn build(self) -> Result<(QueuePatterns, Vec<SourceLimits>, Router<S>), RunError> {
        self.patterns()?;
        let routes = self.routes.into_iter().chain(self.fallbacks);
        let routes = routes.collect::<Result<Vec<_>, _>>()?;
        let mut kinds = PathTree::default();
        for (number, route) in (0..).zip(&routes).filter(|(_, route)| route.template.is_some()) {
            kinds.insert(route.pattern.as_str(), number);
        }
        // A queue belongs to the first pattern that matches it: to a kind, before a fallback.
        let take = match routes.iter().any(|route| route.limits.weight.is_some()) {
            false => QueuePatterns::any(routes.iter().map(|route| &route.pattern)),
            true => {
                let weight = |limits: KindLimits| limits.weight.unwrap_or(1);
                QueuePatterns::weighted(
                    routes.iter().map(|route| (&route.pattern, weight(route.limits))),
                )
            }
        };
        let limits = match routes.iter().all(|route| route.limits.is_default()) {
            true => Vec::new(),
            false => routes.iter().map(|route| route.limits.source()).collect(),
        };
        Ok((take, limits, Router { routes: Arc::new(Routes { state: self.state, routes, kinds }) }))
    }
}

impl<S> JobSource for Kinds<S> {
    fn patterns(&self) -> Result<Vec<Glob>, RunError> {
        let mut patterns: Vec<Glob> = Vec::with_capacity(self.routes.len());
        let mut templates: Vec<&'static str> = Vec::with_capacity(self.routes.len());
        for route in self.routes.iter().chain(&self.fallbacks) {
            let Route { template, pattern, .. } = route.as_ref().map_err(RunError::clone)?;
            if let Some(second) = template {
                if let Some(first) = templates.iter().find(|first| overlap(first, second)) {
                    return Err(RunError::KindsOverlap { first, second });
                }
                templates.push(second);
            }
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
    state: Arc<S>,
    /// Kinds, then fallbacks.
    routes: Vec<Route<S>>,
    /// The numbers of the kinds.
    kinds: PathTree,
}

impl<S> Routes<S> {
    fn route(&self, path: &Path) -> Option<&Route<S>> {
        match self.kinds.find(path) {
            Some(number) => self.routes.get(number),
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

    fn call(&mut self, request: JobRequest) -> Running {
        let path = &request.job.path;
        match self.routes.route(path) {
            Some(route) => (route.call)(request, &self.routes.state),
            // Only a layer that has changed the path leads here.
            None => {
                let error = job_error("NoHandler", format_args!("no handler for {path} here"));
                Box::pin(async { Err(JobFailure::Bury(error)) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    /// A path of up to three segments.
    fn path_of(segments: &'static [&'static str]) -> impl Strategy<Value = String> {
        vec(select(segments), 1..=3).prop_map(|segments| format!("/{}", segments.join("/")))
    }

    fn kinds(templates: &[String], fallback: Option<&str>) -> Kinds<()> {
        let mut kinds = Kinds::new(());
        for template in templates {
            let template: &'static str = template.clone().leak();
            let pattern = longshore_kinds::pattern(template).unwrap();
            let call: Call<()> = Box::new(|_, _| Box::pin(async { Ok(Completion::default()) }));
            let route =
                Route { template: Some(template), pattern, limits: KindLimits::default(), call };
            kinds.routes.push(Ok(route));
        }
        let service = crate::InPlace::new(|_: Job<Bytes>, _| async { Ok(()) });
        fallback.into_iter().for_each(|pattern| kinds.add_fallback(pattern, service.clone()));
        kinds
    }

    /// The definition of a match, apart from globs.
    fn is_of(template: &str, path: &str) -> bool {
        template.split('/').count() == path.split('/').count()
            && template.split('/').zip(path.split('/')).all(|(t, p)| t == p || t == "{x}")
    }

    proptest! {
        /// Either no path is of two kinds, and each reaches its own; or the worker does not start.
        #[test]
        fn no_job_is_handled_by_another_kinds_handler(
            templates in vec(path_of(&["a", "b", "{x}"]), 1..5),
            paths in vec(path_of(&["a", "b", "c"]), 8),
        ) {
            match kinds(&templates, Some("/a/**")).build() {
                Ok((take, _, router)) => for path in paths {
                    let of: Vec<usize> =
                        (0..templates.len()).filter(|&n| is_of(&templates[n], &path)).collect();
                    prop_assert!(of.len() <= 1, "{path} is of {of:?} in {templates:?}");
                    let below = path == "/a" || path.starts_with("/a/");
                    let fallback = below.then_some(templates.len());
                    let expected = of.first().copied().or(fallback);
                    let path = Path::new(&path).unwrap();
                    let routes = &router.routes;
                    let taken = routes.route(&path).map(|route| &route.pattern);
                    prop_assert_eq!(taken, expected.map(|n| &routes.routes[n].pattern));
                    // The publisher gives a queue to the first source that matches.
                    let patterns = take.patterns().unwrap();
                    let source = patterns.iter().position(|pattern| pattern.matches(&path));
                    prop_assert_eq!(source, expected);
                },
                Err(RunError::KindsOverlap { first, second }) => {
                    let both = first.split('/').zip(second.split('/'));
                    let both = both.map(|(a, b)| if a == "{x}" { b } else { a });
                    let both = both.collect::<Vec<_>>().join("/").replace("{x}", "z");
                    prop_assert!(is_of(first, &both) && is_of(second, &both), "{both}");
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }

    #[test]
    fn limits_apply_once_a_kind_has_one() {
        let templates = ["/a".to_owned(), "/b".to_owned()];
        let built = |limits: KindLimits| {
            let mut kinds = kinds(&templates, Some("/**"));
            kinds.routes[1].as_mut().unwrap().limits = limits;
            let (take, limits, _) = kinds.build().unwrap();
            let sources = take.into_sources().unwrap();
            let weights: Vec<u16> = sources.patterns.iter().map(|source| source.weight).collect();
            let limits: Vec<_> = limits.iter().map(|limit| (limit.cap, limit.weight)).collect();
            (sources.order, weights, limits)
        };
        use longshore_protocol::messages::work::Order::{Age, Weighted};
        let (cap, none) = (Some(2), KindLimits::default());
        assert_eq!(built(none), (Age, vec![1, 1, 1], vec![]));
        let capped = built(KindLimits { cap, ..none });
        assert_eq!(capped, (Age, vec![1, 1, 1], vec![(None, 1), (cap, 1), (None, 1)]));
        let weighed = built(KindLimits { weight: Some(5), ..none });
        assert_eq!(weighed, (Weighted, vec![1, 5, 1], vec![(None, 1), (None, 5), (None, 1)]));
    }
}
