//! A script whose reply is one string.

use redis::{Cmd, Value};

use crate::engines::redis::protocol::script::{Script, garbled};
use crate::engines::redis::wire::connection::{Connection, Failure};
use crate::types::error::{Error, Result};

impl Connection {
    /// Runs a script that replies with one string; `fill` adds the number of keys, the keys and the arguments. The reply
    /// begins with `echo`, which no other request has. Returns what stands behind it.
    ///
    /// The script is sent as text if the server may not know it (`is_first`): a server that does not know its hash carries
    /// out nothing, and that reply may be lost.
    pub(in crate::engines) async fn run_text(
        &self,
        script: &Script,
        is_first: bool,
        echo: &str,
        fill: impl Fn(&mut Cmd),
    ) -> Result<String> {
        let call = if is_first { script.by_text(self.dialect) } else { script.by_hash(self.dialect) };
        let reply = match self.ask_text(call, &fill).await {
            // The same call on the same connection: the server carried out nothing of the first one.
            Err(failure) if failure.is_no_script() => self.ask_text(script.by_text(self.dialect), &fill).await,
            reply => reply,
        };
        let mut text = reply.map_err(|failure| failure.of(script.name, &self.place))?;
        if !text.starts_with(echo) {
            let error = Error::unknown("redis: an answer to another question; the connection is not used any more");
            self.distrust(&error);
            return Err(error);
        }
        text.drain(..echo.len());
        Ok(text)
    }

    async fn ask_text(&self, mut command: Cmd, fill: &impl Fn(&mut Cmd)) -> std::result::Result<String, Failure> {
        fill(&mut command);
        match self.ask_whole(&command).await? {
            Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|_| Failure::Garbled),
            _ => {
                self.distrust(&garbled());
                Err(Failure::Garbled)
            }
        }
    }
}
