//! Runs the library's own scripts in the interpreter of Redis: Lua 5.1.

use std::collections::BTreeMap;

use mlua::{Function, Lua, LuaOptions, StdLib, Table, Value, Variadic};

use crate::broken::Broken;
use crate::server::reply::Reply;

/// The functions that Redis gives to scripts, as far as ours use them.
const PRELUDE: &str = "
redis = { pcall = command }
function redis.call(...)
  local reply = command(...)
  if type(reply) == 'table' and reply.err then
    error(reply, 0)
  end
  return reply
end
return function(script)
  local is_done, reply = pcall(script)
  if is_done then
    return reply
  end
  return type(reply) == 'table' and reply or { err = 'ERR user_script: ' .. tostring(reply) }
end";

/// The interpreter and its loaded scripts.
pub(super) struct Scripts {
    lua: Lua,
    run: Function,
    known: BTreeMap<Vec<u8>, Function>,
    broken: Option<Broken>,
}

impl Scripts {
    /// Creates an interpreter whose scripts call `command`.
    pub(super) fn new(
        broken: Option<Broken>,
        command: impl Fn(&[Vec<u8>]) -> Reply + 'static,
    ) -> mlua::Result<Scripts> {
        let lua = Lua::new_with(StdLib::STRING | StdLib::TABLE | StdLib::MATH, LuaOptions::default())?;
        let call = lua.create_function(move |lua, words: Variadic<Value>| {
            let words: Vec<Vec<u8>> = words.iter().map(argument).collect();
            to_lua(lua, &command(&words))
        })?;
        lua.globals().set("command", call)?;
        let run = lua.load(PRELUDE).eval()?;
        Ok(Scripts { lua, run, known: BTreeMap::new(), broken })
    }

    /// `EVAL` and `EVALSHA`: the text or its hash, the number of keys, the keys, the arguments.
    pub(super) fn evaluate(&mut self, by_hash: bool, script: &[u8], rest: &[Vec<u8>]) -> Reply {
        let count = rest.first().and_then(|count| std::str::from_utf8(count).ok()?.parse::<usize>().ok());
        let Some(count) = count.filter(|count| *count < rest.len()) else {
            return Reply::Error("ERR Number of keys can't be greater than number of args".into());
        };
        let hash = if by_hash { script.to_vec() } else { hash_of(script) };
        if by_hash && !self.known.contains_key(&hash) {
            return Reply::Error("NOSCRIPT No matching script. Please use EVAL.".into());
        }
        let (keys, arguments) = rest[1..].split_at(count);
        let done = self.function(hash, script).and_then(|function| self.call(&function, keys, arguments));
        done.unwrap_or_else(|error| Reply::Error(format!("ERR Error compiling script: {error}")))
    }

    fn function(&mut self, hash: Vec<u8>, text: &[u8]) -> mlua::Result<Function> {
        if let Some(function) = self.known.get(&hash) {
            return Ok(function.clone());
        }
        let text = String::from_utf8_lossy(text);
        let text = self.broken.map_or_else(|| text.to_string(), |broken| broken.spoil(&text));
        let function = self.lua.load(text).set_name("@user_script").into_function()?;
        self.known.insert(hash, function.clone());
        Ok(function)
    }

    fn call(&self, function: &Function, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> mlua::Result<Reply> {
        for (name, words) in [("KEYS", keys), ("ARGV", arguments)] {
            let words = words.iter().map(|word| self.lua.create_string(word)).collect::<mlua::Result<Vec<_>>>()?;
            self.lua.globals().set(name, self.lua.create_sequence_from(words)?)?;
        }
        let answer: Value = self.run.call(function)?;
        Ok(from_lua(&answer))
    }
}

fn hash_of(text: &[u8]) -> Vec<u8> {
    redis::Script::new(&String::from_utf8_lossy(text)).get_hash().into()
}

/// Redis formats whole numbers without an exponent.
fn argument(word: &Value) -> Vec<u8> {
    match word {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => number.to_string().into_bytes(),
        other => format!("{other:?}").into_bytes(),
    }
}

fn to_lua(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    let table = |key: &str, text: &str| -> mlua::Result<Value> {
        let table = lua.create_table()?;
        table.set(key, text)?;
        Ok(Value::Table(table))
    };
    Ok(match reply {
        Reply::Nil => Value::Boolean(false),
        Reply::Int(number) => Value::Number(*number as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Status(word) => table("ok", word)?,
        Reply::Error(text) => table("err", text)?,
        Reply::Array(parts) | Reply::Push(parts) => {
            let parts = parts.iter().map(|part| to_lua(lua, part)).collect::<mlua::Result<Vec<_>>>()?;
            Value::Table(lua.create_sequence_from(parts)?)
        }
    })
}

fn from_lua(value: &Value) -> Reply {
    match value {
        Value::Boolean(true) => Reply::Int(1),
        Value::Integer(number) => Reply::Int(*number),
        // Redis truncates fractions.
        Value::Number(number) => Reply::Int(*number as i64),
        Value::String(text) => Reply::text(text.as_bytes().to_vec()),
        Value::Table(table) => from_table(table),
        _ => Reply::Nil,
    }
}

fn from_table(table: &Table) -> Reply {
    if let Ok(text) = table.get::<String>("err") {
        return Reply::Error(text);
    }
    if table.contains_key("ok").unwrap_or(false) {
        return Reply::Status("OK");
    }
    // Up to the first nil.
    Reply::Array(table.sequence_values::<Value>().map_while(Result::ok).map(|part| from_lua(&part)).collect())
}
