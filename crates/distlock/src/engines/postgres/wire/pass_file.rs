//! The password file of PostgreSQL's own clients: lines of `host:port:database:user:password`.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::types::secret::Secret;

/// A file that is longer is no password file.
const MOST_BYTES: u64 = 1 << 20;

/// Returns the password for a user, from `PGPASSFILE` or `~/.pgpass`. A file that others can read is ignored, as
/// PostgreSQL's own clients do.
pub(in crate::engines) fn password_for(host: &str, port: u16, database: &str, user: &str) -> Option<Secret> {
    let named = std::env::var_os("PGPASSFILE").map(PathBuf::from);
    let file = named.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pgpass")))?;
    let file = std::fs::File::open(file).ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.permissions().mode() & 0o077 != 0 {
        return None;
    }
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    let wanted = [host, &port.to_string(), database, user];
    text.lines().find_map(|line| password_in(line, wanted)).map(Secret::from)
}

/// Returns the password of a line that is about these four; `*` is about any.
fn password_in(line: &str, wanted: [&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let fields = split(line);
    let [about @ .., password] = fields.as_slice() else { return None };
    let fits = about.len() == 4 && about.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
    fits.then(|| password.clone())
}

/// Splits a line at its colons, except those behind a backslash. The password is the fifth field, colons or not.
fn split(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => fields.last_mut().into_iter().for_each(|field| field.extend(characters.next())),
            ':' if fields.len() < 5 => fields.push(String::new()),
            other => fields.last_mut().into_iter().for_each(|field| field.push(other)),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_about_its_four_fields_and_a_star_about_any() {
        let wanted = ["db", "5432", "app", "ann"];
        let password = |line| password_in(line, wanted);
        assert_eq!(password("db:5432:app:ann:secret").as_deref(), Some("secret"));
        assert_eq!(password("*:*:*:ann:a\\:b:c\\\\").as_deref(), Some("a:b:c\\"));
        for other in ["db:5432:app:bob:secret", "db:5433:*:*:x", "#db:5432:app:ann:secret", "", "db:5432:app:ann"] {
            assert_eq!(password(other), None, "{other}");
        }
    }
}
