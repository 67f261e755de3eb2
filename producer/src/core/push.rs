//! Streams: opening and closing them, and adding jobs to their open batches.

use longshore_protocol::{NewJob, Path};

use super::Core;
use super::action::{PushError, Pushed};
use super::batch::{OpenBatch, weight};
use super::ids::{StreamId, Time};
use super::peer::is_up;
use super::stream::{StreamLimits, StreamState};
use super::validate::check;
use crate::outcome::EnqueueError;

impl<T: Default + Clone> Core<T> {
    pub(crate) fn open_stream(&mut self, limits: StreamLimits) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        self.streams.insert(id, StreamState::new(limits));
        id
    }

    /// Sends open batches of the stream without waiting for more jobs.
    pub(crate) fn flush_stream(&mut self, now: Time, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.flush = !stream.open.is_empty();
            self.tick(now);
        }
    }

    /// No more jobs are added to the stream.
    pub(crate) fn close_stream(&mut self, now: Time, stream: StreamId) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.closed = true;
        }
        self.flush_stream(now, stream);
        self.end_stream_if_done(stream);
    }

    /// Jobs of all streams without an outcome.
    pub(crate) fn in_flight_jobs(&self) -> usize {
        self.streams.values().map(|stream| stream.jobs).sum()
    }

    /// Adds a job to its route's open batch in the stream. Returns the batch's tag if `want_tag`,
    /// and always for its first job.
    pub(crate) fn push(
        &mut self,
        now: Time,
        stream_id: StreamId,
        index: u64,
        job: &NewJob,
        want_tag: bool,
    ) -> Result<Pushed<T>, PushError> {
        check(job).map_err(PushError::Never)?;
        let Some(stream) = self.streams.get_mut(&stream_id) else {
            return Err(PushError::Never(EnqueueError::Closed));
        };
        if !stream.has_room(job) {
            return Err(PushError::Full);
        }
        let known = stream.generation == self.routing.generation;
        let at_home = job.has_keys();
        let route_id = match &stream.last {
            Some((path, home, route)) if known && *home == at_home && *path == job.path => *route,
            _ => {
                let route = self.routing.route_of(&job.path, at_home).ok_or(PushError::NoRoute)?;
                stream.generation = self.routing.generation;
                stream.last = Some((job.path.clone(), at_home, route));
                route
            }
        };
        let mut sealed = None;
        if stream.open.get(&route_id).is_some_and(|open| stream.overflows(open, job)) {
            sealed = stream.open.remove(&route_id);
        }
        stream.jobs += 1;
        stream.bytes += weight(job);
        let open = stream.open.entry(route_id).or_insert_with(|| OpenBatch::new(T::default(), now));
        let opened = open.ids.is_empty();
        open.push(job, index);
        let index = open.ids.len() - 1;
        let tag = (want_tag || opened).then(|| open.tag.clone());
        let full = open.ids.len() >= stream.limits.batch_jobs_max
            || open.bytes >= stream.limits.batch_bytes_max;
        if let Some(sealed) = sealed {
            self.seal(stream_id, route_id, sealed, None);
        }
        if full {
            self.seal_open(stream_id, route_id);
        }
        if opened || full {
            let deadline = now + self.answer_timeout;
            self.deadline_floor = Some(self.deadline_floor.map_or(deadline, |f| f.min(deadline)));
            if let Some(route) = self.routing.routes.get_mut(&route_id) {
                route.used_at = now;
                // No other publisher takes the job if the home has moved.
                if route.is_home && !route.own.iter().any(|id| is_up(&self.peers, id)) {
                    self.resolve_paths_again(now, std::slice::from_ref(&job.path));
                }
            }
            self.tick(now);
        }
        Ok(Pushed { tag, index, joined: !opened && !full })
    }

    /// Makes one atomic batch of `jobs`; their indices are their indices.
    pub(crate) fn push_atomic(
        &mut self,
        now: Time,
        stream_id: StreamId,
        jobs: &[NewJob],
    ) -> Result<T, PushError> {
        let mut open = OpenBatch::new(T::default(), now);
        let mut paths: Vec<(&Path, bool)> = Vec::new();
        for (index, job) in jobs.iter().enumerate() {
            check(job).map_err(PushError::Never)?;
            if !open.builder.fits(job) {
                let why = "together they are over 10,000 jobs, 16 MiB of payload or 18 MiB encoded";
                return Err(PushError::Never(EnqueueError::NotAtomic(why.into())));
            }
            let path = (&job.path, job.has_keys());
            if paths.last() != Some(&path) {
                paths.push(path);
            }
            open.push(job, index as u64);
        }
        paths.sort_unstable();
        paths.dedup();
        if paths.iter().any(|&(path, at_home)| self.routing.route_of(path, at_home).is_none()) {
            return Err(PushError::NoRoute);
        }
        let Some(route) = self.routing.common_route(now, paths.iter().copied()) else {
            let why = "no publisher has all of its paths";
            return Err(PushError::Never(EnqueueError::NotAtomic(why.into())));
        };
        let has_keys = paths.iter().any(|(_, at_home)| *at_home);
        let is_plain = |&&(path, at_home): &&(&Path, bool)| {
            has_keys && !at_home && paths.binary_search(&(path, true)).is_err()
        };
        let plain_paths = paths.iter().filter(is_plain).map(|(path, _)| (*path).clone()).collect();
        let Some(stream) = self.streams.get_mut(&stream_id) else {
            return Err(PushError::Never(EnqueueError::Closed));
        };
        if !stream.has_room_for(&open) {
            return Err(PushError::Full);
        }
        stream.jobs += open.ids.len();
        stream.bytes += open.bytes;
        let tag = open.tag.clone();
        if let Some(route) = self.routing.routes.get_mut(&route) {
            route.used_at = now;
        }
        self.seal(stream_id, route, open, Some(plain_paths));
        self.tick(now);
        Ok(tag)
    }
}
