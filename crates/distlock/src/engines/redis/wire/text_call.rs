//! A script whose reply is one string.

use redis::{Cmd, Value};

use crate::engines::redis::protocol::script::{Script, garbled};
use crate::engines::redis::wire::connection::{Connection, Failure};
use crate::engines::redis::wire::socket::NoReply;
use crate::types::error::{Error, Result};

/// Room for the script's hash and the words before it.
const SCRIPT_ARGS: usize = 2;
const SCRIPT_BYTES: usize = 48;

impl Connection {
    /// Runs a script that replies with one string; `fill` adds the number of keys, the keys and the arguments, for which there
    /// is `room`: how many they are and how many bytes they have. The reply begins with `echo`, which no other request has.
    /// Returns what stands behind it.
    ///
    /// The script is sent as text if the server may not know it (`is_first`): a server that does not know its hash carries
    /// out nothing, and that reply may be lost. The request is not repeated: its caller may be gone.
    pub(in crate::engines) async fn run_text(
        &self,
        script: &Script,
        is_first: bool,
        echo: &str,
        room: (usize, usize),
        fill: impl FnOnce(&mut Cmd),
    ) -> Result<String> {
        let mut call = Cmd::with_capacity(room.0 + SCRIPT_ARGS, room.1 + SCRIPT_BYTES);
        script.begin(&mut call, self.dialect, is_first);
        fill(&mut call);
        let reply = self.take_text(self.socket.send(&call).await);
        let mut text = reply.map_err(|failure| failure.of(script.name, &self.place))?;
        if !text.starts_with(echo) {
            let error = Error::unknown("redis: an answer to another question; the connection is not used any more");
            self.distrust(&error);
            return Err(error);
        }
        text.drain(..echo.len());
        Ok(text)
    }

    fn take_text(&self, reply: std::result::Result<Value, NoReply>) -> std::result::Result<String, Failure> {
        match self.replied(reply)? {
            Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|_| Failure::Garbled),
            _ => {
                self.distrust(&garbled());
                Err(Failure::Garbled)
            }
        }
    }
}
