//! A price service: each price is a live value, and `/prices/quote` answers requests: a write to it
//! is a request, and its receipt is the response. Publisher and customer run in this program, which
//! ends by itself: `cargo run --package longshore-examples --example prices`.

use std::time::Duration;

use longshore::embedded::RunningReplica;
use longshore::prelude::*;
use longshore::values::{
    CallError, Event, Published, Subscriber, Value, ValuePublisher, ValuePublisherOptions, Write,
    WriteError, Writes,
};

/// How long a customer waits for a quote.
const QUOTE_TIMEOUT: Duration = Duration::from_secs(10);

/// The items with their prices in cents.
struct Catalogue {
    apple: Published,
    pear: Published,
}

impl Catalogue {
    fn open(publisher: &ValuePublisher) -> anyhow::Result<Catalogue> {
        let values = publisher.values();
        let apple = values.publish(Path::new("/prices/apple")?, 30u64)?;
        let pear = values.publish(Path::new("/prices/pear")?, 45u64)?;
        Ok(Catalogue { apple, pear })
    }

    fn price(&self, item: &str) -> Option<u64> {
        let value = match item {
            "apple" => self.apple.current(),
            "pear" => self.pear.current(),
            _ => return None,
        };
        if let Value::U64(cents) = value { Some(cents) } else { None }
    }

    /// The price of `quantity` items, or why there is no quote.
    fn quote(&self, question: &Value) -> Result<u64, String> {
        let Value::Map(question) = question else { return Err("a map, please".into()) };
        let item = question.get("item").and_then(Value::as_str).ok_or("which item?")?;
        let Some(&Value::U64(quantity)) = question.get("quantity") else {
            return Err("how many?".into());
        };
        let price = self.price(item).ok_or_else(|| format!("no {item} is sold here"))?;
        price.checked_mul(quantity).ok_or_else(|| "that is too many".into())
    }

    /// Answers requests one after the other, until the value is unpublished. A slow answer would
    /// use its own task: a [`Write`] may be answered at any time and from any task.
    async fn serve(self, mut questions: Writes) {
        while let Some(question) = questions.next().await {
            self.answer(question);
        }
    }

    fn answer(&self, question: Write) {
        match self.quote(question.value()) {
            Ok(cents) => question.answer(cents),
            Err(why) => question.refuse(&why),
        }
    }
}

/// The answers that a customer received.
#[derive(Debug, PartialEq)]
pub(crate) struct Quotes {
    /// The price of three apples in cents.
    pub(crate) three_apples: u64,
    /// Why there is no quote for a melon.
    pub(crate) melon: String,
    /// The prices of a pear, in order of arrival.
    pub(crate) pear: Vec<u64>,
}

/// Publishes prices, and lets a customer request quotes.
pub(crate) async fn shopping() -> anyhow::Result<Quotes> {
    let resolver = RunningReplica::local().await?;
    let cluster = resolver.cluster();

    let options = ValuePublisherOptions {
        cluster: Some(cluster.clone()),
        ..ValuePublisherOptions::default()
    };
    let publisher = ValuePublisher::open(options).await?;
    let catalogue = Catalogue::open(&publisher)?;
    let quote = publisher.values().publish(Path::new("/prices/quote")?, Value::Null)?;
    let questions = quote.writes().ok_or_else(|| anyhow::anyhow!("writes are already handled"))?;
    if let Some(registry) = publisher.write_client() {
        registry.flushed(1).await;
    }

    let customer = Subscriber::connect(cluster).await?;
    let mut pear = customer.durable_subscribe(Path::new("/prices/pear")?);
    let first = next_price(&mut pear).await?;
    catalogue.pear.set(40u64)?;
    let pear = vec![first, next_price(&mut pear).await?];

    tokio::spawn(catalogue.serve(questions));
    let three_apples = match ask(&customer, "apple", 3).await? {
        Value::U64(cents) => cents,
        other => anyhow::bail!("a price is a number, and this is {other:?}"),
    };
    let melon = match ask(&customer, "melon", 1).await {
        Err(CallError::Write(WriteError::Refused(refused))) => refused.reason,
        other => anyhow::bail!("melons are not sold: {other:?}"),
    };
    publisher.stop().await;
    resolver.stop().await?;
    Ok(Quotes { three_apples, melon, pear })
}

async fn ask(customer: &Subscriber, item: &str, quantity: u64) -> Result<Value, CallError> {
    let question = Value::map([("item", Value::from(item)), ("quantity", Value::from(quantity))]);
    let quote = Path::new("/prices/quote").expect("a path is written here");
    customer.call(quote, question, QUOTE_TIMEOUT).await
}

async fn next_price(followed: &mut longshore::values::DurableValue) -> anyhow::Result<u64> {
    loop {
        match followed.next().await {
            Some(Event::Update(Value::U64(cents))) => return Ok(cents),
            Some(Event::Update(other)) => anyhow::bail!("a price is a number, not {other:?}"),
            Some(Event::Dead(why)) => eprintln!("lost, retrying: {why}"),
            None => anyhow::bail!("its updates go elsewhere"),
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let quotes = shopping().await?;
    println!("three apples cost {} cents", quotes.three_apples);
    println!("no melons: {}", quotes.melon);
    println!("pears cost {:?} cents, one after the other", quotes.pear);
    Ok(())
}
