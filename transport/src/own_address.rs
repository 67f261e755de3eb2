//! Which addresses belong to this machine.

use std::net::{IpAddr, UdpSocket};

/// True if something that listens on this machine can be reached at `ip`: a loopback address, or
/// one of its interfaces. It binds a socket there that sends nothing.
pub fn is_own_address(ip: IpAddr) -> bool {
    !ip.is_unspecified() && (ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_a_documentation_address_is_not() {
        assert!(is_own_address([127, 0, 0, 1].into()));
        assert!(is_own_address([127, 0, 0, 9].into()));
        assert!(!is_own_address([192, 0, 2, 1].into()));
        assert!(!is_own_address([0, 0, 0, 0].into()));
    }
}
