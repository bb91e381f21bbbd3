//! The locks that ancestors of this process hold, as they say in the environment.
//!
//! `DISTLOCK_CHAIN` lists them, outermost first, as `token@engine#name` with `%XX` for what would be taken for a
//! separator. Only the chain shows all of them: the other variables are about the innermost.

use distlock::{FencingToken, Key};

/// The variable with the chain.
pub const CHAIN: &str = "DISTLOCK_CHAIN";

/// One lock of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The engine's URL, without secrets.
    pub engine: String,
    /// The lock.
    pub name: String,
    /// The token it was granted with.
    pub token: FencingToken,
}

/// The locks that ancestors held when they started us. Whether they still do is for the engine to say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ancestry(Vec<Held>);

impl Ancestry {
    /// Reads the chain; what cannot be read is skipped, since anybody may set a variable.
    #[must_use]
    pub fn parse(chain: &str) -> Ancestry {
        Ancestry(chain.split(' ').filter_map(parse_link).collect())
    }

    /// The tokens with which ancestors hold `name`, if they still hold it.
    #[must_use]
    pub fn tokens(&self, engine: &str, name: &Key) -> Vec<FencingToken> {
        let held = self.0.iter().filter(|held| held.engine == engine && held.name == name.as_str());
        held.map(|held| held.token).collect()
    }

    /// The chain for a child that runs under one more lock.
    #[must_use]
    pub fn with(&self, held: Held) -> Ancestry {
        Ancestry(self.0.iter().cloned().chain([held]).collect())
    }
}

impl std::fmt::Display for Ancestry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, Held { engine, name, token }) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{token}@{}#{}", escape(engine), escape(name))?;
        }
        Ok(())
    }
}

fn parse_link(link: &str) -> Option<Held> {
    let (token, rest) = link.split_once('@')?;
    let (engine, name) = rest.split_once('#')?;
    Some(Held { engine: unescape(engine)?, name: unescape(name)?, token: token.parse().ok()? })
}

fn escape(text: &str) -> String {
    text.replace('%', "%25").replace(' ', "%20").replace('#', "%23")
}

fn unescape(text: &str) -> Option<String> {
    let bytes = Key::new(text).ok()?.unescape();
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(engine: &str, name: &str, token: u64) -> Held {
        Held { engine: engine.into(), name: name.into(), token: FencingToken::new(token) }
    }

    #[test]
    fn a_chain_of_odd_names_survives_the_environment() {
        let chain = Ancestry::default()
            .with(held("redis://u@h/0", "a b#c%20@d", 7))
            .with(held("file:///run/x", "日本", 8))
            .with(held("file:///run/x", "a", u64::MAX));
        let read = Ancestry::parse(&chain.to_string());
        assert_eq!(read, chain);
        let tokens = read.tokens("redis://u@h/0", &Key::new("a b#c%20@d").unwrap());
        assert_eq!(tokens, [FencingToken::new(7)]);
        assert_eq!(read.tokens("file:///run/x", &Key::new("a b#c%20@d").unwrap()), [], "another engine");
        let twice = read.with(held("file:///run/x", "a", 9));
        let tokens = twice.tokens("file:///run/x", &Key::new("a").unwrap());
        assert_eq!(tokens, [FencingToken::new(u64::MAX), FencingToken::new(9)], "two permits of a semaphore");
    }

    #[test]
    fn nonsense_in_the_variable_is_skipped() {
        for text in ["", " ", "x", "7@", "7@a", "seven@a#b", "@#", "7@a#%FF"] {
            assert_eq!(Ancestry::parse(text), Ancestry::default(), "{text:?}");
        }
        assert_eq!(Ancestry::parse("junk 7@a#b").tokens("a", &Key::new("b").unwrap()), [FencingToken::new(7)]);
    }
}
