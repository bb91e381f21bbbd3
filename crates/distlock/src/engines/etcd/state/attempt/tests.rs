//! The rules of an attempt, one event at a time.

use super::*;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Id(i64);

impl LeaseHandle for Id {
    fn id(&self) -> i64 {
        self.0
    }
}

const LEASE: i64 = 7;
const LONGER: i64 = 8;

fn at(ms: u64) -> Moment {
    Moment::from_nanos(0).after(Duration::from_millis(ms))
}

fn term() -> Term {
    Term { start: at(0), ttl: Duration::from_secs(10) }
}

fn new() -> AttemptState<Id> {
    AttemptState::new(Id(LEASE), 0, at(0), at(10_000))
}

/// A waiter whose key was made at revision 5.
fn waiting() -> AttemptState<Id> {
    let mut state = new();
    state.made(Some(5), true);
    state
}

fn held() -> AttemptState<Id> {
    let mut state = waiting();
    assert_eq!(state.granted(5, false, term(), at(0)), Granted::Held { created: 5, slot: None });
    state
}

/// A hold that was asked to be moved to the longer lease, without a reply yet.
fn moving() -> AttemptState<Id> {
    let mut state = held();
    let sent = Move::Send { created: 5, from: LEASE, in_doubt: false };
    assert_eq!(state.begin_move(&Id(LONGER), at(1), false), sent);
    state
}

#[test]
fn a_key_that_was_seen_deleted_is_not_granted() {
    let mut state = waiting();
    assert_eq!(state.saw_deletion(6), SawDeletion::KeyLost);
    assert_eq!(state.granted(9, false, term(), at(0)), Granted::Lost);
    let mut state = new();
    assert_eq!(state.saw_deletion(4), SawDeletion::Nothing, "it was an older key of that name");
    state.made(Some(5), true);
    assert!(matches!(state.granted(5, false, term(), at(0)), Granted::Held { .. }));
}

#[test]
fn neither_a_lost_lease_nor_a_release_is_followed_by_a_grant() {
    assert_eq!(waiting().granted(5, true, term(), at(0)), Granted::Lost);
    let mut state = waiting();
    state.leave();
    assert_eq!(state.granted(5, false, term(), at(0)), Granted::GivenUp);
    assert!(!state.handed_over(5, 6), "a release gives up the wait");
}

#[test]
fn a_lock_is_handed_only_to_the_key_that_the_reply_shows() {
    let mut state = waiting();
    assert!(!state.handed_over(4, 9) && !state.has_news(), "that was an older key of this name");
    assert!(state.handed_over(5, 9));
    assert_eq!(state.wait().unwrap().first_at, Some(9));
}

#[test]
fn a_key_that_is_shown_first_before_its_claim_is_answered_is_first_then() {
    for (made, first_at) in [(5, Some(9)), (10, None)] {
        let mut state = new();
        assert!(!state.handed_over(5, 9), "nothing is to be woken");
        assert!(!state.is_first(), "it may be an older key of this name");
        state.made(Some(made), true);
        assert_eq!(state.first_at(), first_at);
    }
}

#[test]
fn a_deletion_by_another_client_is_a_loss_and_our_own_is_none() {
    let mut state = held();
    assert_eq!(state.saw_deletion(9), SawDeletion::FindReason { created: 5 });
    assert_eq!(state.lost(), Lost { tell: true, wake: false, delete_after: None });
    assert_eq!(state.lost(), Lost { tell: false, wake: false, delete_after: None }, "it is told once");
    let mut state = held();
    state.leave();
    assert_eq!(state.saw_deletion(9), SawDeletion::Nothing);
    assert_eq!(waiting().lost(), Lost { tell: false, wake: true, delete_after: None });
}

#[test]
fn a_request_that_was_not_answered_keeps_the_name_until_the_key_is_found() {
    let mut state = new();
    state.unanswered();
    assert!(!state.frees_name() && !state.is_unmade());
    state.made(Some(5), false);
    assert!(state.frees_name(), "that request made it");
    state.unanswered();
    state.made(Some(5), true);
    assert_eq!(state.lost().delete_after, Some(5), "a new key is not that of an older request");
}

#[test]
fn a_late_key_is_waited_for_while_it_may_come_and_not_for_ever() {
    let late = || {
        let mut state = new();
        state.unanswered();
        state.leave();
        assert_eq!(state.left(false, false, at(100)), AfterDeletion::Late);
        state
    };
    let mut state = late();
    let until = at(100).after(LATE_KEY_WAIT);
    assert_eq!(state.late_until(), Some(until));
    assert_eq!(state.left(false, false, at(30_000)), AfterDeletion::Late, "another release does not prolong it");
    assert_eq!((state.late_until(), state.due(at(30_000))), (Some(until), Chore::Rest), "the core repeats the release");
    assert_eq!(late().due(until), Chore::Delete, "the core has not");
    assert_eq!(state.left(false, false, until), AfterDeletion::Forget);
    assert!(!state.frees_name(), "the request may come even later");
    let mut state = new();
    state.unanswered();
    state.leave();
    assert_eq!(state.left(false, true, at(0)), AfterDeletion::Forget, "it was that request's key");
}

