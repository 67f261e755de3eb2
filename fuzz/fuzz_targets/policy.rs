#![no_main]

#[path = "../../access/tests/suite/bodies.rs"]
#[allow(dead_code)]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::fuzz_policy(data));
