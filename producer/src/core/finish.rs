//! Finishing batches and streams.

use std::sync::Arc;

use longshore_protocol::PublisherId;

use super::Core;
use super::action::Action;
use super::batch::Batch;
use super::ids::StreamId;
use crate::options::Failover;
use crate::outcome::{BatchOutcome, EnqueueError};

impl<T: Default + Clone> Core<T> {
    /// The batch may have reached the publisher: another one gets it only if duplicates are
    /// allowed.
    pub(super) fn unknown(&mut self, mut batch: Batch<T>, publisher: PublisherId, why: Arc<str>) {
        if self.failover == Failover::MayDuplicate && batch.may_be_at.is_none() {
            batch.may_be_at = Some(publisher);
            self.queue_unsent(batch);
        } else {
            self.end_unknown(batch, publisher, why);
        }
    }

    pub(super) fn end_unknown(&mut self, batch: Batch<T>, publisher: PublisherId, why: Arc<str>) {
        self.finish(batch, BatchOutcome::Unknown { publisher, why });
    }

    /// Fails the batch; it is unknown instead if an earlier publisher may have it.
    pub(super) fn fail(&mut self, batch: Batch<T>, error: EnqueueError) {
        match batch.may_be_at {
            Some(publisher) => self.end_unknown(batch, publisher, error.to_string().into()),
            None => self.finish(batch, BatchOutcome::Failed(error)),
        }
    }

    pub(super) fn finish(&mut self, batch: Batch<T>, end: BatchOutcome) {
        if let Some(stream) = self.streams.get_mut(&batch.stream) {
            stream.jobs -= batch.ids.len();
            stream.bytes -= batch.bytes;
        }
        let Batch { stream, tag, ids, indices, .. } = batch;
        self.actions.push_back(Action::Finish { stream, tag, ids, indices, end });
        self.end_stream_if_done(stream);
    }

    pub(super) fn end_stream_if_done(&mut self, stream: StreamId) {
        if self.streams.get(&stream).is_some_and(|stream| stream.closed && stream.jobs == 0) {
            self.streams.remove(&stream);
            self.actions.push_back(Action::StreamClosed(stream));
        }
    }
}
