//! What an accepting side answers to a hello. Pure.

use std::time::Duration;

use longshore_protocol::hello::{VERSION_MAX, VERSION_MIN};
use longshore_protocol::limits::{FRAME_BYTES_MAX, HELLO_FRAME_BYTES_MAX};
use longshore_protocol::{Hello, HelloRefusal, LinkTiming, Role, Welcome};

/// The shortest heartbeat interval that is agreed to: nobody is made to send more often.
pub(crate) const HEARTBEAT_MIN: Duration = Duration::from_millis(10);
/// The shortest hang timeout that is agreed to.
pub(crate) const HANG_MIN: Duration = Duration::from_millis(50);

/// Who listens: what every dialler is told.
#[derive(Clone, Debug)]
pub struct Identity {
    /// A publisher's id, or a resolver's incarnation.
    pub instance: [u8; 16],
    /// The publisher's epoch; 0 for a resolver.
    pub epoch: u64,
    /// What operators see.
    pub name: String,
    /// Which roles are served; the others are refused with `WrongRole`.
    pub serves: fn(Role) -> bool,
}

/// A refusal: for programs, and for people.
pub(crate) type Refused = (HelloRefusal, String);

/// The welcome for `hello`, or why there is none.
pub(crate) fn answer(
    hello: &Hello,
    identity: &Identity,
    timing: LinkTiming,
    frame_bytes_max: usize,
) -> Result<Welcome, Refused> {
    let version = common_version(hello, VERSION_MIN, VERSION_MAX)?;
    if !(identity.serves)(hello.role) {
        let kind = if hello.role.is_for_resolver() { "a resolver" } else { "a publisher" };
        let reason = format!(
            "`{}` does not serve the role `{}`; is this really the address of {kind}?",
            identity.name, hello.role,
        );
        return Err((HelloRefusal::WrongRole, reason));
    }
    if (hello.frame_bytes_max as usize) < HELLO_FRAME_BYTES_MAX {
        let reason = format!(
            "frame_bytes_max is {}; the least is {HELLO_FRAME_BYTES_MAX}",
            hello.frame_bytes_max
        );
        return Err((HelloRefusal::Malformed, reason));
    }
    Ok(Welcome {
        version,
        timing: workable(timing.agreed(hello.timing)),
        frame_bytes_max: u32::try_from(frame_bytes_max.min(FRAME_BYTES_MAX)).unwrap_or(u32::MAX),
        instance: identity.instance,
        epoch: identity.epoch,
        name: identity.name.clone(),
    })
}

fn common_version(hello: &Hello, min: u16, max: u16) -> Result<u16, Refused> {
    let highest = hello.version_max.min(max);
    if hello.version_min > hello.version_max || highest < hello.version_min.max(min) {
        let reason = format!(
            "protocol versions {} to {} were offered, {min} to {max} are spoken here",
            hello.version_min, hello.version_max
        );
        return Err((HelloRefusal::Version, reason));
    }
    Ok(highest)
}

/// A timing under which two healthy sides keep a link: neither shorter than the floors, nor a heartbeat so rare that the hang
/// timeout could strike between two of them.
fn workable(timing: LinkTiming) -> LinkTiming {
    let hang = timing.hang.max(HANG_MIN);
    LinkTiming { heartbeat: timing.heartbeat.min(hang / 2).max(HEARTBEAT_MIN), hang }
}
