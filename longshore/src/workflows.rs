#![doc = include_str!("../WORKFLOWS.md")]
