//! How links begin.

use std::time::Duration;

use longshore_protocol::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::text;

pub(crate) fn timing() -> impl Strategy<Value = LinkTiming> {
    (10u32..u32::MAX).prop_flat_map(|beat| (Just(beat), beat + 1..=u32::MAX)).prop_map(
        |(beat, hang)| LinkTiming {
            heartbeat: Duration::from_millis(u64::from(beat)),
            hang: Duration::from_millis(u64::from(hang)),
        },
    )
}

pub(crate) fn hello() -> impl Strategy<Value = Hello> {
    let extras = (any::<u64>(), vec(any::<u8>(), 0..=limits::CREDENTIAL_BYTES_MAX));
    let versions = any::<(u16, u16)>().prop_map(|(a, b)| (a.min(b), a.max(b)));
    (versions, select(Role::ALL), any::<[u8; 16]>(), text(), timing(), 4_096..=u32::MAX, extras)
        .prop_map(
            |((version_min, version_max), role, session, name, timing, frame_bytes_max, extras)| {
                Hello {
                    version_min,
                    version_max,
                    role,
                    session: SessionId(session),
                    name,
                    timing,
                    frame_bytes_max,
                    features: extras.0,
                    credential: Credential(extras.1.into()),
                }
            },
        )
}

pub(crate) fn hello_answer() -> impl Strategy<Value = HelloAnswer> {
    let welcome =
        (any::<u16>(), timing(), 4_096..=u32::MAX, any::<[u8; 16]>(), any::<[u64; 2]>(), text());
    prop_oneof![
        welcome.prop_map(
            |(version, timing, frame_bytes_max, instance, [epoch, features], name)| {
                HelloAnswer::Welcome(Welcome {
                    version,
                    timing,
                    frame_bytes_max,
                    instance,
                    epoch,
                    name,
                    features,
                })
            }
        ),
        (select(HelloRefusal::ALL), text())
            .prop_map(|(code, reason)| HelloAnswer::Refused { code, reason }),
    ]
}
