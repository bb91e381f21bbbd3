//! The engine's row: `mem://` and `mem://name`.

use crate::contract::{BoxFuture, DynBackend};
use crate::engines::memory::{Memory, Store};
use crate::engines::shared::row::{EngineAddress, EngineRow, Scheme, WithoutUrl};
use crate::engines::shared::settings::EngineSettings;
use crate::engines::shared::url_parts::UrlParts;
use crate::types::error::Result;
use crate::types::finding::Finding;

pub(crate) static ROW: EngineRow = EngineRow {
    name: "memory",
    feature: None,
    needs_runtime: false,
    needs_username: false,
    schemes: &[Scheme { name: "mem", tls: false, allows_at_in_path: false, options: &[], read: MemoryAddress::read }],
    without_url: WithoutUrl::Default(|| Box::new(MemoryAddress { name: None })),
};

/// A store inside this process; those of the same name are shared.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MemoryAddress {
    pub(crate) name: Option<String>,
}

impl MemoryAddress {
    fn read(url: &mut UrlParts<'_>) -> Result<Box<dyn EngineAddress>, String> {
        if !matches!(url.path, "" | "/") {
            return Err("a path where none belongs; write mem://name".into());
        }
        if !url.hosts.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
            return Err("the name has a character other than letters, digits, '-', '.' and '_'".into());
        }
        let name = Some(url.hosts.to_owned()).filter(|name| !name.is_empty());
        Ok(Box::new(MemoryAddress { name }))
    }
}

impl EngineAddress for MemoryAddress {
    fn row(&self) -> &'static EngineRow {
        &ROW
    }

    fn open(&self, settings: &EngineSettings) -> Result<Box<dyn DynBackend>> {
        settings.refuse_prefix(ROW.name)?;
        Ok(Box::new(Memory::on(&Store::public(self.name.as_deref()))))
    }

    fn examine<'a>(&'a self, _: &'a EngineSettings) -> BoxFuture<'a, Result<Vec<Finding>>> {
        let scope = Finding::note("scope", "memory", "locks end with this process, and no other process sees them");
        Box::pin(async { Ok(vec![scope]) })
    }
}
