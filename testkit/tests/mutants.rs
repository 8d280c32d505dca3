//! Tests of the suite: a store that breaks a rule fails exactly the cases that hold this rule.
//!
//! The lists say both what each case is for and what it is not: a case that fails for one more breach has
//! come to test two things, one that fails for none tests nothing.
#![allow(clippy::panic, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use einmal_testkit::conformance::{cases, failing};
use einmal_testkit::mutants::{Breach, DiskHarness};

fn all() -> BTreeSet<&'static str> {
    cases::<DiskHarness>().iter().map(|case| case.name).collect()
}

fn exactly(listed: &[&'static str]) -> BTreeSet<&'static str> {
    let listed: BTreeSet<&str> = listed.iter().copied().collect();
    let unknown: Vec<_> = listed.difference(&all()).copied().collect();
    assert!(unknown.is_empty(), "no such cases: {unknown:?}");
    listed
}

fn all_but(listed: &[&'static str]) -> BTreeSet<&'static str> {
    all().difference(&exactly(listed)).copied().collect()
}

fn check(breach: Breach, expected: &BTreeSet<&'static str>) {
    let failed = failing(|| DiskHarness::new(breach));
    let names: BTreeSet<&str> = failed.keys().copied().collect();
    let missed: Vec<_> = expected.difference(&names).collect();
    let surprises: BTreeMap<_, _> = failed.iter().filter(|(name, _)| !expected.contains(*name)).collect();
    assert!(
        missed.is_empty() && surprises.is_empty(),
        "{breach:?}: should have failed and did not: {missed:#?}; failed and should not: {surprises:#?}"
    );
}

macro_rules! mutants {
    ($($test:ident: $breach:ident fails $how:ident [$($case:ident),* $(,)?];)*) => {
        const LISTED: &[Breach] = &[$(Breach::$breach),*];

        fn expected(breach: Breach) -> BTreeSet<&'static str> {
            match breach {
                $(Breach::$breach => $how(&[$(stringify!($case)),*]),)*
                Breach::None => BTreeSet::new(),
            }
        }

        $(
            #[test]
            fn $test() {
                check(Breach::$breach, &expected(Breach::$breach));
            }
        )*
    };
}

mutants! {
    forgets_the_fence: ForgetsTheFence fails exactly [
        forced_key_runs_as_a_new_generation, forgotten_holder_is_superseded, group_stops_settles,
        own_second_claim_gets_a_new_fence, owner_of_before_a_restart_is_stale, released_claim_has_ended,
        renewal_stopped_is_taken_over, stale_owner_changes_nothing, stale_publisher_changes_nothing,
        token_and_fence_are_both_compared,
    ];
    marks_before_the_handler: MarksBeforeTheHandler fails all_but [
        absent_key_is_acquired, settle_of_nothing_is_superseded, two_processes_share_one_claim,
        group_is_durable_as_a_prefix,
    ];
    never_expires: NeverExpires fails exactly [
        every_record_ends, expired_history_is_forgotten, expired_is_absent_at_once, fence_grows_after_expiry,
        purge_is_bounded, restart_keeps_outcomes_until_they_end, retention_counts_from_the_settle,
        room_comes_back, unfinished_records_end_after_their_last_touch,
    ];
    never_lapses: NeverLapses fails exactly [
        completion_is_not_seen_before_its_sync, counters_survive_release, crashes_alone_end_in_a_crash_loop,
        dropped_call_leaves_no_stuck_key, every_record_ends, expired_claims_are_the_lapsed_ones,
        failures_and_crashes_are_counted_apart, failures_at_the_limit_are_owed, fence_grows,
        forced_key_runs_as_a_new_generation, forgotten_holder_is_superseded, full_refuses_only_new_keys,
        group_stops_settles, interrupted_then_completed_is_completed, interruption_is_counted_once,
        lapse_after_the_start_is_an_interruption, lapse_before_the_start_costs_nothing,
        lapsed_claim_is_taken_over, lapsed_dead_letter_is_published_by_the_next,
        live_and_owed_are_not_forgotten, live_claim_answers_in_progress, own_second_claim_gets_a_new_fence,
        rejected_is_owed_in_its_words, renewal_keeps_started, renewal_stopped_is_taken_over,
        retry_after_is_at_most_the_own_lease, stale_owner_changes_nothing, stale_publisher_changes_nothing,
        started_can_be_told_later, steps_of_the_wall_clock_take_nothing_over, take_over_is_atomic,
        twice_interrupted_runs_alone, unfinished_records_end_after_their_last_touch,
        waiting_to_run_alone_is_no_start, zero_lease_is_not_for_ever,
    ];
    serves_the_expired: ServesTheExpired fails exactly [
        expired_history_is_forgotten, expired_is_absent_at_once, fence_grows_after_expiry,
        restart_keeps_outcomes_until_they_end, retention_counts_from_the_settle,
        unfinished_records_end_after_their_last_touch,
    ];
    purges_without_limit: PurgesWithoutLimit fails exactly [purge_is_bounded];
    ignores_the_fingerprint: IgnoresTheFingerprint fails exactly [
        answers_after_the_sync, batch_answers_in_order, conflict_in_every_state,
        fingerprint_survives_release_and_take_over, first_fingerprint_is_kept,
        forced_key_keeps_its_fingerprint, get_shows_the_record, outcomes_do_not_stop_a_group,
    ];
    claims_in_two_steps: ClaimsInTwoSteps fails exactly [
        claim_is_atomic, claim_of_a_batch_is_atomic, take_over_is_atomic,
    ];
    answers_before_the_sync: AnswersBeforeTheSync fails exactly [
        answers_after_the_sync, completion_is_not_seen_before_its_sync, crash_loop_ends_across_kills,
        killed_claim_is_an_interruption,
    ];
    shows_before_the_sync: ShowsBeforeTheSync fails exactly [completion_is_not_seen_before_its_sync];
    writes_the_last_first: WritesTheLastFirst fails exactly [group_is_durable_as_a_prefix];
    drops_completions: DropsCompletions fails exactly [
        answers_after_the_sync, batch_answers_in_order, bounds_hold_after_a_restart,
        completed_answers_with_its_result, completed_claim_has_ended, completed_never_runs_again,
        completion_is_not_seen_before_its_sync, dropped_call_leaves_no_stuck_key, ended_claim_is_not_renewed,
        expired_claims_are_the_lapsed_ones, expired_is_absent_at_once, failed_attempt_is_no_duplicate,
        fence_grows_after_force, fence_grows_after_forget, fingerprints_of_two_versions_are_not_compared,
        forced_key_keeps_its_fingerprint, forced_key_runs_as_a_new_generation, forgotten_holder_is_superseded,
        forgotten_key_is_new, full_batch_serves_what_it_has, full_lengths_are_accepted_together,
        full_refuses_only_new_keys, full_scope_refuses_only_its_own, interrupted_then_completed_is_completed,
        late_settle_without_a_take_over_is_applied, no_result_and_an_empty_one_differ, no_two_keys_are_one,
        other_completion_is_refused, outcomes_do_not_stop_a_group, purge_is_bounded,
        purge_leaves_what_was_touched, renewal_stopped_is_taken_over, renewed_claim_stays_live,
        restart_keeps_outcomes_until_they_end, result_over_the_bound_is_not_kept,
        retention_counts_from_the_settle, room_comes_back, same_claim_again_after_its_end,
        same_key_twice_in_a_batch, scopes_are_apart, stale_owner_changes_nothing, stats_count,
        two_settles_at_once_have_one_winner, undecodable_record_fails_alone,
    ];
    forgets_its_settles: ForgetsItsSettles fails exactly [
        dropped_call_leaves_no_stuck_key, last_failure_again, result_over_the_bound_is_not_kept,
        same_key_twice_in_a_batch, same_settle_again, same_settle_at_once,
    ];
    forgets_its_claims: ForgetsItsClaims fails exactly [
        interruption_is_counted_once, same_claim_again, same_key_twice_in_a_batch,
    ];
    forgets_claims_at_a_restart: ForgetsClaimsAtARestart fails exactly [
        crash_loop_ends_across_kills, killed_claim_is_an_interruption,
    ];
    restarts_its_fences: RestartsItsFences fails exactly [
        fence_grows_after_a_restart, fence_grows_after_expiry, fence_grows_after_forget,
        forgotten_holder_is_superseded,
    ];
    takes_failed_for_done: TakesFailedForDone fails exactly [
        answers_after_the_sync, back_off_answers_not_yet, back_off_is_clamped, batch_answers_in_order,
        counters_survive_release, dead_lettered_answers_failed, failed_attempt_is_no_duplicate,
        failures_and_crashes_are_counted_apart, failures_at_the_limit_are_owed, fence_grows,
        fingerprint_survives_release_and_take_over, forced_key_runs_as_a_new_generation,
        full_refuses_only_new_keys, group_stops_claims, last_failure_again, lowered_limit_gives_up,
        not_yet_is_at_most_the_own_delay, same_settle_again, same_settle_at_once,
    ];
    loses_counters_at_a_release: LosesCountersAtARelease fails exactly [
        counters_survive_release, lowered_limit_gives_up,
    ];
    charges_innocents: ChargesInnocents fails exactly [
        killed_claim_is_an_interruption, lapse_before_the_start_costs_nothing,
        waiting_to_run_alone_is_no_start,
    ];
    loses_dead_letters: LosesDeadLetters fails exactly [
        answers_after_the_sync, conflict_in_every_state, dead_letter_claim_is_renewed, every_record_ends,
        fence_grows, forced_key_runs_as_a_new_generation, full_refuses_only_new_keys, get_shows_the_record,
        group_stops_claims, lapsed_dead_letter_is_published_by_the_next, live_and_owed_are_not_forgotten,
        live_key_is_not_forced, owed_is_not_failed_before_it_is_published, released_dead_letter_stays_owed,
        retention_counts_from_the_settle, same_settle_again, stages_are_kept_apart,
        stale_publisher_changes_nothing, unfinished_records_end_after_their_last_touch,
    ];
    keeps_any_result: KeepsAnyResult fails exactly [result_over_the_bound_is_not_kept];
    ignores_groups: IgnoresGroups fails exactly [
        group_stops_claims, group_stops_settles, undecodable_record_fails_alone,
    ];
    fails_all_for_one: FailsAllForOne fails exactly [
        full_batch_serves_what_it_has, undecodable_record_fails_alone,
    ];
    evicts_the_living: EvictsTheLiving fails exactly [
        full_batch_serves_what_it_has, full_refuses_only_new_keys,
    ];
    lets_a_scope_shut_out_all: LetsAScopeShutOutAll fails exactly [full_scope_refuses_only_its_own];
    mixes_scopes: MixesScopes fails exactly [
        full_scope_refuses_only_its_own, no_two_keys_are_one, scopes_are_apart,
    ];
    cuts_long_ids: CutsLongIds fails exactly [full_lengths_are_accepted_together];
    renews_nothing: RenewsNothing fails exactly [
        dead_letter_claim_is_renewed, live_claim_never_expires, renewed_claim_stays_live,
    ];
    ignores_the_start: IgnoresTheStart fails exactly [
        crash_loop_ends_across_kills, crashes_alone_end_in_a_crash_loop, killed_claim_is_an_interruption,
        started_can_be_told_later,
    ];
    runs_nothing_alone: RunsNothingAlone fails exactly [
        crash_loop_ends_across_kills, crashes_alone_end_in_a_crash_loop, killed_claim_is_an_interruption,
        twice_interrupted_runs_alone,
    ];
    never_gives_up: NeverGivesUp fails exactly [
        answers_after_the_sync, crash_loop_ends_across_kills, crashes_alone_end_in_a_crash_loop,
        dead_lettered_answers_failed, failures_at_the_limit_are_owed, lowered_limit_gives_up,
    ];
    ignores_delays: IgnoresDelays fails exactly [
        answers_after_the_sync, back_off_answers_not_yet, back_off_is_clamped, batch_answers_in_order,
        group_stops_claims, not_yet_is_at_most_the_own_delay, release_with_a_delay_answers_not_yet,
    ];
    touches_nothing: TouchesNothing fails exactly [retention_counts_from_the_settle];
    keeps_the_last_result: KeepsTheLastResult fails exactly [other_completion_is_refused];
    interferes_with_the_living: InterferesWithTheLiving fails exactly [
        live_and_owed_are_not_forgotten, live_key_is_not_forced, scopes_are_apart,
    ];
    trusts_the_wall_clock: TrustsTheWallClock fails exactly [steps_of_the_wall_clock_take_nothing_over];
}

#[test]
fn the_kept_contract_fails_nothing() {
    check(Breach::None, &BTreeSet::new());
}

#[test]
fn every_breach_is_listed_and_fails_something() {
    assert_eq!(LISTED, Breach::ALL);
    assert!(LISTED.iter().all(|breach| !expected(*breach).is_empty()));
}

/// Which cases no breach fails; each with the reason why.
#[test]
fn every_case_fails_for_some_breach() {
    let held: BTreeSet<&str> = LISTED.iter().flat_map(|breach| expected(*breach)).collect();
    let idle: Vec<_> = all().difference(&held).copied().collect();
    let reasons = [
        // What it asks for is what every other case begins with.
        "absent_key_is_acquired",
        // A disk store that breaks it would have to invent records.
        "settle_of_nothing_is_superseded",
        // The pretended disk is not shared.
        "two_processes_share_one_claim",
    ];
    assert_eq!(idle, reasons);
}
