//! Reads the needed parts of a Cargo.toml.

/// Returns the keys of `[section]`, in order.
pub(crate) fn keys<'a>(text: &'a str, section: &str) -> Vec<&'a str> {
    entries(text, section).map(|(key, _)| key).collect()
}

/// Returns the package's name.
pub(crate) fn package_name(text: &str) -> Option<&str> {
    value(text, "package", "name")
}

/// Returns the text of a key.
pub(crate) fn value<'a>(text: &'a str, section: &str, key: &str) -> Option<&'a str> {
    entries(text, section).find(|(name, _)| *name == key).map(|(_, value)| value.trim_matches('"'))
}

fn entries<'a>(text: &'a str, section: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let header = format!("[{section}]");
    let body = text.lines().skip_while(move |line| line.trim() != header).skip(1);
    // The continuation lines of a value are indented, or are a bracket at the margin: no key begins so.
    body.take_while(|line| !line.starts_with('['))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[package]\nname = \"distlock\"\n\n[features]\ndefault = [\"config\"]\n## Why.\nconfig = [\n    \
                        \"dep:toml\",\n]\ntls = []\n\n[dependencies]\nserde = \"1\"\n";

    #[test]
    fn features_and_the_name_are_found() {
        assert_eq!(keys(TEXT, "features"), ["default", "config", "tls"]);
        assert_eq!(package_name(TEXT), Some("distlock"));
    }

    #[test]
    fn a_missing_section_has_no_keys() {
        assert_eq!(keys(TEXT, "lints"), [""; 0]);
        assert_eq!(package_name("[lints]\n"), None);
    }
}
