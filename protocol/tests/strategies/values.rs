//! Values, and all that is said on a value link.

use longshore_protocol::messages::values::*;
use longshore_protocol::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{bytes, path, text};

pub(crate) fn value() -> impl Strategy<Value = Value> {
    let plain = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::I64),
        any::<u64>().prop_map(Value::U64),
        any::<u64>().prop_map(|bits| Value::F64(f64::from_bits(bits))),
        text().prop_map(Value::from),
        bytes().prop_map(Value::Bytes),
    ];
    plain.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            vec((text(), inner), 0..6).prop_map(Value::map),
        ]
    })
}

pub(crate) fn to_values() -> impl Strategy<Value = ToValuePublisher> {
    let subscribe = (any::<u32>(), path(), select(Policy::ALL))
        .prop_map(|(subscription, path, policy)| SubscribeValue { subscription, path, policy });
    let write = (any::<(u32, u32, bool, u32)>(), value()).prop_map(
        |((request, subscription, receipt, deadline_ms), value)| WriteValue {
            request,
            subscription,
            receipt,
            deadline_ms,
            value,
        },
    );
    prop_oneof![
        vec(subscribe, 0..8).prop_map(ToValuePublisher::Subscribe),
        vec(any::<u32>(), 0..8).prop_map(ToValuePublisher::Unsubscribe),
        write.prop_map(ToValuePublisher::Write),
    ]
}

pub(crate) fn from_values() -> impl Strategy<Value = FromValuePublisher> {
    let subscribed = (any::<(u32, u32)>(), value())
        .prop_map(|((subscription, number), value)| Subscribed { subscription, number, value });
    let refused = (any::<u32>(), select(ValueRefusal::ALL), text()).prop_map(
        |(subscription, code, reason)| FromValuePublisher::Refused { subscription, code, reason },
    );
    let ended = (any::<u32>(), select(SubscriptionEnd::ALL))
        .prop_map(|(subscription, end)| SubscriptionEnded { subscription, end });
    let refusal = (select(WriteRefusal::ALL), text())
        .prop_map(|(code, reason)| Err(WriteRefused { code, reason }));
    let outcome = prop_oneof![value().prop_map(Ok), refusal];
    prop_oneof![
        vec(subscribed, 0..6).prop_map(FromValuePublisher::Subscribed),
        refused,
        vec((any::<u32>(), value()), 0..8).prop_map(|updates| {
            let updates = updates.iter().map(|(number, value)| (*number, value));
            FromValuePublisher::Updates(updates.collect())
        }),
        vec(ended, 0..8).prop_map(FromValuePublisher::Ended),
        (any::<u32>(), outcome).prop_map(|(request, outcome)| {
            FromValuePublisher::Written(Written { request, outcome })
        }),
        text().prop_map(|reason| FromValuePublisher::Goodbye { reason }),
    ]
}
