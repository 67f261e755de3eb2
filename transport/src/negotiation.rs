//! The accepting side's answer to a handshake. Pure.

use std::time::Duration;

use longshore_protocol::handshake::{VERSION_MAX, VERSION_MIN};
use longshore_protocol::limits::{FRAME_BYTES_MAX, HANDSHAKE_FRAME_BYTES_MAX};
use longshore_protocol::{Handshake, HandshakeRefusal, LinkTiming, Role, Welcome};

/// The shortest heartbeat interval that this side agrees to: no peer can force it to send more
/// often.
pub(crate) const HEARTBEAT_MIN: Duration = Duration::from_millis(10);
/// The shortest hang timeout that this side agrees to.
pub(crate) const HANG_MIN: Duration = Duration::from_millis(50);

/// What every dialler learns of the server.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    /// A publisher's id, or a resolver's incarnation.
    pub instance: [u8; 16],
    /// The publisher's epoch; 0 for a resolver.
    pub epoch: u64,
    /// The name that operators see.
    pub name: String,
    /// The roles that are served; the others are refused with `WrongRole`.
    pub serves: fn(Role) -> bool,
}

/// A refusal: a code for programs, a reason for people.
pub(crate) type Refused = (HandshakeRefusal, String);

/// What the accepting side demands and offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferedTerms<'a> {
    /// The name of its cluster.
    pub(crate) cluster: &'a str,
    /// The longest timing that it agrees to.
    pub(crate) timing: LinkTiming,
    /// The longest frame body that it accepts.
    pub(crate) frame_bytes_max: usize,
    pub(crate) features: u64,
}

/// The welcome for `handshake`, or the refusal.
pub(crate) fn answer(
    handshake: &Handshake,
    info: &ServerInfo,
    offered: OfferedTerms<'_>,
) -> Result<Welcome, Refused> {
    let OfferedTerms { cluster, timing, frame_bytes_max, features } = offered;
    let version = common_version(handshake, VERSION_MIN, VERSION_MAX)?;
    // Before the role: an address of another cluster is wrong for every role.
    if handshake.cluster != cluster {
        return Err((
            HandshakeRefusal::WrongCluster,
            wrong_cluster(&handshake.cluster, info, cluster),
        ));
    }
    if !(info.serves)(handshake.role) {
        let kind = if handshake.role.is_for_resolver() { "a resolver" } else { "a publisher" };
        let reason = format!(
            "`{}` does not serve the role `{}`; is this really the address of {kind}?",
            info.name, handshake.role,
        );
        return Err((HandshakeRefusal::WrongRole, reason));
    }
    if (handshake.frame_bytes_max as usize) < HANDSHAKE_FRAME_BYTES_MAX {
        let reason = format!(
            "frame_bytes_max is {}; the least is {HANDSHAKE_FRAME_BYTES_MAX}",
            handshake.frame_bytes_max
        );
        return Err((HandshakeRefusal::Malformed, reason));
    }
    Ok(Welcome {
        version,
        timing: clamped_timing(timing.agreed(handshake.timing)),
        frame_bytes_max: u32::try_from(frame_bytes_max.min(FRAME_BYTES_MAX)).unwrap_or(u32::MAX),
        instance: info.instance,
        epoch: info.epoch,
        name: info.name.clone(),
        features: handshake.features & features,
    })
}

fn wrong_cluster(named: &str, info: &ServerInfo, own: &str) -> String {
    let server = &info.name;
    match (named, own) {
        ("", own) => {
            format!("`{server}` belongs to the cluster `{own}`, and the client names no cluster")
        }
        (named, "") => format!(
            "the client names the cluster `{}`, and `{server}` belongs to one without a name",
            named.escape_default()
        ),
        (named, own) => format!(
            "`{server}` belongs to the cluster `{own}`, and the client to `{}`",
            named.escape_default()
        ),
    }
}

fn common_version(handshake: &Handshake, min: u16, max: u16) -> Result<u16, Refused> {
    let highest = handshake.version_max.min(max);
    if handshake.version_min > handshake.version_max || highest < handshake.version_min.max(min) {
        let reason = format!(
            "protocol versions {} to {} were offered, {min} to {max} are spoken here",
            handshake.version_min, handshake.version_max
        );
        return Err((HandshakeRefusal::Version, reason));
    }
    Ok(highest)
}

