//! A moment in the life of a replica's directory.

use crate::fields::fields;
use crate::id::Incarnation;

fields! {
    /// What a replica knew when it answered. Those of two incarnations do not compare:
    /// whoever moves to another replica, or finds one started again, asks anew.
    #[derive(Copy, Hash)]
    pub struct Tracker {
        /// The run of the replica.
        pub incarnation: Incarnation,
        /// Rises with every change of its directory.
        pub revision: u64,
    }
}
