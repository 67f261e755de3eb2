//! Tests of the library's public interface.

mod clients;
mod flow;
mod handlers;
mod kinds;
mod mistakes;
mod names;
mod schedules;
mod testing;
mod torture;
mod workflows;
