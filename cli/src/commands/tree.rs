//! `longshore directory tree`: the directory below a path, one line per path, indented by depth.

use std::collections::BTreeMap;

use longshore::{Glob, Listing, Path, PathListed, ReadClient};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Context, ls, warn_if_incomplete};
use crate::arguments::Tree;
use crate::output::Table;

/// Concurrent list requests.
const LISTINGS_AT_ONCE: usize = 8;

pub(crate) async fn run(arguments: Tree, mut context: Context) -> anyhow::Result<()> {
    let client = context.read_client();
    let top = arguments.path.unwrap_or_else(Path::root);
    let listing = match arguments.depth {
        Some(depth) => level_by_level(&client, &top, depth).await?,
        None => client.list_matching(vec![below(&top)?]).await?,
    };
    ls::note_if_nothing_is_published(&listing.paths, &context).await;
    let tree = tree(&top, listing.paths);
    let depth = |path: &Path| path.depth() - top.depth();
    if context.output.is_json() {
        let paths = tree.values().map(|listed| {
            let mut value = ls::json(listed);
            value["depth"] = Value::from(depth(&listed.path));
            value
        });
        let paths: Vec<Value> = paths.collect();
        let (path, complete) = (top.as_str(), listing.complete);
        let all = json!({ "path": path, "complete": complete, "paths": paths });
        context.output.json_pretty(&all)?;
        return Ok(());
    }
    let mut table = Table::new(&["path", "is"]);
    for listed in tree.values() {
        let name = listed.path.segments().next_back().unwrap_or_default();
        let indent = "  ".repeat(depth(&listed.path).saturating_sub(1));
        table.row([format!("{indent}{name}"), ls::what_is(listed)]);
    }
    context.output.table(&table)?;
    warn_if_incomplete(listing.complete);
    Ok(())
}

fn below(top: &Path) -> anyhow::Result<Glob> {
    let text = if top.is_root() { "/**".to_owned() } else { format!("{top}/**") };
    Ok(Glob::new(&text)?)
}

/// Lists at most `depth` levels below a path. Only listing a path shows whether it has children.
async fn level_by_level(client: &ReadClient, top: &Path, depth: u8) -> anyhow::Result<Listing> {
    let mut all = Listing { complete: true, ..Listing::default() };
    let mut level = vec![top.clone()];
    for _ in 0..depth {
        let mut next = Vec::new();
        for some in level.chunks(LISTINGS_AT_ONCE) {
            let mut requests = JoinSet::new();
            for path in some {
                let (client, path) = (client.clone(), path.clone());
                requests.spawn(async move { client.list(path).await });
            }
            for listing in requests.join_all().await {
                let listing = listing?;
                all.complete &= listing.complete;
                next.extend(listing.paths.iter().map(|listed| listed.path.clone()));
                all.paths.extend(listing.paths);
            }
        }
        level = next;
    }
    Ok(all)
}

/// Sorts paths in tree order, and adds the folders above them.
fn tree(top: &Path, listed: Vec<PathListed>) -> BTreeMap<Vec<String>, PathListed> {
    let key = |path: &Path| path.segments().map(str::to_owned).collect::<Vec<_>>();
    let is_below = |path: &Path| path != top && path.is_at_or_below(top);
    let mut tree = BTreeMap::new();
    for one in listed.into_iter().filter(|one| is_below(&one.path)) {
        let mut above = one.path.parent();
        while let Some(path) = above.filter(|path| is_below(path)) {
            above = path.parent();
            let (queue, value, default) = (false, false, false);
            let folder = PathListed { path, queue, value, default };
            tree.entry(key(&folder.path)).or_insert(folder);
        }
        tree.insert(key(&one.path), one);
    }
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_precede_children_and_appear_once() {
        let queue = |text: &str| PathListed {
            path: Path::new(text).unwrap(),
            queue: true,
            value: false,
            default: false,
        };
        // Sorted as text, '/a-b' would come between '/a' and '/a/b'.
        let listed = ["/x/a/b/c", "/x/a-b", "/x/a", "/x", "/xy"].map(queue).to_vec();
        let tree = tree(&Path::new("/x").unwrap(), listed);
        let shown: Vec<_> = tree.values().map(|one| (one.path.as_str(), one.queue)).collect();
        let expected = [("/x/a", true), ("/x/a/b", false), ("/x/a/b/c", true), ("/x/a-b", true)];
        assert_eq!(shown, expected);
    }
}
