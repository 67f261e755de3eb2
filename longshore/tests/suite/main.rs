//! Tests of the library's public interface.

mod clients;
mod handlers;
mod kinds;
mod names;
mod testing;
mod torture;
