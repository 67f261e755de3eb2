//! `longshore`, the program.

mod child;
mod commands;
mod config;
mod failure;
mod output;
mod signals;
mod time;

fn main() {}
