//! A version of a replica's directory.

use crate::fields::fields;
use crate::id::Incarnation;

fields! {
    /// The version of the directory that an answer reflects. Versions of two incarnations cannot be
    /// compared: a client that moves to another replica, or finds one restarted, queries again.
    #[derive(Copy, Hash)]
    pub struct Tracker {
        /// The run of the replica.
        pub incarnation: Incarnation,
        /// Increases with every change of the directory.
        pub revision: u64,
    }
}
