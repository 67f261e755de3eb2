//! How much memory the process may use: that of the machine, or of its control group if less.

use std::fs::read_to_string;
use std::path::Path;

/// In bytes; none where the system does not report it.
pub(crate) fn bytes() -> Option<u64> {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| of_meminfo(&text));
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    machine.into_iter().chain(of_groups(&groups, Path::new("/sys/fs/cgroup"))).min()
}

/// The machine's total, from `/proc/meminfo`.
fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The smallest limit of the process's groups and their ancestors, as `/proc/self/cgroup` lists
/// them. Version 2 has one hierarchy, in which `memory.max` may be `max`; version 1 has one for
/// memory, in which a huge number stands for no limit.
fn of_groups(text: &str, root: &Path) -> Option<u64> {
    let limits = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group = root.join(group.trim_start_matches('/'));
        // In a container the path may be the host's: the group's own files then lie at the root.
        let above = group.ancestors().take_while(|dir| dir.starts_with(&root));
        let limit = |dir: &Path| read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
        above.filter_map(limit).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_memory_is_read_from_meminfo() {
        let text = "MemTotal:       24651364 kB\nMemFree:         1000 kB\n";
        assert_eq!(of_meminfo(text), Some(24_651_364 * 1024));
        assert_eq!(of_meminfo("MemFree: 1 kB\n"), None);
        assert_eq!(of_meminfo("MemTotal: 18446744073709551615 kB\n"), None);
        assert!(bytes().is_some_and(|bytes| bytes > 1 << 20), "of this machine");
    }

    #[test]
    fn smallest_limit_of_a_group_and_its_ancestors_counts() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("system.slice/longshore.service/memory.max", "max\n");
        write("system.slice/memory.max", "1073741824\n");
        let version_2 = "0::/system.slice/longshore.service\n";
        assert_eq!(of_groups(version_2, dir.path()), Some(1 << 30));
        assert_eq!(of_groups("0::/elsewhere\n", dir.path()), None);
        write("memory/docker/memory.limit_in_bytes", "536870912\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        let version_1 = "4:cpu,cpuacct:/docker\n3:memory:/docker\n";
        assert_eq!(of_groups(version_1, dir.path()), Some(512 << 20));
        // A container that sees only its own files.
        assert_eq!(of_groups("3:memory:/host/7\n", dir.path()), Some(9_223_372_036_854_771_712));
        assert_eq!(of_groups("nonsense", dir.path()), None);
    }
}
