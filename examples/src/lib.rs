//! Programs that a user would start from; see the files beside this one.
