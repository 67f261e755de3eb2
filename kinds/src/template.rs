//! Paths with parameters: `/tenants/{tenant}/mail`.

use std::fmt::Display;

use longshore_protocol::{Glob, GlobError, Path, PathError};

/// The most bytes of a parameter's value in an error.
const SHOWN_BYTES_MAX: usize = 64;

/// Why a job has no path.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParameterError {
    /// A parameter's value is not one segment of a path.
    #[error(
        "parameter {{{name}}} of {template} is '{value}'; it must be one segment of a path: not \
         empty, at most 255 bytes, without '/', control characters and * ? {{ }} [ ]"
    )]
    NotOneSegment {
        /// The path as its kind has it.
        template: &'static str,
        /// The parameter.
        name: String,
        /// Its value, escaped and cut.
        value: String,
    },
    /// A parameter has no value: an error in a hand-written implementation of `JobKind`.
    #[error("parameter {{{name}}} of {template} has no value")]
    Missing {
        /// The path as its kind has it.
        template: &'static str,
        /// The parameter.
        name: String,
    },
    /// With its parameters filled in, it is not a path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// With `*` for its parameters, it is not a pattern.
    #[error(transparent)]
    Pattern(#[from] GlobError),
}

/// Fills the parameters of a path: pairs of a name and a value.
pub fn fill(
    template: &'static str,
    parameters: &[(&str, &dyn Display)],
) -> Result<Path, ParameterError> {
    if !template.starts_with('/') {
        return Err(PathError::NotAbsolute(template.to_owned()).into());
    }
    let mut path = String::with_capacity(template.len() + 16);
    for segment in template.split('/').skip(1) {
        path.push('/');
        let Some(name) = parameter(segment) else {
            path.push_str(segment);
            continue;
        };
        let named = parameters.iter().find(|(other, _)| *other == name);
        let Some((_, value)) = named else {
            return Err(ParameterError::Missing { template, name: name.to_owned() });
        };
        let value = value.to_string();
        if value.is_empty() || value.contains('/') || Path::check(&format!("/{value}")).is_err() {
            let (name, value) = (name.to_owned(), shown(&value));
            return Err(ParameterError::NotOneSegment { template, name, value });
        }
        path.push_str(&value);
    }
    Ok(Path::new(&path)?)
}

/// The pattern of all paths of a template: `*` for each parameter.
pub fn pattern(template: &str) -> Result<Glob, ParameterError> {
    let segments: Vec<&str> =
        template.split('/').map(|s| if parameter(s).is_some() { "*" } else { s }).collect();
    Ok(Glob::new(&segments.join("/"))?)
}

/// The value as an error shows it.
fn shown(value: &str) -> String {
    value.chars().take(SHOWN_BYTES_MAX).flat_map(char::escape_debug).collect()
}

/// The parameter's name, if the segment is one.
fn parameter(segment: &str) -> Option<&str> {
    segment.strip_prefix('{')?.strip_suffix('}')
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIL: &str = "/tenants/{tenant}/mail/{language}";

    #[test]
    fn parameters_fill_whole_segments() {
        let path = fill(MAIL, &[("language", &"de"), ("tenant", &7)]).unwrap();
        assert_eq!(path.as_str(), "/tenants/7/mail/de");
        assert_eq!(fill("/jobs/mail", &[]).unwrap().as_str(), "/jobs/mail");
        assert_eq!(pattern(MAIL).unwrap().to_string(), "/tenants/*/mail/*");
        assert!(pattern(MAIL).unwrap().matches(&path));
    }

    /// A tenant named `a/../b` must not reach another's queue.
    #[test]
    fn a_value_that_is_not_one_segment_is_refused() {
        for value in ["", "a/b", "..", "*", "a\nb"] {
            for template in ["/{tenant}", "/tenants/{tenant}/mail", "/tenants/{tenant}"] {
                let filled = fill(template, &[("tenant", &value)]);
                assert!(
                    matches!(filled, Err(ParameterError::NotOneSegment { .. })),
                    "{value:?} became {filled:?}"
                );
            }
        }
        let error = fill(MAIL, &[("tenant", &"a/b")]).unwrap_err().to_string();
        assert!(error.contains("{tenant}") && error.contains("a/b"), "{error}");
        let missing = fill(MAIL, &[("tenant", &1)]).unwrap_err();
        assert!(matches!(missing, ParameterError::Missing { name, .. } if name == "language"));
    }
}
