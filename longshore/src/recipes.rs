#![doc = include_str!("../../docs/RECIPES.md")]
