//! Dialling a publisher that the resolver told of.

use std::sync::Arc;

use longshore_protocol::{Hello, PublisherId, PublisherInfo};
use longshore_transport::{Link, LinkOptions, dial_address};

/// Dials every address of it in turn, until it is the publisher that answers. Fails with the reason of each.
pub(crate) async fn dial_publisher(
    info: &PublisherInfo,
    hello: &Hello,
    options: &LinkOptions,
) -> Result<Link, Arc<str>> {
    let mut reasons: Vec<String> = Vec::new();
    for address in &info.addresses {
        let link = match dial_address(address, hello, options).await {
            Ok(link) => link,
            Err(error) => {
                reasons.push(format!("{address}: {error}"));
                continue;
            }
        };
        let found = link.welcome().map(|welcome| PublisherId(welcome.instance));
        if let Some(found) = found.filter(|found| *found != info.id) {
            reasons.push(format!("{address} is publisher {found}, not {}", info.id));
            continue;
        }
        return Ok(link);
    }
    Err(reasons.join("; ").into())
}
