//! Rule 13: no scope sees another's, and no two keys are one.

use einmal::claim::{ClaimAnswer, ClaimRequest, ForceAnswer, ForgetAnswer};
use einmal::{DedupKey, DedupStore, MAX_LEN, MAX_PREFIX_LEN, MessageId, Scope};

use super::Harness;
use super::desk::*;

/// The same id in two scopes is two operations: claimed, completed, forgotten and forced each for itself.
pub async fn scopes_are_apart<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let ours = ClaimRequest { fingerprint: Some(print_of("ours")), ..desk.request_in("ours", "m") };
    let theirs = ClaimRequest { fingerprint: Some(print_of("theirs")), ..desk.request_in("theirs", "m") };
    let claim = acquired(desk.send(ours.clone()).await);
    acquired(desk.send(theirs.clone()).await);
    desk.apply(&claim, complete("our secret")).await;
    let theirs_again = ClaimRequest { token: desk.request("m").token, ..theirs.clone() };
    in_progress(desk.send(theirs_again).await);
    assert_eq!(desk.store.get(&theirs.key).await.unwrap().unwrap().phase_name(), "in_progress");
    assert_eq!(desk.store.forget(&theirs.key).await.unwrap(), ForgetAnswer::RefusedLive);
    let forced = desk.store.force(&ours.key, desk.rules.retention).await.unwrap();
    assert!(matches!(forced, ForceAnswer::Forced(_)));
    assert_eq!(desk.store.forget(&ours.key).await.unwrap(), ForgetAnswer::Forgotten);
    assert!(desk.store.get(&theirs.key).await.unwrap().is_some());
}

/// Scopes and ids that would run together, or that mean something to a store's language, are all different
/// keys.
pub async fn no_two_keys_are_one<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let pairs = [
        ("a", "bc"),
        ("ab", "c"),
        ("a/b", "c"),
        ("a", "b/c"),
        ("a:b", "c"),
        ("a", "b:c"),
        ("A", "bc"),
        ("a", " bc"),
        ("a", "bc "),
        ("{a}", "bc"),
        ("a", "bc*"),
        ("a", "'; drop table x; --"),
        ("a", "%"),
        ("a", "_"),
        ("é", "x"),
        ("e\u{301}", "x"),
        ("a", "\u{202e}bc"),
        ("\u{10ffff}", "\u{10ffff}"),
    ];
    for (n, (scope, id)) in pairs.into_iter().enumerate() {
        let claim = acquired(desk.send(desk.request_in(scope, id)).await);
        assert_eq!(claim.key, key(scope, id));
        desk.apply(&claim, complete(&n.to_string())).await;
    }
    for (n, (scope, id)) in pairs.into_iter().enumerate() {
        let outcome = completed(desk.send(desk.request_in(scope, id)).await);
        assert_eq!(outcome.result.bytes().unwrap(), n.to_string().as_bytes(), "{scope:?} {id:?}");
    }
}

/// Rule 10: scope and id of full length, behind a prefix of full length, are accepted together, and differ
/// in their last byte.
pub async fn full_lengths_are_accepted_together<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let prefix = "p".repeat(MAX_PREFIX_LEN);
    let scope = Scope::with_prefix(&prefix, "s".repeat(MAX_LEN)).unwrap();
    let request = |end: &str| {
        let id = MessageId::new("i".repeat(MAX_LEN - 1) + end).unwrap();
        ClaimRequest { key: DedupKey::new(scope.clone(), id), ..desk.request("m") }
    };
    let claim = acquired(desk.send(request("1")).await);
    acquired(desk.send(request("2")).await);
    desk.apply(&claim, complete("r")).await;
    completed(desk.send(request("1")).await);
    assert!(matches!(desk.send(request("2")).await, ClaimAnswer::InProgress { .. }));
}
