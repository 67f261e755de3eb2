//! Large pages of memory, for the services that hold much.
//!
//! A publisher with ten million jobs looks at a few places of a gigabyte for each of them. With pages of 4 KiB nearly every look costs a
//! second one, at where the page is; with pages of 2 MiB hardly any does: a quarter less processor time for each job. Where the system
//! gives large pages only to who asks (`madvise` in `/sys/kernel/mm/transparent_hugepage/enabled`), glibc asks for all memory that it
//! hands out if `GLIBC_TUNABLES` says so, and it reads that before the program begins: so the program begins once more. Its process
//! stays the same.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Where glibc is told; whoever has set it has decided.
const TUNABLES: &str = "GLIBC_TUNABLES";
const ASK: &str = "glibc.malloc.hugetlb=1";

/// Has the program begin once more with large pages, unless it did, or its surroundings have their own mind. Returns if it goes on
/// without them.
pub(crate) fn begin_again_with() {
    if !cfg!(all(target_os = "linux", target_env = "gnu")) || std::env::var_os(TUNABLES).is_some() {
        return;
    }
    let mut arguments = std::env::args_os();
    if let (Some(name), Ok(program)) = (arguments.next(), std::env::current_exe()) {
        // Returns only if it failed; then pages stay small.
        let _ = Command::new(program).arg0(name).args(arguments).env(TUNABLES, ASK).exec();
    }
}
