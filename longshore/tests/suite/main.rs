//! Tests of the library's public interface.

mod names;
mod testing;
