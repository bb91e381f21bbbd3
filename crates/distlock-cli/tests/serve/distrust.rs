//! The clients where the daemon, the clock or the machine is not what it should be.

use crate::kit::{Daemon, Language, Process};

fn assert_good(language: Language, words: &[&str]) {
    let output = Process::start(&mut language.program(words)).output();
    assert_eq!(output.trim(), "good", "{language:?} {words:?}");
}

#[test]
fn errors_of_the_clients_do_not_have_the_token() {
    for language in [Language::Python, Language::Node] {
        assert_good(language, &["secret"]);
    }
}

#[test]
fn answers_of_no_sense_end_with_a_loss_in_time() {
    for language in [Language::Python, Language::Node] {
        assert_good(language, &["nonsense"]);
    }
}

#[test]
fn a_daemon_in_the_directory_of_another_user_is_not_trusted() {
    for language in [Language::Python, Language::Node] {
        assert_good(language, &["impostor"]);
    }
}

/// Timers stop while a machine is suspended.
#[test]
fn a_loss_during_a_suspend_is_told_soon_after_it() {
    let daemon = Daemon::start("mem://");
    for language in [Language::Python, Language::Node] {
        assert_good(language, &["suspended", &daemon.address(), "a"]);
    }
}

#[test]
fn the_wait_bounds_all_tries_of_a_request_together() {
    assert_good(Language::Python, &["unanswered"]);
}

#[test]
fn a_forked_child_never_waits_for_a_thread_of_its_parent() {
    let daemon = Daemon::start("mem://");
    assert_good(Language::Python, &["forked", &daemon.address(), "a"]);
}

#[test]
fn a_wait_without_end_is_refused_by_the_daemon() {
    let daemon = Daemon::start("mem://");
    assert_good(Language::Node, &["endless", &daemon.address(), "a"]);
}
