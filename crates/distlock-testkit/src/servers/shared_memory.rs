//! Segments of shared memory that killed PostgreSQL servers leave behind. A machine has room for 4096 of them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The size of the segment by which a server finds out that another one uses its data.
const SIZE: &str = "56";

/// Removes the segments of servers that are dead. One that is started again makes a new segment.
pub(super) fn remove_orphans() {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let is_alive = |pid: &str| Path::new("/proc").join(pid).exists();
    let orphans = orphans(&table, is_alive);
    if !orphans.is_empty() {
        // One of another user, or one that another test removes at the same time, is not an error.
        let ids = orphans.iter().flat_map(|id| ["-m", id]);
        let _ = Command::new("ipcrm").args(ids).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Returns the ids of the segments in the kernel's table that no process uses and whose creator is dead.
fn orphans(table: &str, is_alive: impl Fn(&str) -> bool) -> Vec<&str> {
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter_map(|row| match row[..] {
        [_key, id, _mode, SIZE, creator, _last, "0", ..] if !is_alive(creator) => Some(id),
        _ => None,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unused_segments_of_dead_servers_are_orphans() {
        let table = "       key      shmid perms size  cpid  lpid nattch   uid\n\
                     10715137 1 600 56 100 101 0 101\n\
                     10715138 2 600 56 100 101 7 101\n\
                     10715139 3 600 56 200 201 0 101\n\
                     10715140 4 600 4096 100 101 0 101\n";
        assert_eq!(orphans(table, |pid| pid == "200"), ["1"]);
        assert!(orphans("", |_| false).is_empty());
    }
}
