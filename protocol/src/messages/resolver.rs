//! Messages between a resolver replica and its clients.
