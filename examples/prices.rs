//! A price service: each price is a live value below `/prices`, and `/quote` is a procedure.
//! Publisher and customer run in this program, which ends by itself:
//! `cargo run --package longshore-examples --example prices`.

use std::time::Duration;

use longshore::Path;
use longshore::embedded::RunningReplica;
use longshore::values::{CallError, Event, Subscriber, ValuePublisher};

/// The prices of a pear in order of arrival, that of three apples, and why melons have none.
pub(crate) async fn shopping() -> anyhow::Result<(Vec<u64>, u64, String)> {
    let resolver = RunningReplica::local().await?;
    let cluster = resolver.cluster();
    let publisher = ValuePublisher::connect(cluster.clone()).await?;
    let values = publisher.values();
    let pear = values.publish(Path::new("/prices/pear")?, 45u64)?;
    let quote = async |(item, quantity): (String, u64)| match item.as_str() {
        "apple" => Ok(quantity * 30),
        _ => Err(format!("no {item} is sold here")),
    };
    let _quote = values.procedure(Path::new("/quote")?, quote)?;
    publisher.ready().await;

    let customer = Subscriber::connect(cluster);
    let mut followed = customer.durable_subscribe(Path::new("/prices/pear")?);
    let mut pears = Vec::new();
    while pears.len() < 2 {
        match followed.next().await {
            Some(Event::Update(cents)) => pears.push(cents.try_into()?),
            Some(Event::Dead(why)) => eprintln!("lost, retrying: {why}"),
            None => break,
        }
        pear.set_changed(40u64)?;
    }
    let (quote, within) = (Path::new("/quote")?, Duration::from_secs(10));
    let three_apples = customer.call(quote.clone(), &("apple", 3), within).await?;
    let melon = match customer.call::<u64>(quote, &("melon", 1), within).await {
        Err(CallError::Refused(why)) => why,
        other => anyhow::bail!("melons are not sold: {other:?}"),
    };
    publisher.stop().await;
    resolver.stop().await?;
    Ok((pears, three_apples, melon))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("{:?}", shopping().await?);
    Ok(())
}
