//! `longshore directory table`: two levels below a path as rows and columns.

use serde_json::json;

use super::{Context, warn_if_incomplete};
use crate::arguments::PathTable;
use crate::output::{Table, grouped};

pub(crate) async fn run(arguments: PathTable, mut context: Context) -> anyhow::Result<()> {
    let table = context.read_client().table(arguments.path.clone()).await?;
    if context.output.is_json() {
        let columns: Vec<_> = table
            .columns
            .iter()
            .map(|column| json!({ "name": column.name, "rows": column.rows }))
            .collect();
        context.output.json_pretty(&json!({
            "path": arguments.path.as_str(), "complete": table.complete, "rows": table.rows,
            "columns": columns,
        }))?;
        return Ok(());
    }
    let mut rows = Table::new(&["row"]);
    table.rows.iter().for_each(|row| rows.row([row.clone()]));
    context.output.table(&rows)?;
    if !table.columns.is_empty() {
        context.output.line("")?;
        let mut columns = Table::new(&["column", "rows"]);
        for column in &table.columns {
            columns.row([column.name.clone(), grouped(column.rows)]);
        }
        context.output.table(&columns)?;
    }
    warn_if_incomplete(table.complete);
    Ok(())
}
