//! What is said on a value link.

use bytes::Bytes;
use longshore_protocol::Value;
use longshore_protocol::messages::values::*;

use super::path;

pub(super) fn to_values() -> Vec<(&'static str, &'static str, ToValuePublisher)> {
    let subscribe =
        |subscription, text, policy| SubscribeValue { subscription, path: path(text), policy };
    vec![
        (
            "subscribe",
            "SubscribeValues: /a/load as 0, conflated; /a/log as 1, dropping; /a/x as 300",
            {
                ToValuePublisher::Subscribe(vec![
                    subscribe(0, "/a/load", Policy::Conflate),
                    subscribe(1, "/a/log", Policy::DropOldest),
                    subscribe(300, "/a/x", Policy::Disconnect),
                ])
            },
        ),
        ("unsubscribe", "UnsubscribeValues: 0 and 300", {
            ToValuePublisher::Unsubscribe(vec![0, 300])
        }),
        ("write", "WriteValue 9 to subscription 1: 42, with a receipt within 1500 ms", {
            ToValuePublisher::Write(WriteValue {
                request: 9,
                subscription: 1,
                receipt: true,
                deadline_ms: 1_500,
                value: 42u64.into(),
            })
        }),
    ]
}

pub(super) fn from_values() -> Vec<(&'static str, &'static str, FromValuePublisher)> {
    let written = |outcome| FromValuePublisher::Written(Written { request: 9, outcome });
    vec![
        ("subscribed", "Subscribed: 0 is number 7, now true; 300 is number 200, now 'on'", {
            FromValuePublisher::Subscribed(vec![
                Subscribed { subscription: 0, number: 7, value: true.into() },
                Subscribed { subscription: 300, number: 200, value: "on".into() },
            ])
        }),
        ("refused", "ValueRefused: 1, NotHere", {
            FromValuePublisher::Refused {
                subscription: 1,
                code: ValueRefusal::NotHere,
                reason: "no /a/log here".into(),
            }
        }),
        ("updates", "Updates: 7 is 1, 200 is -1, 7 is 2", {
            let values = [(7, 1u64.into()), (200, (-1i64).into()), (7, 2u64.into())];
            FromValuePublisher::Updates(values.iter().map(|(n, value)| (*n, value)).collect())
        }),
        ("updates-kinds", "Updates: number 0 to 9, a value of every kind", {
            let values = kinds();
            FromValuePublisher::Updates((0..).zip(&values).collect())
        }),
        ("ended", "Ended: 0 unpublished, 300 unsubscribed", {
            let ended = |subscription, end| SubscriptionEnded { subscription, end };
            FromValuePublisher::Ended(vec![
                ended(0, SubscriptionEnd::Unpublished),
                ended(300, SubscriptionEnd::Unsubscribed),
            ])
        }),
        ("written", "ValueWritten 9: the program answered null", written(Ok(Value::Null))),
        ("written-refused", "ValueWritten 9: refused, Late", {
            let (code, reason) = (WriteRefusal::Late, "after 1500 ms".to_owned());
            written(Err(WriteRefused { code, reason }))
        }),
        ("goodbye", "ValuesGoodbye: too slow", {
            FromValuePublisher::Goodbye { reason: "too slow".into() }
        }),
    ]
}

fn kinds() -> Vec<Value> {
    vec![
        Value::Null,
        false.into(),
        true.into(),
        (-2i64).into(),
        3u64.into(),
        1.5f64.into(),
        "\u{fc}n".into(),
        Bytes::from_static(b"\xff\0").into(),
        Value::list([Value::Null, Value::list([1u64])]),
        Value::map([("b", Value::from(1u64)), ("a", Value::Null)]),
    ]
}
