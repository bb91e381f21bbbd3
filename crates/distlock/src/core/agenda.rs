//! When the keeper must look at which hold: holds of one moment in one list.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::types::clock::Moment;
use crate::types::token::AttemptId;

/// How many lists without a hold are kept, beside as many as there are lists with one.
const MOST_EMPTY: usize = 64;

/// The moments at which the keeper must look at holds. Thousands of holds share few moments, so a list for each moment costs
/// much less than an ordered set of all holds.
#[derive(Default)]
pub(crate) struct Agenda {
    /// Some are empty: locks that are released soon are followed by others that have the same moment.
    lists: BTreeMap<Moment, Vec<AttemptId>>,
    empty: usize,
}

/// Where a hold stands in the agenda.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appointment {
    look: Moment,
    /// Its place in the list of that moment.
    place: u32,
}

impl Agenda {
    /// Adds a hold. Returns where it stands.
    pub(crate) fn add(&mut self, look: Moment, attempt: AttemptId) -> Appointment {
        let list = match self.lists.entry(look) {
            Entry::Vacant(vacant) => vacant.insert(Vec::new()),
            Entry::Occupied(occupied) => {
                let list = occupied.into_mut();
                self.empty -= usize::from(list.is_empty());
                list
            }
        };
        list.push(attempt);
        // No process has as many holds as a number of 32 bits can count.
        Appointment { look, place: u32::try_from(list.len() - 1).unwrap_or(u32::MAX) }
    }

    /// Removes the hold that stands there; does nothing if it was taken out before. Returns the hold that now stands there
    /// instead.
    pub(crate) fn remove(&mut self, Appointment { look, place }: Appointment, attempt: AttemptId) -> Option<AttemptId> {
        let (list, place) = (self.lists.get_mut(&look)?, place as usize);
        if list.get(place) != Some(&attempt) {
            return None;
        }
        list.swap_remove(place);
        let moved = list.get(place).copied();
        if list.is_empty() {
            self.empty += 1;
            self.forget_empty();
        }
        moved
    }

    fn forget_empty(&mut self) {
        if self.empty > MOST_EMPTY + self.lists.len() / 2 {
            self.lists.retain(|_, list| !list.is_empty());
            self.empty = 0;
        }
    }

    /// Takes out the holds of the first moment, unless it is after `now`.
    pub(crate) fn take_due(&mut self, now: Moment) -> Option<Vec<AttemptId>> {
        if self.next() > now {
            return None;
        }
        self.lists.pop_first().map(|(_, list)| list)
    }

    /// Returns the first moment; [`Moment::NEVER`] if there is no hold.
    pub(crate) fn next(&mut self) -> Moment {
        while let Some(first) = self.lists.first_entry() {
            if !first.get().is_empty() {
                return *first.key();
            }
            first.remove();
            self.empty -= 1;
        }
        Moment::NEVER
    }

    pub(crate) fn clear(&mut self) {
        *self = Agenda::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn holds_come_out_at_their_moments_however_others_are_removed() {
        let (mut agenda, mut places, mut numbers) = (Agenda::default(), BTreeMap::new(), 0_u64..);
        let mut looks = BTreeMap::new();
        for _ in 0..1000 {
            let (attempt, number) = (AttemptId::random(), numbers.next().unwrap());
            let look = Moment::from_nanos(number % 7);
            places.insert(attempt, agenda.add(look, attempt));
            looks.insert(attempt, look);
            // Every third one is removed again, by an order of its own: ids are random.
            if number % 3 == 0 {
                let (attempt, place) = places.pop_first().unwrap();
                looks.remove(&attempt);
                if let Some(moved) = agenda.remove(place, attempt) {
                    assert!(places.insert(moved, place).is_some(), "{moved} was removed before");
                }
                assert_eq!(agenda.remove(place, attempt), None, "once");
            }
        }
        for now in (0..7).map(Moment::from_nanos) {
            assert_eq!(agenda.next(), now);
            let mut due = agenda.take_due(now).unwrap();
            due.sort();
            let at_now = looks.iter().filter(|(_, look)| **look == now).map(|(attempt, _)| *attempt);
            assert_eq!(due, at_now.collect::<Vec<_>>());
            assert_eq!(agenda.take_due(now), None);
        }
        assert_eq!(agenda.next(), Moment::NEVER);
    }

    #[test]
    fn moments_without_a_hold_are_skipped_and_few_are_kept() {
        let (mut agenda, attempt) = (Agenda::default(), AttemptId::random());
        let last = agenda.add(Moment::from_nanos(10_000), attempt);
        for look in (0..10_000).map(Moment::from_nanos) {
            let two = [AttemptId::random(), AttemptId::random()];
            let [first, second] = two.map(|attempt| agenda.add(look, attempt));
            assert_eq!(agenda.remove(second, two[1]), None);
            assert_eq!(agenda.remove(first, two[0]), None);
            assert!(agenda.lists.len() <= 2 * MOST_EMPTY + 2, "{} lists", agenda.lists.len());
        }
        assert_eq!(agenda.next(), Moment::from_nanos(10_000));
        assert_eq!(agenda.lists.len(), 1);
        assert_eq!(agenda.take_due(Moment::from_nanos(9_999)), None);
        assert_eq!(agenda.remove(last, attempt), None);
        // The list of a moment is used again.
        assert_eq!(agenda.add(Moment::from_nanos(10_000), attempt), last);
        assert_eq!(agenda.take_due(Moment::from_nanos(10_000)), Some(vec![attempt]));
        assert_eq!((agenda.next(), agenda.empty), (Moment::NEVER, 0));
    }
}
