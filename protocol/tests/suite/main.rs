//! Tests of the public interface of the protocol: its bytes, its limits, its documentation, and
//! arbitrary input.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::panic)]

/// Passes every enum of codes, with its name in `docs/PROTOCOL.md`, to a macro.
macro_rules! every_code {
    ($macro:ident) => {
        $macro! {
            Role: Role, HandshakeRefusal: HandshakeRefusal, Refusal: Refusal,
            OnConflict: OnConflict, ParentEnd: ParentEnd, NewBatch: NewBatch,
            LimitScope: LimitScope, Missed: Missed, Overlap: Overlap,
            BatchRefusal: BatchRefusal, SettleOutcome: SettleOutcome, Revoked: Revoked, Gate: Gate,
            Durability: Durability, JobState: JobState, DeathReason: DeathReason,
            Action: work::Action, RequestError: work::RequestError, Change: resolver::Change,
            RequestRefusal: resolver::RequestRefusal, AttemptOutcome: AttemptOutcome,
            CheckpointOutcome: CheckpointOutcome, JobChange: JobChange, Order: work::Order,
            FeedEnd: work::FeedEnd, ReplaceOutcome: work::ReplaceOutcome, Room: work::Room,
            QuietEnd: work::QuietEnd, PublicationKind: PublicationKind,
            Departure: resolver::Departure, Policy: values::Policy,
            ValueRefusal: values::ValueRefusal, SubscriptionEnd: values::SubscriptionEnd,
            WriteRefusal: values::WriteRefusal,
        }
    };
}

mod bodies;
mod document;
mod fuzz_bodies;
mod golden;
mod limits;
mod paths_and_globs;
mod vectors;
mod waits;
