//! What every log promises, and the semantics of jobs as scenarios against a
//! [`Store`](crate::Store) on its journal.
//!
//! A scenario sets the time: nothing sleeps, and what is promised to the millisecond is also
//! checked a millisecond before.

mod acts;
mod checkpoints;
mod credits;
mod dead_letters;
mod delivery;
mod due;
mod enqueue;
mod feed;
mod history;
mod leases;
mod log;
mod pauses;
mod prepared;
mod restarts;
mod retention;
mod retries;
mod scenario;
mod settings;
mod settles;

pub(crate) use self::log::log_conformance;
use self::scenario::Scenario;

macro_rules! scenarios {
    ($($file:ident: $($name:ident)*;)*) => {
        $($(
            #[tokio::test]
            async fn $name() {
                let mut scenario = Scenario::begin().await;
                $file::$name(&mut scenario).await;
                scenario.check_counters().await;
            }
        )*)*
    };
}

scenarios! {
    enqueue:
        a_job_is_created_once_and_the_same_one_again_exists
        one_id_from_a_thousand_producers_makes_one_job
        jobs_of_a_batch_stand_alone_and_those_of_an_atomic_one_together
        batches_are_numbered_and_a_resent_one_is_answered_again
        a_resent_batch_is_answered_again_after_a_restart
        only_the_last_batches_of_a_producer_are_remembered
        a_path_that_is_not_served_is_refused;
    prepared:
        a_prepared_job_runs_only_once_it_is_confirmed
        the_delay_of_a_prepared_job_counts_from_its_confirmation
        a_job_that_nobody_confirms_is_buried_after_an_hour
        only_a_prepared_job_can_be_confirmed;
    due:
        a_delayed_job_is_ready_to_the_millisecond
        a_job_for_a_time_of_day_is_ready_at_that_time
        a_job_that_nobody_began_in_time_expires
        a_job_that_comes_too_late_expires_at_once
        a_job_given_back_can_expire_and_one_that_was_tried_cannot;
    delivery:
        higher_priorities_come_first_and_older_jobs_before_younger_ones
        a_strict_order_takes_from_the_first_source_that_has_jobs
        a_weighted_order_shares_by_weight_while_all_have_jobs
        without_an_order_several_sources_are_as_one_queue
        a_job_given_back_keeps_its_age;
    credits:
        a_worker_gets_as_many_jobs_as_it_has_credits
        a_recalled_credit_is_given_back_and_used_ones_are_not
        a_worker_without_credit_is_told_that_jobs_wait
        an_ended_subscription_takes_nothing_more;
    settles:
        each_verdict_leads_where_it_says
        a_resent_batch_of_settles_is_answered_again_and_counts_once
        a_stale_token_is_refused_and_counted
        a_result_over_its_limit_is_refused_and_the_lease_runs_on;
    retries:
        each_policy_waits_to_the_millisecond
        full_jitter_stays_within_its_bound
        a_job_without_attempts_left_is_dead
        waiting_for_a_retry_is_counted_apart;
    leases:
        an_unrenewed_lease_ends_to_the_millisecond
        losing_a_lease_costs_an_attempt_only_once_it_has_begun
        a_job_that_loses_its_workers_is_dead_and_those_beside_it_are_unharmed
        an_attempt_that_runs_too_long_has_failed
        the_last_attempt_that_runs_too_long_is_the_end
        a_worker_that_is_back_within_the_grace_goes_on
        a_worker_that_stays_away_loses_its_jobs_after_the_grace
        every_late_verb_of_a_worker_that_lost_its_lease_is_refused
        a_delivery_that_is_never_begun_ends_in_the_dead_letters;
    restarts:
        everything_is_there_after_a_restart
        leases_resumed_within_the_window_go_on
        leases_that_nobody_resumes_go_back_with_their_attempt
        the_time_of_an_attempt_runs_on_over_a_restart
        a_settle_is_answered_again_after_a_restart
        tokens_and_starts_rise;
    acts:
        whatever_has_not_ended_can_be_cancelled
        a_cancelled_job_is_taken_from_its_worker
        a_revived_job_has_all_its_attempts_again
        revived_jobs_become_ready_at_the_pace
        what_has_ended_can_be_dropped
        a_filter_takes_what_it_says_and_nothing_else
        a_rehearsal_changes_nothing
        an_action_on_another_state_is_refused_one_by_one;
    dead_letters:
        dead_letters_are_grouped_by_what_they_died_of
        a_group_is_revived_by_its_fingerprint
        dead_letters_are_taken_by_age
        a_dead_job_is_replaced_by_a_new_one_in_one_step
        a_replacement_that_does_not_fit_changes_nothing;
    checkpoints:
        checkpoints_are_taken_in_order_and_a_duplicate_is_taken_once
        a_later_attempt_reads_what_earlier_ones_left
        checkpoints_last_over_a_restart
        only_the_newest_checkpoints_are_kept;
    history:
        every_attempt_is_told
        a_delivery_given_back_is_no_attempt
        a_result_is_kept_for_those_who_asked_for_it
        progress_is_told_while_the_lease_lasts
        the_history_lasts_over_a_restart_and_a_revival;
    pauses:
        a_paused_queue_accepts_and_delivers_nothing
        what_runs_in_a_paused_queue_ends_as_ever
        a_pause_holds_for_queues_to_come_and_over_a_restart
        a_closed_queue_refuses_new_jobs_and_delivers_what_it_has
        a_drained_publisher_refuses_new_batches_whole_and_delivers_what_it_has
        a_resume_takes_back_just_its_pattern;
    settings:
        a_queues_settings_hold_where_its_jobs_say_nothing
        changed_settings_hold_for_jobs_that_are_there
        a_queue_can_be_set_before_its_first_job;
    retention:
        ended_jobs_are_kept_for_a_day_unless_told_otherwise
        a_jobs_own_time_comes_before_its_queues
        the_newest_ended_jobs_are_kept_by_number
        what_is_kept_for_no_time_is_gone_when_it_ends
        dead_letters_stay;
    feed:
        a_life_is_told_from_its_first_event_to_its_last
        a_feed_goes_on_over_a_restart
        a_feed_begins_now_unless_it_says_otherwise
        what_is_not_recorded_is_too_old;
}
