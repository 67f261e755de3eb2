//! Tests of the library as its users see it.

mod names;
mod testing;
