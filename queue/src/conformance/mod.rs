//! The contract of a log, and the semantics of jobs as scenarios against a [`Store`](crate::Store)
//! on its journal.
//!
//! A scenario sets the time: nothing sleeps, and guarantees to the millisecond are also checked a
//! millisecond before.

mod actions;
mod checkpoints;
mod credits;
mod dead_letters;
mod delivery;
mod enqueue;
mod feed;
mod graph;
mod history;
mod leases;
mod limits;
mod log;
mod order;
mod pauses;
mod prepared;
mod restarts;
mod retention;
mod retries;
mod scenario;
mod schedule;
mod settings;
mod settles;
mod unique;

pub(crate) use self::log::log_conformance;
use self::scenario::StoreScenario;

macro_rules! scenarios {
    ($($file:ident: $($name:ident)*;)*) => {
        $($(
            #[tokio::test]
            async fn $name() {
                let mut scenario = StoreScenario::begin().await;
                $file::$name(&mut scenario).await;
                scenario.check_counters().await;
            }
        )*)*
    };
}

scenarios! {
    enqueue:
        job_is_created_once_and_exists_when_repeated
        one_id_from_a_thousand_producers_creates_one_job
        only_atomic_batches_are_refused_as_a_whole
        key_is_one_job_until_it_ends
        resent_batch_receives_its_first_answer
        resent_batch_receives_its_first_answer_after_a_restart
        only_answers_to_the_last_batches_are_stored
        path_that_is_not_served_is_refused;
    order:
        jobs_of_an_order_key_run_one_at_a_time_in_order
        a_dead_job_keeps_its_turn_only_if_its_queue_says_so
        fair_keys_share_by_weight_whatever_one_enqueues;
    limits:
        a_limit_counts_running_jobs_over_restarts
        a_rate_starts_jobs_to_the_millisecond_over_restarts;
    graph:
        a_job_runs_once_its_parents_have_ended_as_it_asks
        a_batch_ends_with_its_last_member
        a_job_reads_its_parents_page_by_page;
    unique:
        one_job_of_a_unique_key_is_there_until_it_ends
        the_latest_job_replaces_the_one_that_waits
        a_unique_key_for_a_period_outlives_its_job
        a_dead_job_has_no_unique_key_until_it_is_revived
        an_atomic_batch_has_a_unique_key_once;
    prepared:
        prepared_job_runs_only_after_confirmation
        delay_of_a_prepared_job_counts_from_its_confirmation
        unconfirmed_job_is_buried_after_an_hour
        only_a_prepared_job_can_be_confirmed;
    schedule:
        delayed_job_is_ready_to_the_millisecond
        job_for_a_wall_clock_time_is_ready_at_that_time
        job_that_was_not_started_in_time_expires
        job_enqueued_after_its_expiry_expires_at_once
        released_job_can_expire_and_one_that_has_begun_cannot
        delivery_has_the_times_of_its_job;
    delivery:
        jobs_are_delivered_by_priority_then_age
        strict_order_serves_the_first_source_with_jobs
        weighted_order_shares_by_weight_while_all_have_jobs
        a_source_of_weight_0_excludes_its_queues
        sources_by_age_are_served_like_one_queue
        released_job_keeps_its_age;
    credits:
        worker_receives_as_many_jobs_as_it_has_credits
        recall_returns_only_unused_credits
        worker_without_credit_is_notified_of_waiting_jobs
        ended_subscription_receives_nothing_more;
    settles:
        each_verdict_leads_to_its_state
        resent_settles_receive_their_first_answer_and_count_once
        stale_token_is_refused_and_counted
        oversized_result_is_refused_and_the_lease_runs_on;
    retries:
        each_backoff_waits_to_the_millisecond
        full_jitter_stays_within_its_bound
        job_without_attempts_left_is_dead
        jobs_waiting_for_a_retry_are_counted_apart;
    leases:
        unrenewed_lease_ends_to_the_millisecond
        lost_lease_costs_an_attempt_only_once_started
        job_that_loses_three_workers_is_dead_and_harms_no_other
        attempt_over_its_run_timeout_has_failed
        last_attempt_over_its_run_timeout_kills_the_job
        worker_that_returns_within_the_grace_continues
        worker_that_stays_away_loses_its_jobs_after_the_grace
        every_message_about_a_lost_lease_is_refused
        job_that_is_never_started_goes_to_the_dead_letters;
    restarts:
        restart_preserves_all_jobs_and_counters
        leases_resumed_within_the_window_continue
        unresumed_leases_end_without_costing_an_attempt
        run_timeout_continues_over_a_restart
        settle_receives_its_first_answer_after_a_restart
        tokens_and_epochs_rise;
    actions:
        every_job_that_has_not_ended_can_be_cancelled
        cancelled_job_is_revoked_from_its_worker
        revived_job_has_all_its_attempts_again
        revived_jobs_become_ready_at_the_pace
        ended_jobs_can_be_dropped
        filter_selects_exactly_its_jobs
        dry_run_changes_nothing
        action_on_another_state_is_refused_per_job;
    dead_letters:
        dead_letters_are_grouped_by_error
        group_is_revived_by_its_fingerprint
        dead_letters_are_selected_by_age
        dead_job_is_replaced_in_one_step
        invalid_replacement_changes_nothing;
    checkpoints:
        checkpoints_are_accepted_in_order_and_duplicates_once
        later_attempt_reads_earlier_checkpoints
        checkpoints_survive_a_restart
        only_the_newest_checkpoints_are_stored;
    history:
        every_attempt_is_in_the_history
        released_delivery_is_not_an_attempt
        result_is_stored_only_on_request
        progress_is_visible_while_the_lease_runs
        history_survives_a_restart_and_a_revival;
    pauses:
        paused_queue_accepts_and_delivers_nothing
        running_jobs_of_a_paused_queue_end_as_usual
        pause_applies_to_new_queues_and_survives_a_restart
        closed_queue_refuses_new_jobs_and_delivers_existing_ones
        draining_publisher_refuses_new_batches_and_delivers_existing_jobs
        resume_ends_only_its_own_pattern;
    settings:
        queue_settings_apply_where_jobs_have_none
        changed_settings_apply_to_existing_jobs
        queue_can_be_configured_before_its_first_job;
    retention:
        ended_jobs_are_retained_for_a_day_by_default
        own_retention_of_a_job_overrides_that_of_its_queue
        ended_jobs_are_retained_up_to_a_number
        zero_retention_removes_a_job_at_its_end
        dead_letters_outlive_other_ended_jobs;
    feed:
        feed_has_every_event_of_a_job
        feed_resumes_over_a_restart
        feed_begins_now_by_default
        unrecorded_position_is_too_old;
}
