//! resolver
