//! Trace context: the producer's trace of which a job is a part, in the W3C format, stored in two
//! of the job's headers. Longshore neither samples nor exports traces: it forwards the context, so
//! that a worker's tracing can continue the producer's.

use std::fmt;
use std::sync::Arc;

use crate::job::{Headers, NewJob};
use crate::limits::{HEADERS_BYTES_MAX, HEADERS_MAX};

/// The header with the ids of the trace and of the job's parent span.
pub const TRACEPARENT: &str = "traceparent";
/// The header with data of tracing systems.
pub const TRACESTATE: &str = "tracestate";
/// The longest `tracestate` that is forwarded, in bytes: the minimum that the standard requires.
pub const TRACESTATE_BYTES_MAX: usize = 512;
/// Most entries of a `tracestate`.
pub const TRACESTATE_ENTRIES_MAX: usize = 32;

/// Bytes of a `traceparent` of version 00.
const TRACEPARENT_BYTES: usize = 55;
const SAMPLED: u8 = 1;

/// The trace of which a job is a part. Cheap to clone.
///
/// ```
/// # mod longshore { pub use longshore_protocol::*; }
/// use longshore::{JobId, NewJob, Path, TraceContext};
///
/// let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let trace = TraceContext::parse(given, None).expect("it is well formed");
/// let job = NewJob::new(Path::new("/jobs/a")?, JobId([7; 16]), "payload").traced(&trace);
/// assert_eq!(TraceContext::of(&job.headers), Some(trace));
/// assert_eq!(job.headers.get("traceparent"), Some(given));
/// # Ok::<(), longshore_protocol::PathError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceContext {
    trace_id: [u8; 16],
    parent_id: [u8; 8],
    sampled: bool,
    state: Option<Arc<str>>,
}

impl TraceContext {
    /// The trace `trace_id` with the parent span `parent_id`. `None` if either is all zeros, which
    /// is not a valid id.
    pub fn new(trace_id: [u8; 16], parent_id: [u8; 8], sampled: bool) -> Option<TraceContext> {
        let names = trace_id != [0; 16] && parent_id != [0; 8];
        names.then_some(TraceContext { trace_id, parent_id, sampled, state: None })
    }

    /// Parses a `traceparent` and its `tracestate`. Returns `None` if the first is malformed;
    /// ignores the second if it is malformed or over its limits. Later versions than 00 are parsed
    /// up to the fields of 00.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<TraceContext> {
        let text = traceparent.as_bytes();
        let (version, trace_id, parent_id, flags) =
            (text.get(..2)?, text.get(3..35)?, text.get(36..52)?, text.get(53..55)?);
        if [2, 35, 52].iter().any(|&at| text.get(at) != Some(&b'-')) {
            return None;
        }
        let [version] = hex(version)?;
        let [flags] = hex(flags)?;
        let ends_well = match version {
            0 => text.len() == TRACEPARENT_BYTES,
            0xff => false,
            _ => text.get(TRACEPARENT_BYTES).is_none_or(|&next| next == b'-'),
        };
        let sampled = flags & SAMPLED != 0;
        let read = TraceContext::new(hex(trace_id)?, hex(parent_id)?, sampled)?;
        ends_well.then(|| read.with_state(tracestate))
    }

    /// Returns the context in a job's headers, if it is present and valid.
    pub fn of(headers: &Headers) -> Option<TraceContext> {
        TraceContext::parse(headers.get(TRACEPARENT)?, headers.get(TRACESTATE))
    }

    /// Replaces the `tracestate`; a malformed one, or one over its limits, is left out.
    pub fn with_state(self, tracestate: Option<&str>) -> TraceContext {
        let state = tracestate.filter(|state| is_state(state)).map(Arc::from);
        TraceContext { state, ..self }
    }

    /// The trace's id, in hex.
    pub fn trace_id(&self) -> impl fmt::Display {
        Hex(self.trace_id)
    }

    /// The id of the job's parent span, in hex.
    pub fn parent_id(&self) -> impl fmt::Display {
        Hex(self.parent_id)
    }

    /// Both ids as bytes.
    pub fn ids(&self) -> ([u8; 16], [u8; 8]) {
        (self.trace_id, self.parent_id)
    }

    /// Whether the producer records the trace.
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }

    /// The `tracestate`.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }
}

/// Formats the `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace_id(), self.parent_id(), u8::from(self.sampled))
    }
}

impl NewJob {
    /// Makes the job a part of a trace and replaces the context in its headers. If the headers have
    /// no room, the context is left out, the `tracestate` first: a trace must not cause the refusal
    /// of a job.
    pub fn traced(mut self, trace: &TraceContext) -> NewJob {
        self.headers.0.retain(|(name, _)| name != TRACEPARENT && name != TRACESTATE);
        let state = trace.state().map(|state| (TRACESTATE, state.to_owned()));
        for (name, value) in [(TRACEPARENT, trace.to_string())].into_iter().chain(state) {
            let bytes = self.headers.bytes() + name.len() + value.len();
            if bytes <= HEADERS_BYTES_MAX && self.headers.0.len() < HEADERS_MAX {
                self.headers.0.push((name.to_owned(), value));
            }
        }
        self
    }
}

