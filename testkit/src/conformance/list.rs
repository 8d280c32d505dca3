//! The one list of all cases. The tests that a store gets and the suite that is run as a whole are both made
//! of it.

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;

use super::Harness;

/// One case, for stores of one harness.
#[derive(Debug)]
pub struct Case<H> {
    /// Its name, as in the contract of [`DedupStore`](einmal::DedupStore).
    pub name: &'static str,
    /// Runs it; it panics when the store breaks the rule.
    pub run: fn(Arc<H>) -> LocalBoxFuture<'static, ()>,
}

/// Hands the list of all cases to another macro, behind what that is given.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ($($to:ident)::+, $($given:tt)*) => {
        $($to)::+! {
            [$($given)*]
            claim::absent_key_is_acquired,
            claim::live_claim_answers_in_progress,
            claim::retry_after_is_at_most_the_own_lease,
            claim::same_claim_again,
            claim::same_claim_again_after_its_end,
            claim::lapsed_claim_is_taken_over,
            claim::own_second_claim_gets_a_new_fence,
            claim::stale_owner_changes_nothing,
            claim::token_and_fence_are_both_compared,
            claim::late_settle_without_a_take_over_is_applied,
            claim::settle_of_nothing_is_superseded,
            claim::conflict_in_every_state,
            claim::first_fingerprint_is_kept,
            claim::fingerprint_survives_release_and_take_over,
            claim::fingerprints_of_two_versions_are_not_compared,
            claim::steps_of_the_wall_clock_take_nothing_over,
            claim::zero_lease_is_not_for_ever,
            concurrency::claim_is_atomic,
            concurrency::claim_of_a_batch_is_atomic,
            concurrency::take_over_is_atomic,
            concurrency::same_settle_at_once,
            concurrency::two_settles_at_once_have_one_winner,
            concurrency::two_processes_share_one_claim,
            concurrency::dropped_call_leaves_no_stuck_key,
            fence::fence_grows,
            fence::fence_grows_after_forget,
            fence::fence_grows_after_expiry,
            fence::fence_grows_after_force,
            fence::fence_grows_after_a_restart,
            renew::renewed_claim_stays_live,
            renew::renewal_stopped_is_taken_over,
            renew::renewal_keeps_started,
            renew::ended_claim_is_not_renewed,
            complete::completed_answers_with_its_result,
            complete::no_result_and_an_empty_one_differ,
            complete::completed_never_runs_again,
            complete::same_settle_again,
            complete::last_failure_again,
            complete::other_completion_is_refused,
            complete::completed_claim_has_ended,
            complete::result_over_the_bound_is_not_kept,
            fail::failed_attempt_is_no_duplicate,
            fail::back_off_answers_not_yet,
            fail::back_off_is_clamped,
            fail::not_yet_is_at_most_the_own_delay,
            fail::failures_at_the_limit_are_owed,
            fail::lowered_limit_gives_up,
            fail::failures_and_crashes_are_counted_apart,
            fail::rejected_is_owed_in_its_words,
            fail::long_words_are_cut,
            interruption::lapse_before_the_start_costs_nothing,
            interruption::lapse_after_the_start_is_an_interruption,
            interruption::started_can_be_told_later,
            interruption::interruption_is_counted_once,
            interruption::twice_interrupted_runs_alone,
            interruption::waiting_to_run_alone_is_no_start,
            interruption::crashes_alone_end_in_a_crash_loop,
            interruption::interrupted_then_completed_is_completed,
            dead_letter::owed_is_not_failed_before_it_is_published,
            dead_letter::dead_lettered_answers_failed,
            dead_letter::lapsed_dead_letter_is_published_by_the_next,
            dead_letter::released_dead_letter_stays_owed,
            dead_letter::dead_letter_claim_is_renewed,
            dead_letter::stages_are_kept_apart,
            dead_letter::stale_publisher_changes_nothing,
            release::release_charges_nothing,
            release::release_with_a_delay_answers_not_yet,
            release::counters_survive_release,
            release::released_claim_has_ended,
            operator::get_shows_the_record,
            operator::forgotten_key_is_new,
            operator::live_and_owed_are_not_forgotten,
            operator::forgotten_holder_is_superseded,
            operator::forced_key_runs_as_a_new_generation,
            operator::live_key_is_not_forced,
            operator::forced_key_keeps_its_fingerprint,
            expiry::expired_is_absent_at_once,
            expiry::expired_history_is_forgotten,
            expiry::live_claim_never_expires,
            expiry::unfinished_records_end_after_their_last_touch,
            expiry::every_record_ends,
            expiry::purge_is_bounded,
            expiry::retention_counts_from_the_settle,
            expiry::purge_leaves_what_was_touched,
            expiry::expired_claims_are_the_lapsed_ones,
            expiry::stats_count,
            batch::batch_answers_in_order,
            batch::same_key_twice_in_a_batch,
            batch::group_stops_claims,
            batch::outcomes_do_not_stop_a_group,
            batch::group_stops_settles,
            batch::undecodable_record_fails_alone,
            bounds::full_refuses_only_new_keys,
            bounds::full_batch_serves_what_it_has,
            bounds::full_scope_refuses_only_its_own,
            bounds::room_comes_back,
            bounds::bounds_hold_after_a_restart,
            isolation::scopes_are_apart,
            isolation::no_two_keys_are_one,
            isolation::full_lengths_are_accepted_together,
            durability::answers_after_the_sync,
            durability::killed_claim_is_an_interruption,
            durability::crash_loop_ends_across_kills,
            durability::owner_of_before_a_restart_is_stale,
            durability::restart_keeps_outcomes_until_they_end,
            durability::completion_is_not_seen_before_its_sync,
            durability::group_is_durable_as_a_prefix,
        }
    };
}

/// Makes a test of each case of the [suite](mod@crate::conformance), for the stores of a harness.
///
/// The harness is an expression, evaluated once a case, inside an async block. All tests land where the
/// macro stands: put it into a module of its own where there are others.
#[macro_export]
macro_rules! conformance {
    ($harness:expr $(,)?) => {
        $crate::__conformance_cases! { $crate::__conformance_tests, $harness }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ([$harness:expr] $($group:ident::$case:ident,)*) => {$(
        #[test]
        fn $case() {
            $crate::conformance::block_on(async {
                let harness = $harness;
                $crate::conformance::$group::$case(&harness).await;
            });
        }
    )*};
}

macro_rules! listed {
    ([] $($group:ident::$case:ident,)*) => {
        vec![$(Case {
            name: stringify!($case),
            run: |harness: Arc<H>| Box::pin(async move { super::$group::$case(&*harness).await }),
        }),*]
    };
}

/// All cases, in the order of the list.
#[must_use]
pub fn cases<H: Harness>() -> Vec<Case<H>> {
    crate::__conformance_cases! { listed, }
}
