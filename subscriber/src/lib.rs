//! subscriber
