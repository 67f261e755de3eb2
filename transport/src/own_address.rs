//! Which addresses are this machine's.

use std::net::{IpAddr, UdpSocket};

/// True if something that listens on this machine can be reached at `ip`: a loopback address, or
/// one of its interfaces. The system is asked, by a socket that sends nothing.
pub fn is_own_address(ip: IpAddr) -> bool {
    !ip.is_unspecified() && (ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_ones_own_and_an_address_for_documents_is_not() {
        assert!(is_own_address([127, 0, 0, 1].into()));
        assert!(is_own_address([127, 0, 0, 9].into()));
        assert!(!is_own_address([192, 0, 2, 1].into()));
        assert!(!is_own_address([0, 0, 0, 0].into()));
    }
}
