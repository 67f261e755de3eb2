//! Sets of line numbers, written like `120-180,400-`.

use std::fmt;
use std::str::FromStr;

/// Numbers from 1, as ascending ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds one number: in constant time if it extends the last range.
    pub(crate) fn add(&mut self, n: u64) {
        match self.0.last_mut() {
            Some((_, to)) if to.checked_add(1) == Some(n) => *to = n,
            Some((_, to)) if *to >= n => {
                if !self.contains(n) {
                    self.0.push((n, n));
                    self.join();
                }
            }
            _ => self.0.push((n, n)),
        }
    }

    /// Adds every number from `n` on that is within the others, if there are some.
    pub(crate) fn add_from(&mut self, n: u64, within: Option<&Ranges>) {
        match within {
            None => self.0.push((n, u64::MAX)),
            Some(Ranges(others)) => {
                let later = others.iter().filter(|(_, to)| *to >= n);
                self.0.extend(later.map(|&(from, to)| (from.max(n), to)));
            }
        }
        self.join();
    }

    /// True if `n` is in the set.
    pub(crate) fn contains(&self, n: u64) -> bool {
        let after = self.0.partition_point(|&(from, _)| from <= n);
        after > 0 && self.0[after - 1].1 >= n
    }

    /// The lowest number.
    pub(crate) fn first(&self) -> Option<u64> {
        self.0.first().map(|&(from, _)| from)
    }

    /// True if the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn join(&mut self) {
        self.0.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(self.0.len());
        for &(from, to) in &self.0 {
            match joined.last_mut() {
                Some((_, last)) if from <= last.saturating_add(1) => *last = (*last).max(to),
                _ => joined.push((from, to)),
            }
        }
        self.0 = joined;
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, &(from, to)) in self.0.iter().enumerate() {
            if nth > 0 {
                f.write_str(",")?;
            }
            match to {
                u64::MAX => write!(f, "{from}-")?,
                _ if from == to => write!(f, "{from}")?,
                _ => write!(f, "{from}-{to}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Ranges {
    type Err = String;

    fn from_str(text: &str) -> Result<Ranges, String> {
        let wrong = || format!("'{text}' is not a list of lines; write it like 120-180,400-");
        let number = |digits: &str| digits.parse::<u64>().ok().filter(|n| *n > 0 && *n < u64::MAX);
        let mut ranges = Ranges::default();
        for part in text.split(',') {
            let (from, to) = match part.split_once('-') {
                None => (number(part), number(part)),
                Some((from, "")) => (number(from), Some(u64::MAX)),
                Some((from, to)) => (number(from), number(to)),
            };
            let (from, to) = from.zip(to).filter(|(from, to)| from <= to).ok_or_else(wrong)?;
            ranges.0.push((from, to));
        }
        ranges.join();
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Ranges {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_read_joined_and_written() {
        for (text, shown) in [
            ("1", "1"),
            ("120-180,400-", "120-180,400-"),
            ("5,3,4", "3-5"),
            ("1-10,5-20,21", "1-21"),
            ("7-,9", "7-"),
        ] {
            assert_eq!(of(text).to_string(), shown);
        }
        for text in ["", "0", "a", "5-3", "-5", "1,,2", "1-2-3", "1 2"] {
            assert!(text.parse::<Ranges>().is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_added_one_by_one_are_what_is_contained() {
        let mut ranges = Ranges::default();
        let mut naive = std::collections::BTreeSet::new();
        let mut n = 1u64;
        for step in 0..400 {
            n = n * 7 % 101;
            if step % 3 != 0 {
                ranges.add(n);
                naive.insert(n);
            }
        }
        ranges.add_from(90, None);
        naive.extend(90..200);
        for n in 1..200 {
            assert_eq!(ranges.contains(n), naive.contains(&n), "{n} in {ranges}");
        }
        assert_eq!(of(&ranges.to_string()), ranges);
    }

    #[test]
    fn numbers_are_added_after_everything_from_one_on_was() {
        let mut ranges = Ranges::default();
        ranges.add_from(10, None);
        ranges.add(12);
        ranges.add(7);
        ranges.add(9);
        assert_eq!(ranges.to_string(), "7,9-");
    }
}
