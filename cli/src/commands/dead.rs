//! `longshore dead`: the dead letters.

use longshore::protocol::messages::work::Action;
use longshore::{Glob, JobState};

use super::{Context, act, job, jobs};
use crate::arguments::{Dead, DeadAction};

pub(crate) async fn run(arguments: Dead, mut context: Context) -> anyhow::Result<()> {
    match arguments.action {
        DeadAction::Ls { pattern, limit } => {
            let pattern = pattern.unwrap_or_else(Glob::everything);
            jobs::list(pattern, Some(JobState::Dead), limit, context).await
        }
        DeadAction::Show { id } => {
            let found = context.queues().job(&id).await?;
            if found.job.state != JobState::Dead {
                anyhow::bail!("job {id} is {}, not dead", found.job.state);
            }
            job::show(&found, &mut context)
        }
        DeadAction::Revive(selected) => {
            act::run(Action::Revive, selected, Some(JobState::Dead), context).await
        }
        DeadAction::Drop(selected) => {
            act::run(Action::Drop, selected, Some(JobState::Dead), context).await
        }
    }
}