/// Lower case, as the standard requires.
struct Hex<const N: usize>([u8; N]);

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    (text.len() == 2 * N).then_some(bytes)
}

fn is_state(state: &str) -> bool {
    let is_entry = |entry: &str| {
        let entry = entry.trim_matches([' ', '\t']);
        entry.is_empty() || entry.split_once('=').is_some_and(|(key, _)| !key.is_empty())
    };
    let is_printable = |byte: u8| matches!(byte, b' '..=b'~' | b'\t');
    (1..=TRACESTATE_BYTES_MAX).contains(&state.len())
        && state.bytes().all(is_printable)
        && state.split(',').count() <= TRACESTATE_ENTRIES_MAX
        && state.split(',').all(is_entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JobId, Path};

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn job(headers: Vec<(String, String)>) -> NewJob {
        let path = Path::new("/jobs/a").unwrap();
        let job = NewJob::new(path, JobId([7; 16]), "payload");
        NewJob { headers: Headers(headers), ..job }
    }

    #[test]
    fn well_formed_contexts_round_trip() {
        for flags in ["00", "01"] {
            let given = format!("{}{flags}", &GIVEN[..53]);
            let read = TraceContext::parse(&given, Some("a=1,b@c=2")).unwrap();
            assert_eq!(read.to_string(), given);
            assert_eq!(read.state(), Some("a=1,b@c=2"));
            assert_eq!(read.is_sampled(), flags == "01");
        }
        let read = TraceContext::parse(GIVEN, None).unwrap();
        assert_eq!(read.trace_id().to_string(), &GIVEN[3..35]);
        assert_eq!(read.parent_id().to_string(), &GIVEN[36..52]);
        let (trace_id, parent_id) = read.ids();
        assert_eq!(TraceContext::new(trace_id, parent_id, true), Some(read));
    }

    #[test]
    fn later_versions_are_parsed_up_to_the_known_fields() {
        for given in [
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        ] {
            assert_eq!(TraceContext::parse(given, None).unwrap().to_string(), GIVEN, "{given}");
        }
    }

    #[test]
    fn malformed_contexts_are_ignored() {
        let long = format!("{GIVEN}-more");
        for given in [
            "",
            "00",
            &GIVEN[..54],
            &long,
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            "00-é4bf92f3577b34da6a3ce929d0e0e47-00f067aa0ba902b7-01x",
        ] {
            assert_eq!(TraceContext::parse(given, None), None, "{given}");
            let headers = vec![(TRACEPARENT.to_owned(), given.to_owned())];
            assert_eq!(TraceContext::of(&Headers(headers)), None, "{given}");
        }
        assert_eq!(TraceContext::of(&Headers::default()), None);
    }

    #[test]
    fn malformed_or_oversized_tracestate_is_ignored() {
        let state = |state: &str| {
            let read = TraceContext::parse(GIVEN, Some(state)).unwrap();
            read.state().is_some()
        };
        let longest = format!("k={}", "v".repeat(TRACESTATE_BYTES_MAX - 2));
        let most = vec!["k=v"; TRACESTATE_ENTRIES_MAX].join(",");
        assert!(state("a=1 , b=2,") && state(&longest) && state(&most));
        for bad in ["", "a", "=1", "a=1\n", "a=é", &(longest + "v"), &(most + ",k=v")] {
            assert!(!state(bad), "{bad:?}");
        }
    }

    #[test]
    fn the_last_trace_context_replaces_earlier_ones() {
        let trace = TraceContext::parse(GIVEN, Some("a=1")).unwrap();
        let other = TraceContext::new([1; 16], [2; 8], false).unwrap();
        let own = vec![("own".to_owned(), "x".to_owned())];
        let job = job(own).traced(&trace).traced(&other);
        assert_eq!(TraceContext::of(&job.headers), Some(other));
        assert_eq!(job.headers.get(TRACESTATE), None, "it belongs to the other trace");
        assert_eq!((job.headers.get("own"), job.headers.0.len()), (Some("x"), 2));
    }

    #[test]
    fn trace_headers_never_exceed_the_header_limits() {
        let trace = TraceContext::parse(GIVEN, Some("a=1")).unwrap();
        let filled = |bytes: usize| job(vec![("k".to_owned(), "v".repeat(bytes - 1))]);
        let parent = TRACEPARENT.len() + GIVEN.len();
        let tight = filled(HEADERS_BYTES_MAX - parent).traced(&trace);
        assert_eq!(tight.headers.bytes(), HEADERS_BYTES_MAX);
        assert_eq!(tight.headers.get(TRACEPARENT), Some(GIVEN));
        assert_eq!(tight.headers.get(TRACESTATE), None);
        let full = filled(HEADERS_BYTES_MAX - parent + 1).traced(&trace);
        assert_eq!(TraceContext::of(&full.headers), None);
        let many = job(vec![(String::new(), String::new()); HEADERS_MAX]).traced(&trace);
        assert_eq!(many.headers.0.len(), HEADERS_MAX);
    }
}
