//! `longshore config`: the effective configuration, with the origin of each value, and all that is
//! wrong with it.

use serde_json::{Map, Value, json};

use super::Context;
use crate::config::{Problem, Row, rows};
use crate::failure::{Failure, FailureKind};
use crate::output::Table;

pub(crate) fn run(check: bool, mut context: Context) -> anyhow::Result<()> {
    let problems = std::mem::take(&mut context.problems);
    if !check {
        show(&problems, &mut context)?;
    }
    let mut messages: Vec<String> = problems.into_iter().map(|problem| problem.message).collect();
    let Some(last) = messages.pop() else { return Ok(()) };
    for message in messages {
        report_error!("{message}");
    }
    Err(Failure::new(FailureKind::Configuration, last).into())
}

fn show(problems: &[Problem], context: &mut Context) -> anyhow::Result<()> {
    let mut rows = rows(&context.config);
    if let Some(file) = &context.config.file {
        let value = json!(file.value.display().to_string());
        rows.insert(0, Row { key: "file", value, origin: file.origin.to_string() });
    }
    let problem_of = |key: &str| problems.iter().find(|one| one.key.as_deref() == Some(key));
    if context.output.is_json() {
        let values = rows.into_iter().map(|Row { key, value, origin }| {
            let shown = match problem_of(key) {
                None => json!({ "value": value, "from": origin }),
                Some(problem) => {
                    json!({ "value": null, "from": problem.origin, "error": problem.message })
                }
            };
            (key.to_owned(), shown)
        });
        context.output.json_pretty(&Value::Object(values.collect::<Map<_, _>>()))?;
        return Ok(());
    }
    let mut table = Table::new(&["key", "value", "from"]);
    for row in rows {
        match problem_of(row.key) {
            None => table.row([row.key.to_owned(), row.text(), row.origin]),
            Some(problem) => {
                table.row([row.key.to_owned(), "(invalid)".to_owned(), problem.origin.clone()]);
            }
        }
    }
    context.output.table(&table)?;
    Ok(())
}
