//! The packages that a program needs at run time, read from its dynamic section.

use std::io;
use std::path::Path;

use crate::cmd::Cmd;
use crate::debian::failed;

/// A shared library, the Debian package with it, and the prefix of its symbol versions.
struct Library {
    name: &'static str,
    package: &'static str,
    versions: &'static str,
}

/// The libraries that a Rust program may need. Packing fails if the program needs another one, which a maintainer must add here with its package.
const LIBRARIES: [Library; 5] = [
    Library { name: "libc.so", package: "libc6", versions: "GLIBC_" },
    Library { name: "libm.so", package: "libc6", versions: "GLIBC_" },
    Library { name: "libpthread.so", package: "libc6", versions: "GLIBC_" },
    Library { name: "ld-linux", package: "libc6", versions: "GLIBC_" },
    Library { name: "libgcc_s.so", package: "libgcc-s1", versions: "GCC_" },
];

/// Returns the value of the field Depends for a program.
pub(super) fn of(program: &Path) -> io::Result<String> {
    let path = program.to_string_lossy();
    let readelf = |option: &str| {
        let cmd = Cmd::new("readelf").args(&[option, "--wide", &path]);
        cmd.output().ok_or_else(|| failed(format!("{cmd} failed")))
    };
    depends(&readelf("--dynamic")?, &readelf("--version-info")?).map_err(failed)
}

/// Returns each package once, with the newest version of a symbol that the program uses.
fn depends(dynamic: &str, versions: &str) -> Result<String, String> {
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let names = needed.filter_map(|line| line.split_once('[')?.1.split(']').next());
    let mut packages: Vec<String> = Vec::new();
    for name in names {
        let library = LIBRARIES.iter().find(|library| name.starts_with(library.name));
        let library = library.ok_or_else(|| format!("no package is known for {name}"))?;
        let package = match newest(versions, library.versions) {
            Some(version) => format!("{} (>= {version})", library.package),
            None => library.package.to_owned(),
        };
        if !packages.contains(&package) {
            packages.push(package);
        }
    }
    packages.sort();
    Ok(packages.join(", "))
}

/// Returns the newest of the versions with a prefix: `Name: GLIBC_2.34`. The last number is left out when it is 0.
fn newest(versions: &str, prefix: &str) -> Option<String> {
    let words = versions.split_whitespace().filter_map(|word| word.strip_prefix(prefix));
    let numbers = |word: &str| word.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().ok();
    let mut newest = words.filter_map(numbers).max()?;
    if newest.len() > 2 && newest.last() == Some(&0) {
        newest.pop();
    }
    Some(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DYNAMIC: &str = "0x01 (NEEDED) Shared library: [libgcc_s.so.1]\n0x01 (NEEDED) Shared library: [libm.so.6]\n\
                           0x01 (NEEDED) Shared library: [libc.so.6]\n0x0e (SONAME) Library: [x]\n";

    #[test]
    fn each_package_is_named_once_with_the_newest_symbol() {
        let versions =
            "Name: GLIBC_2.9  Flags: none\nName: GLIBC_2.34\nName: GLIBC_2.2.5\nName: GCC_3.0\nName: GCC_4.2.0\n";
        assert_eq!(depends(DYNAMIC, versions).as_deref(), Ok("libc6 (>= 2.34), libgcc-s1 (>= 4.2)"));
        assert_eq!(depends(DYNAMIC, "").as_deref(), Ok("libc6, libgcc-s1"));
    }

    #[test]
    fn an_unknown_library_is_refused() {
        let dynamic = "0x01 (NEEDED) Shared library: [libssl.so.3]\n";
        assert_eq!(depends(dynamic, "").unwrap_err(), "no package is known for libssl.so.3");
    }
}
