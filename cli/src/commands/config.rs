//! `longshore config`: the effective configuration, with the origin of each value.

use serde_json::{Map, Value, json};

use super::Context;
use crate::config::{Row, rows};
use crate::output::Table;

pub(crate) fn run(check: bool, mut context: Context) -> anyhow::Result<()> {
    let config = &context.config;
    config.check_services()?;
    if check {
        return Ok(());
    }
    let mut rows = rows(config);
    if let Some(file) = &config.file {
        let value = json!(file.value.display().to_string());
        rows.insert(0, Row { key: "file", value, origin: file.origin.to_string() });
    }
    if context.output.is_json() {
        let values = rows.into_iter().map(|Row { key, value, origin }| {
            (key.to_owned(), json!({ "value": value, "from": origin }))
        });
        context.output.json_pretty(&Value::Object(values.collect::<Map<_, _>>()))?;
        return Ok(());
    }
    let mut table = Table::new(&["key", "value", "from"]);
    for row in rows {
        table.row([row.key.to_owned(), row.text(), row.origin]);
    }
    context.output.table(&table)?;
    Ok(())
}
