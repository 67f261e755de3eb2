//! A job as users name it: `prefix:uuid` as in receipts, or the bare id.

use std::fmt;
use std::str::FromStr;

use longshore_protocol::id::IdError;
use longshore_protocol::{JobId, JobRef};

use crate::outcome::Receipt;

/// A job's id, with or without the prefix of its publisher's id.
///
/// Calls that look up a job take a receipt, a job id, or a parsed text: all become a `JobLocator`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobLocator {
    /// The first eight hex digits of its publisher's id, if known.
    pub publisher: Option<String>,
    /// Its id.
    pub id: JobId,
}

/// The text is neither a receipt's nor a job's id.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JobLocatorError {
    /// The id is invalid.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The part before the colon is not the prefix of a publisher's id.
    #[error(
        "'{0}' is not the beginning of a publisher's id; it has eight hex digits, as in \
         1a2b3c4d:01920f3e-…"
    )]
    Publisher(String),
}

impl FromStr for JobLocator {
    type Err = JobLocatorError;

    fn from_str(text: &str) -> Result<JobLocator, JobLocatorError> {
        let Some((prefix, id)) = text.split_once(':') else {
            return Ok(JobLocator { publisher: None, id: text.parse()? });
        };
        if prefix.len() != 8 || !prefix.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(JobLocatorError::Publisher(prefix.chars().take(64).collect()));
        }
        Ok(JobLocator { publisher: Some(prefix.to_ascii_lowercase()), id: id.parse()? })
    }
}

impl fmt::Display for JobLocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.publisher {
            Some(prefix) => write!(f, "{prefix}:{}", self.id),
            None => self.id.fmt(f),
        }
    }
}

impl From<JobId> for JobLocator {
    fn from(id: JobId) -> JobLocator {
        JobLocator { publisher: None, id }
    }
}

impl From<JobRef> for JobLocator {
    fn from(job: JobRef) -> JobLocator {
        JobLocator { publisher: Some(job.publisher.prefix()), id: job.id }
    }
}

impl From<&JobLocator> for JobLocator {
    fn from(name: &JobLocator) -> JobLocator {
        name.clone()
    }
}

impl From<Receipt> for JobLocator {
    fn from(receipt: Receipt) -> JobLocator {
        receipt.job.into()
    }
}

impl From<&Receipt> for JobLocator {
    fn from(receipt: &Receipt) -> JobLocator {
        receipt.job.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_names_parse_as_printed() {
        let job = JobRef {
            publisher: longshore_protocol::PublisherId([0xab; 16]),
            id: JobId::new_v7(7, [3; 10]),
        };
        assert_eq!(job.to_string().parse(), Ok(JobLocator::from(job)));
        assert_eq!(job.id.to_string().parse(), Ok(JobLocator::from(job.id)));
        assert_eq!(JobLocator::from(job).to_string(), job.to_string());
    }

    #[test]
    fn an_invalid_job_name_reports_the_format() {
        let id = JobId::new_v7(7, [3; 10]);
        for text in [
            String::new(),
            "x".into(),
            format!("abc:{id}"),
            format!("xxxxxxxx:{id}"),
            "abababab:1".into(),
        ] {
            let error = text.parse::<JobLocator>().expect_err(&text).to_string();
            assert!(error.contains("01920f3e"), "{error}");
        }
    }
}
