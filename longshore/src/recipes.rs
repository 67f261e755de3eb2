#![doc = include_str!("../RECIPES.md")]