/// A timing under which two healthy sides keep a link: no shorter than the minimums, and at least
/// two heartbeats in a hang timeout.
pub(crate) fn clamped_timing(timing: LinkTiming) -> LinkTiming {
    let hang = timing.hang.max(HANG_MIN);
    LinkTiming { heartbeat: timing.heartbeat.min(hang / 2).max(HEARTBEAT_MIN), hang }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_protocol::{Credential, SessionId};

    fn publisher() -> ServerInfo {
        ServerInfo {
            instance: [7; 16],
            epoch: 3,
            name: "left".into(),
            serves: |role| !role.is_for_resolver(),
        }
    }

    const OFFERED: OfferedTerms<'_> = OfferedTerms {
        cluster: "",
        timing: LinkTiming::WORK,
        frame_bytes_max: 5_000,
        features: 0b011,
    };

    fn handshake() -> Handshake {
        Handshake::new(Role::Worker, SessionId([1; 16]), "w", LinkTiming::WORK)
    }

    fn refusal_of(handshake: &Handshake) -> HandshakeRefusal {
        answer(handshake, &publisher(), OFFERED).unwrap_err().0
    }

    #[test]
    fn the_highest_common_version_is_spoken() {
        let offer = |min, max| Handshake { version_min: min, version_max: max, ..handshake() };
        assert_eq!(common_version(&offer(2, 9), 1, 5).unwrap(), 5);
        assert_eq!(common_version(&offer(2, 4), 1, 5).unwrap(), 4);
        assert_eq!(common_version(&offer(5, 9), 1, 5).unwrap(), 5);
    }

    #[test]
    fn no_common_version_is_refused_and_names_both_ranges() {
        let offer = |min, max| Handshake { version_min: min, version_max: max, ..handshake() };
        let (code, reason) = common_version(&offer(6, 9), 2, 5).unwrap_err();
        assert_eq!(code, HandshakeRefusal::Version);
        assert!(reason.contains("6 to 9") && reason.contains("2 to 5"), "{reason}");
        assert!(common_version(&offer(1, 1), 2, 5).is_err());
        assert!(common_version(&offer(4, 3), 2, 5).is_err(), "an upside-down range is none");
    }

    #[test]
    fn a_role_that_is_not_served_is_refused() {
        let lost = Handshake { role: Role::ResolverReader, ..handshake() };
        assert_eq!(refusal_of(&lost), HandshakeRefusal::WrongRole);
    }

    #[test]
    fn a_client_of_another_cluster_is_refused_with_both_names() {
        for (named, own, both) in [
            ("", "prod", ["`prod`", "no cluster"]),
            ("test", "", ["`test`", "without a name"]),
            ("test", "prod", ["`test`", "`prod`"]),
            ("Prod", "prod", ["`Prod`", "`prod`"]),
            ("a\u{7}", "prod", ["`a\\u{7}`", "`prod`"]),
        ] {
            let asked = Handshake { cluster: named.into(), ..handshake() };
            let (code, reason) =
                answer(&asked, &publisher(), OfferedTerms { cluster: own, ..OFFERED }).unwrap_err();
            assert_eq!(code, HandshakeRefusal::WrongCluster);
            assert!(both.iter().all(|name| reason.contains(name)), "{reason}");
            let asked = Handshake { cluster: own.into(), ..handshake() };
            answer(&asked, &publisher(), OfferedTerms { cluster: own, ..OFFERED }).unwrap();
        }
    }

    #[test]
    fn a_frame_limit_below_that_of_the_handshake_is_refused() {
        let tiny =
            Handshake { frame_bytes_max: HANDSHAKE_FRAME_BYTES_MAX as u32 - 1, ..handshake() };
        assert_eq!(refusal_of(&tiny), HandshakeRefusal::Malformed);
    }

    #[test]
    fn the_welcome_has_the_identity_and_the_shorter_timing() {
        let (short, long) = (Duration::from_millis(400), Duration::from_millis(900));
        let asked =
            Handshake { timing: LinkTiming { heartbeat: short, hang: long }, ..handshake() };
        let welcome = answer(&asked, &publisher(), OFFERED).unwrap();
        assert_eq!((welcome.instance, welcome.epoch, welcome.name.as_str()), ([7; 16], 3, "left"));
        assert_eq!(welcome.timing, LinkTiming { heartbeat: short, hang: long });
        assert_eq!(welcome.frame_bytes_max, 5_000);
    }

    #[test]
    fn the_welcome_has_the_common_features_and_ignores_unknown_ones() {
        let asked = Handshake { features: 1 << 63 | 0b110, ..handshake() };
        let welcome = answer(&asked, &publisher(), OFFERED).unwrap();
        assert_eq!(welcome.features, 0b010);
    }

    #[test]
    fn a_credential_is_ignored() {
        let asked = Handshake { credential: Credential(b"token".as_slice().into()), ..handshake() };
        assert!(answer(&asked, &publisher(), OFFERED).is_ok());
        assert!(!format!("{asked:?}").contains("token"), "and no log contains it");
    }

    #[test]
    fn two_heartbeats_always_fit_into_the_hang_timeout() {
        let millis = Duration::from_millis;
        let rare = LinkTiming { heartbeat: millis(2_000), hang: millis(1_000) };
        assert_eq!(
            clamped_timing(rare),
            LinkTiming { heartbeat: millis(500), hang: millis(1_000) }
        );
        let frantic = LinkTiming { heartbeat: millis(1), hang: millis(1) };
        assert_eq!(
            clamped_timing(frantic),
            LinkTiming { heartbeat: HEARTBEAT_MIN, hang: HANG_MIN }
        );
    }
}
