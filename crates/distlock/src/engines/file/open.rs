//! The engine's row: `file:///dir`, and the default directory.

use std::path::PathBuf;

#[cfg(target_os = "linux")]
use crate::contract::{BoxFuture, DynBackend};
#[cfg(target_os = "linux")]
use crate::engines::file::{FileBackend, default_dir, examine};
use crate::engines::shared::row::{EngineAddress, EngineRow, Scheme, WithoutUrl};
#[cfg(target_os = "linux")]
use crate::engines::shared::settings::EngineSettings;
use crate::engines::shared::url_parts::UrlParts;
use crate::types::error::Result;
#[cfg(target_os = "linux")]
use crate::types::finding::Finding;

pub(crate) static ROW: EngineRow = EngineRow {
    name: "file",
    feature: None,
    needs_runtime: false,
    needs_username: false,
    schemes: &[Scheme { name: "file", tls: false, allows_at_in_path: true, options: &[], read: FileAddress::read }],
    without_url: WithoutUrl::Default(|| Box::new(FileAddress { dir: None })),
};

/// A directory of this machine; `None`: the default one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileAddress {
    pub(crate) dir: Option<PathBuf>,
}

impl FileAddress {
    fn read(url: &mut UrlParts<'_>) -> Result<Box<dyn EngineAddress>, String> {
        url.no_hosts("file:///dir")?;
        Ok(Box::new(FileAddress { dir: Some(url.file()?) }))
    }
}

impl EngineAddress for FileAddress {
    fn row(&self) -> &'static EngineRow {
        &ROW
    }

    #[cfg(target_os = "linux")]
    fn open(&self, settings: &EngineSettings) -> Result<Box<dyn DynBackend>> {
        settings.refuse_prefix(ROW.name)?;
        let backend = match &self.dir {
            Some(dir) => FileBackend::in_dir(dir)?,
            None => FileBackend::host(default_dir()?),
        };
        Ok(Box::new(backend))
    }

    #[cfg(target_os = "linux")]
    fn examine<'a>(&'a self, _: &'a EngineSettings) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(async {
            let dir = self.dir.clone().map_or_else(default_dir, Ok)?;
            Ok(examine(&dir))
        })
    }
}
