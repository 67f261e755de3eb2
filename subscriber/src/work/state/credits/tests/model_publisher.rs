//! A simulated publisher for the tests of credits.

use std::collections::VecDeque;

use super::super::*;

/// Delivers while it has jobs and credits, and reports its backlog once, as the real state machine
/// does. Messages and deliveries have independent delays.
#[derive(Clone, Default)]
pub(super) struct ModelPublisher {
    pub(super) jobs: u32,
    pub(super) credits: u32,
    pub(super) wait_unreported: bool,
    pub(super) to: VecDeque<CreditMessage>,
    pub(super) to_worker: VecDeque<CreditMessage>,
    pub(super) deliveries: VecDeque<u32>,
    pub(super) running: u32,
    /// Its jobs never end.
    pub(super) is_stuck: bool,
}

impl ModelPublisher {
    pub(super) fn with_jobs(jobs: u32) -> ModelPublisher {
        ModelPublisher { jobs, wait_unreported: true, ..ModelPublisher::default() }
    }

    pub(super) fn receive(&mut self, one: CreditMessage) {
        match one {
            CreditMessage::Grant(_, n) => {
                self.credits += n;
                self.wait_unreported = false;
            }
            CreditMessage::Recall(id, n) => {
                let back = n.min(self.credits);
                self.credits -= back;
                self.wait_unreported |= back > 0 && self.credits == 0;
                self.to_worker.push_back(CreditMessage::Recall(id, back));
            }
        }
    }

    /// Delivers jobs, and reports a backlog.
    pub(super) fn serve(&mut self, id: SubscriptionKey) {
        let delivered = self.jobs.min(self.credits);
        if delivered > 0 {
            self.jobs -= delivered;
            self.credits -= delivered;
            self.wait_unreported |= self.credits == 0;
            self.deliveries.push_back(delivered);
        }
        if self.wait_unreported && self.jobs > 0 {
            self.wait_unreported = false;
            self.to_worker.push_back(CreditMessage::Grant(id, self.jobs));
        }
    }

    /// Makes the next possible step; false if there is none.
    pub(super) fn step(
        &mut self,
        id: SubscriptionKey,
        which: u8,
        credits: &mut Credits,
        messages: &mut Vec<CreditMessage>,
    ) -> bool {
        for nth in 0..4 {
            match (which % 4 + nth) % 4 {
                0 if !self.to.is_empty() => {
                    while let Some(one) = self.to.pop_front() {
                        self.receive(one);
                        self.serve(id);
                    }
                }
                1 => match self.to_worker.pop_front() {
                    Some(CreditMessage::Grant(id, jobs)) => {
                        credits.waiting(id, jobs.into(), messages)
                    }
                    Some(CreditMessage::Recall(id, back)) => credits.returned(id, back, messages),
                    None => continue,
                },
                2 => match self.deliveries.pop_front() {
                    Some(jobs) => {
                        credits.delivered(id, jobs);
                        self.running += jobs;
                    }
                    None => continue,
                },
                3 if self.running > 0 && !self.is_stuck => {
                    let done = self.running.min(1 + u32::from(which));
                    self.running -= done;
                    credits.freed(id, done, messages);
                }
                _ => continue,
            }
            return true;
        }
        false
    }
}
