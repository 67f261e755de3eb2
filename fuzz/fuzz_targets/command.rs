#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longshore_queue::fuzz::command(data));
