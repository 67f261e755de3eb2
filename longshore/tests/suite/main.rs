//! Tests of the library's public interface.

mod kinds;
mod names;
mod testing;
