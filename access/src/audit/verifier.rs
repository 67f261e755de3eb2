//! Finds the first line that does not follow.

use super::chain::{AuditChain, NotAnAuditLine, hash_of_text, place, split};

/// Reads the lines of a log, in their order, also over several files.
///
/// It cannot find that last lines are missing, or that all of a log was written anew: keep the
/// position that it ends with elsewhere, and compare.
#[derive(Clone, Debug, Default)]
pub struct AuditVerifier {
    last: Option<AuditChain>,
}

/// Why a line does not follow.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AuditFault {
    /// It has another form.
    #[error(transparent)]
    Line(#[from] NotAnAuditLine),
    /// The first line read does not name the hash that it follows: it was not the first of a file.
    #[error("lines before it are missing: it is not the first line of a file")]
    NoBeginning,
    /// Its number is not the next one.
    #[error("it has the number {found}, and {expected} is next: lines were removed or swapped")]
    Number {
        /// The number that was expected.
        expected: u64,
        /// The number that it has.
        found: u64,
    },
    /// It has another hash than its text and the line before it give.
    #[error("it was changed, or the line before it: its hash is not that of both")]
    Hash,
}

impl AuditVerifier {
    /// Reads one line, without its line feed.
    pub fn line(&mut self, line: &str) -> Result<(), AuditFault> {
        let (text, hash) = split(line)?;
        let place = place(text)?;
        let after = place.after.as_deref().map(|after| hash_of_text(after).ok_or(AuditFault::Hash));
        let after = after.transpose()?;
        let before = match (self.last, after) {
            (Some(last), None) => last,
            (Some(last), Some(hash)) if hash == last.hash => last,
            (Some(_), Some(_)) => return Err(AuditFault::Hash),
            (None, Some(hash)) => AuditChain { seq: place.seq.saturating_sub(1), hash },
            (None, None) => return Err(AuditFault::NoBeginning),
        };
        let expected = before.seq.saturating_add(1);
        if place.seq != expected {
            return Err(AuditFault::Number { expected, found: place.seq });
        }
        if before.hash_of(text.as_bytes()) != hash {
            return Err(AuditFault::Hash);
        }
        self.last = Some(AuditChain { seq: place.seq, hash });
        Ok(())
    }

    /// The position after the last line that follows; none before the first.
    pub fn position(&self) -> Option<AuditChain> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AuditOutcome, AuditRecord};
    use super::*;

    fn record(target: &str) -> AuditRecord {
        AuditRecord {
            time_unix_ms: 1_795_570_800_123,
            server: "jobs-1".to_owned(),
            identity: "dns:ops.test".to_owned(),
            address: "192.0.2.7:4000".to_owned(),
            action: "pause",
            target: target.to_owned(),
            detail: String::new(),
            outcome: AuditOutcome::Allowed,
            left_out: 0,
        }
    }

    fn verify(lines: &[String]) -> Result<AuditChain, (usize, AuditFault)> {
        let mut verifier = AuditVerifier::default();
        for (number, line) in lines.iter().enumerate() {
            verifier.line(line.trim_end_matches('\n')).map_err(|fault| (number, fault))?;
        }
        Ok(verifier.position().unwrap())
    }

    #[test]
    fn lines_have_their_documented_text() {
        let mut chain = AuditChain::default();
        let first = chain.begin_file(&record("/mail/**"));
        assert_eq!(
            first,
            "{\"seq\":1,\
             \"after\":\"0000000000000000000000000000000000000000000000000000000000000000\",\
             \"time\":\"2026-11-25T01:40:00.123Z\",\"server\":\"jobs-1\",\
             \"identity\":\"dns:ops.test\",\"address\":\"192.0.2.7:4000\",\"action\":\"pause\",\
             \"target\":\"/mail/**\",\"outcome\":\"allowed\",\
             \"chain\":\"86cdbb43d69a4e2b4a979ed84adeeb946be8df365e00660e924cce0034bcaec0\"}\n"
        );
        let refused = AuditRecord {
            identity: String::new(),
            action: "enqueue",
            detail: "a \"quoted\"\nline".to_owned(),
            outcome: AuditOutcome::Refused { reason: "Forbidden".to_owned() },
            left_out: 7,
            ..record("/ü")
        };
        assert_eq!(
            chain.append(&refused),
            "{\"seq\":2,\"time\":\"2026-11-25T01:40:00.123Z\",\"server\":\"jobs-1\",\
             \"address\":\"192.0.2.7:4000\",\"action\":\"enqueue\",\"target\":\"/ü\",\
             \"detail\":\"a \\\"quoted\\\"\\nline\",\"outcome\":\"refused\",\
             \"reason\":\"Forbidden\",\"left_out\":7,\
             \"chain\":\"c4ce8cba9368eae5cae9cd0a8371764672c2b9c6d6cfee09669fe0bc74c5d3dc\"}\n"
        );
    }

    #[test]
    fn every_changed_removed_swapped_or_cut_line_is_found() {
        let mut chain = AuditChain::default();
        let mut lines = vec![chain.begin_file(&record("/0"))];
        lines.extend((1..6).map(|number| chain.append(&record(&format!("/{number}")))));
        assert_eq!(verify(&lines), Ok(chain));
        for at in 0..lines.len() {
            for byte in 0..lines[at].len() - 1 {
                let mut changed = lines.clone();
                // Another printable character, in every place of the line.
                let other = if lines[at].as_bytes()[byte] == b'1' { "2" } else { "1" };
                changed[at].replace_range(byte..=byte, other);
                let (found, fault) = verify(&changed).expect_err("a change is found");
                assert!(found == at, "line {at}, byte {byte}: {fault} in line {found}");
            }
            let mut cut = lines.clone();
            let half = cut[at].len() / 2;
            cut[at].truncate(half);
            assert!(matches!(verify(&cut), Err((found, AuditFault::Line(_))) if found == at));
            let mut removed = lines.clone();
            removed.remove(at);
            match verify(&removed) {
                Err((found, _)) => assert_eq!(found, at),
                // The end of a log is to be compared with what was noted.
                Ok(end) => assert!(at == 5 && end != chain),
            }
            let mut swapped = lines.clone();
            swapped.swap(at, (at + 1) % lines.len());
            assert!(verify(&swapped).is_err(), "{at}");
            let mut inserted = lines.clone();
            inserted.insert(at, lines[(at + 2) % lines.len()].clone());
            assert!(verify(&inserted).is_err(), "{at}");
        }
    }

    #[test]
    fn a_file_that_follows_another_names_its_end() {
        let mut chain = AuditChain::default();
        let mut lines = vec![chain.begin_file(&record("/0")), chain.append(&record("/1"))];
        let line = lines[1].trim_end();
        let mut next = AuditChain::after_line(line).unwrap();
        assert_eq!(next, chain);
        lines.push(next.begin_file(&record("/2")));
        lines.push(next.append(&record("/3")));
        assert_eq!(verify(&lines), Ok(next));
        assert_eq!(verify(&lines[2..]), Ok(next), "alone, too");
        assert_eq!(verify(&lines[1..]), Err((0, AuditFault::NoBeginning)));
        let without_end = [lines[0].clone(), lines[2].clone(), lines[3].clone()];
        assert_eq!(verify(&without_end), Err((1, AuditFault::Hash)));
    }
}
