//! The hash slots of a cluster: which one a key has, and which node serves it.

use std::collections::{BTreeSet, HashMap};

use redis::Value;

use crate::engines::shared::dial::Address;

/// How many hash slots a cluster has.
pub(in crate::engines) const HASH_SLOTS: u16 = 16_384;

/// Returns the hash slot of a key: of its tag, if it has one that is not empty.
pub(in crate::engines) fn hash_slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % HASH_SLOTS
}

/// CRC-16/XMODEM, as the cluster's specification names it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let crc = crc ^ (u16::from(*byte) << 8);
        (0..8).fold(crc, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 })
    })
}

/// Which node serves which hash slots, as far as is known.
#[derive(Debug, Default)]
pub(in crate::engines) struct SlotMap {
    ranges: Vec<(u16, u16, Address)>,
    /// Told one by one since the ranges were read.
    moved: HashMap<u16, Address>,
}

impl SlotMap {
    /// Reads the reply to `CLUSTER SLOTS` of the node at `teller`.
    pub(in crate::engines) fn read(answer: &Value, teller: &Address) -> Option<SlotMap> {
        let Value::Array(ranges) = answer else { return None };
        let ranges = ranges.iter().map(|range| read_range(range, teller)).collect::<Option<_>>()?;
        Some(SlotMap { ranges, moved: HashMap::new() })
    }

    pub(in crate::engines) fn owner(&self, slot: u16) -> Option<&Address> {
        let range = || self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        self.moved.get(&slot).or_else(|| range().map(|(_, _, owner)| owner))
    }

    pub(in crate::engines) fn set(&mut self, slot: u16, owner: Address) {
        self.moved.insert(slot, owner);
    }

    /// Returns every node that serves a hash slot.
    pub(in crate::engines) fn owners(&self) -> BTreeSet<Address> {
        self.ranges.iter().map(|(_, _, owner)| owner).chain(self.moved.values()).cloned().collect()
    }
}

/// `[first, last, [host, port, …], replicas…]`
fn read_range(range: &Value, teller: &Address) -> Option<(u16, u16, Address)> {
    let Value::Array(range) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &range[..] else { return None };
    let [host, Value::Int(port), ..] = &master[..] else { return None };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        // A node that does not know its own name: as we reached it.
        _ => "",
    };
    let owner = address(host, u16::try_from(*port).ok()?, teller);
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, owner))
}

/// Reads `host:port` as it stands in a redirection of the node at `teller`.
pub(in crate::engines) fn redirected(place: &str, teller: &Address) -> Option<Address> {
    let (host, port) = place.rsplit_once(':')?;
    Some(address(host.trim_matches(['[', ']']), port.parse().ok()?, teller))
}

fn address(host: &str, port: u16, teller: &Address) -> Address {
    match host {
        "" | "?" => Address { host: teller.host.clone(), port },
        host => Address::new(host, port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_slots_that_the_specification_gives_them() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(hash_slot("foo"), 12_182);
        assert_eq!(hash_slot("{foo}:q"), hash_slot("foo"));
        assert_eq!(hash_slot("a{foo}b{bar}"), hash_slot("foo"));
        assert_ne!(hash_slot("{}foo"), hash_slot("foo"));
    }

    #[test]
    fn what_was_told_last_counts() {
        let teller = Address::new("10.0.0.9", 7000);
        let node = |host: &str, port| {
            Value::Array(vec![Value::BulkString(host.into()), Value::Int(port), Value::BulkString(b"id".into())])
        };
        let range = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let answer = Value::Array(vec![range(0, 99, node("10.0.0.1", 7001)), range(100, 199, node("", 7002))]);
        let mut slots = SlotMap::read(&answer, &teller).expect("understood");
        assert_eq!(slots.owner(99), Some(&Address::new("10.0.0.1", 7001)));
        assert_eq!(slots.owner(100), Some(&Address::new("10.0.0.9", 7002)), "the host that was asked");
        assert_eq!(slots.owner(200), None);
        slots.set(99, redirected("10.0.0.2:7003", &teller).expect("an address"));
        assert_eq!(slots.owner(99), Some(&Address::new("10.0.0.2", 7003)));
        assert_eq!(slots.owners().len(), 3);
        assert_eq!(redirected("[::1]:7", &teller), Some(Address::new("::1", 7)));
        assert_eq!(redirected(":8", &teller), Some(Address::new("10.0.0.9", 8)));
    }

    #[test]
    fn fuzz_answers_of_strangers() {
        let teller = Address::new("teller", 1);
        distlock_testkit::fuzz("redis_reply.txt", |input| {
            let Ok(answer) = redis::parse_redis_value(input) else { return };
            if let Some(slots) = SlotMap::read(&answer, &teller) {
                let owners = slots.owners();
                assert!((0..=u16::MAX).filter_map(|slot| slots.owner(slot)).all(|owner| owners.contains(owner)));
            }
            let _ = crate::engines::redis::protocol::script::read_time(answer);
        });
    }
}
