//! Staging of a link's updates: one buffer per channel, filled while a frame is read, and delivered
//! once at the frame's end.

use std::sync::Arc;

use hashbrown::HashMap;
use longshore_protocol::Value;

use super::event::{Event, KeyedEvent, SubscriptionKey};
use super::updates::UpdateChannel;

/// The staging buffers of one link.
#[derive(Debug, Default)]
pub(crate) struct Sinks {
    sinks: Vec<Sink>,
    /// The index of each buffer, by the channel's id.
    numbers: HashMap<u64, u32>,
    free: Vec<u32>,
    /// Buffers that are not empty.
    staged_sinks: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) channel: Arc<UpdateChannel>,
    /// Subscriptions that use this channel.
    users: usize,
    pub(crate) staged: Vec<KeyedEvent>,
    /// The table slot of each staged update.
    pub(crate) slots: Vec<u32>,
    /// A staged update references the frame's memory.
    pub(crate) holds_frame: bool,
}

impl Sinks {
    /// Adds a user to the channel, and returns the channel's index.
    pub(crate) fn add_user(&mut self, channel: &Arc<UpdateChannel>) -> u32 {
        let (sinks, free) = (&mut self.sinks, &mut self.free);
        let number = *self.numbers.entry(channel.id).or_insert_with(|| {
            let sink = Sink {
                channel: channel.clone(),
                users: 0,
                staged: Vec::new(),
                slots: Vec::new(),
                holds_frame: false,
            };
            match free.pop() {
                Some(number) => {
                    sinks[number as usize] = sink;
                    number
                }
                None => {
                    sinks.push(sink);
                    (sinks.len() - 1) as u32
                }
            }
        });
        self.sinks[number as usize].users += 1;
        number
    }

    /// Removes a user. The caller delivers what the user staged first.
    pub(crate) fn remove_user(&mut self, number: u32) {
        let sink = &mut self.sinks[number as usize];
        sink.users -= 1;
        if sink.users == 0 {
            self.numbers.remove(&sink.channel.id);
            self.free.push(number);
        }
    }

    /// Stages one update. Numbers are constructed in place: a move of the whole `Value` right after
    /// writing its parts makes an update cost half as much again.
    #[inline]
    pub(crate) fn stage(&mut self, number: u32, slot: u32, key: SubscriptionKey, value: &Value) {
        let sink = &mut self.sinks[number as usize];
        if sink.staged.is_empty() {
            self.staged_sinks.push(number);
        }
        sink.slots.push(slot);
        match *value {
            Value::U64(v) => sink.staged.push((key, Event::Update(Value::U64(v)))),
            Value::I64(v) => sink.staged.push((key, Event::Update(Value::I64(v)))),
            Value::F64(v) => sink.staged.push((key, Event::Update(Value::F64(v)))),
            ref value => {
                sink.holds_frame |= !matches!(value, Value::Null | Value::Bool(_));
                sink.staged.push((key, Event::Update(value.clone())));
            }
        }
    }

    /// The next buffer that is not empty; the caller empties it.
    pub(crate) fn next_staged(&mut self) -> Option<&mut Sink> {
        let number = self.staged_sinks.pop()?;
        self.sinks.get_mut(number as usize)
    }
}