#[test]
fn a_deletion_without_a_create_revision_keeps_the_name_if_it_is_not_answered() {
    for (created, is_free) in [(0, false), (5, true)] {
        let mut state = waiting();
        state.leave();
        state.deletion_unanswered(created);
        assert_eq!(state.frees_name(), is_free);
    }
}

#[test]
fn a_hold_that_a_release_does_not_find_may_be_taken_over_with_its_name() {
    let mut state = held();
    assert_eq!(state.leave(), Some(Leaving { was_held: true, repeated: false }));
    assert_eq!(state.leave(), Some(Leaving { was_held: true, repeated: true }));
    assert_eq!(state.left(true, false, at(0)), AfterDeletion::Forget);
    assert!(!state.frees_name());
}

#[test]
fn a_lease_takes_with_it_what_hangs_on_it() {
    assert_eq!(held().lease_gone(LONGER, at(0)), LeaseGone::Untouched);
    assert_eq!(held().lease_gone(LEASE, at(0)), LeaseGone::KeyLost);
    let mut state = moving();
    assert_eq!(state.lease_gone(LEASE, at(0)), LeaseGone::GivenUp { tell: true }, "the key may be on the other");
    assert_eq!(state.due(at(0)), Chore::Delete);
    let mut state = moving();
    assert_eq!(state.lease_gone(LONGER, at(0)), LeaseGone::Look);
    assert!(state.is_in_question() && state.needs(LEASE));
    state.found_own_value(9);
    assert!(!state.is_in_question());
}

#[test]
fn a_hold_is_moved_only_to_a_lease_that_ends_after_what_its_holder_counts_on() {
    let mut state = held();
    assert_eq!(state.begin_move(&Id(LONGER), at(0), false), Move::RenewFirst);
    assert_eq!(state.begin_move(&Id(LONGER), at(1), true), Move::Done);
    assert_eq!(waiting().begin_move(&Id(LONGER), at(1), false), Move::Lost);
    let mut state = moving();
    let again = Move::Send { created: 5, from: LEASE, in_doubt: true };
    assert_eq!(state.begin_move(&Id(LONGER), at(1), false), again);
    assert_eq!(state.to_delete(), ToDelete { created: 5, lease: LEASE, moving_to: vec![LONGER] });
    assert_eq!(state.amendment(), Err(NoAmendment::Moving));
    assert!(state.moved(Some(LONGER)));
    assert_eq!(state.amendment(), Ok((5, LONGER, None)));
    assert!(!moving().moved(Some(99)), "another client has moved it");
    let mut state = moving();
    state.move_refused(LONGER);
    assert_eq!(state.amendment(), Ok((5, LEASE, None)));
}

#[test]
fn a_renewal_counts_only_if_every_lease_was_renewed() {
    let renewed = Term { start: at(3_000), ..term() };
    let mut state = moving();
    assert_eq!(state.renewed(&[Id(LEASE)], Some(renewed)), Renewed::Again);
    assert_eq!(state.known_start(), at(0));
    assert_eq!(state.renewed(&[Id(LEASE), Id(LONGER)], Some(renewed)), Renewed::Done);
    assert_eq!((state.known_start(), state.keep_until()), (at(3_000), at(13_000)));
    assert_eq!(state.renewed(&[Id(LEASE), Id(LONGER)], None), Renewed::Again);
    state.leave();
    assert_eq!(state.renewed(&[Id(LEASE), Id(LONGER)], Some(renewed)), Renewed::Lost);
}

#[test]
fn housekeeping_watches_longer_holds_and_ends_what_is_not_asked_for() {
    let mut state = held();
    assert_eq!(state.due(at(100)), Chore::LookAt(at(250)));
    assert_eq!(state.due(at(250)), Chore::WatchKey { revision: 5, in_question: false });
    assert_eq!(waiting().due(at(250)), Chore::WatchQueue);
    assert_eq!(state.due(at(10_000)), Chore::End);
    assert_eq!(state.leave(), Some(Leaving { was_held: true, repeated: true }));
    let mut state = waiting();
    state.asked_again(at(11_000));
    assert_eq!(state.due(at(10_999)), Chore::WatchQueue);
    state.lost();
    assert_eq!((state.due(at(0)), state.leave()), (Chore::Forget, None));
}

#[test]
fn a_write_concerns_a_hold_only_if_it_came_after_what_was_read() {
    let mut state = held();
    assert!(!state.saw_write(5) && state.saw_write(6) && !waiting().saw_write(6));
    state.found_own_value(6);
    assert!(!state.saw_write(6));
}

#[test]
fn a_write_between_the_grant_and_its_reply_is_looked_into() {
    for (written, in_question) in [(5, false), (6, true)] {
        let mut state = waiting();
        assert!(!state.saw_write(written), "it is no hold yet");
        state.granted(5, false, term(), at(0));
        assert_eq!(state.is_in_question(), in_question);
    }
}

#[test]
fn a_hold_whose_end_was_seen_before_it_was_taken_over_is_lost() {
    let mut state = AttemptState::new(Id(LEASE), 5, at(0), at(10_000));
    state.unanswered();
    assert_eq!(state.adopter(), Some((LEASE, 5)));
    state.taken_over();
    assert!(state.frees_name());
    state.end_was_seen();
    assert_eq!(state.granted(9, false, term(), at(0)), Granted::Lost);
    state.taken_by_another();
    assert!(!state.frees_name());
    state.lost();
    assert_eq!(state.adopter(), None);
}
