//! The statements, each a call of one function of the schema, and their rows.

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use crate::engines::postgres::protocol::schema::Schema;
use crate::types::error::{Error, Result};

/// One claim among those of a statement.
#[derive(Debug, Clone)]
pub(in crate::engines) struct ClaimItem {
    pub(in crate::engines) name: String,
    pub(in crate::engines) attempt: String,
    pub(in crate::engines) mode: String,
    pub(in crate::engines) ttl_ms: i64,
    pub(in crate::engines) delay_ms: i64,
    /// 0: no place in the queue.
    pub(in crate::engines) beat_ms: i64,
    pub(in crate::engines) record: String,
    /// Whether the lean statement is tried first.
    pub(in crate::engines) is_lean: bool,
}

/// The reply to one claim.
#[derive(Debug)]
pub(in crate::engines) struct ClaimRow {
    pub(in crate::engines) server_us: i64,
    pub(in crate::engines) outcome: String,
    pub(in crate::engines) token: Option<i64>,
    pub(in crate::engines) slot: Option<i32>,
    pub(in crate::engines) place: Option<i32>,
    pub(in crate::engines) left_us: Option<i64>,
    pub(in crate::engines) held_us: Option<i64>,
    pub(in crate::engines) mode: Option<String>,
    pub(in crate::engines) record: Option<String>,
}

impl ClaimRow {
    /// Reads a row of the function `claim`.
    pub(in crate::engines) fn of(row: &Row) -> Result<ClaimRow> {
        Ok(ClaimRow {
            server_us: column(row, 0)?,
            outcome: column(row, 1)?,
            token: column(row, 2)?,
            slot: column(row, 3)?,
            place: column(row, 4)?,
            left_us: column(row, 5)?,
            held_us: column(row, 6)?,
            mode: column(row, 7)?,
            record: column(row, 8)?,
        })
    }
}

/// One release among those of a statement.
#[derive(Debug, Clone)]
pub(in crate::engines) struct ReleaseItem {
    pub(in crate::engines) name: String,
    pub(in crate::engines) attempt: String,
    /// Whether the lean statement is tried first.
    pub(in crate::engines) is_lean: bool,
}

/// One renewal among those of a statement.
#[derive(Debug, Clone)]
pub(in crate::engines) struct RenewItem {
    pub(in crate::engines) name: String,
    pub(in crate::engines) attempt: String,
    pub(in crate::engines) lease_ms: i64,
}

/// A statement: its text and the types of its parameters. The types are given, so that a statement is one message, and
/// needs no preparation where a pooler would lose it.
#[derive(Debug, Clone)]
pub(in crate::engines) struct Statement {
    pub(in crate::engines) text: String,
    pub(in crate::engines) types: &'static [Type],
}

/// The statements of one schema.
#[derive(Debug)]
pub(in crate::engines) struct Statements {
    pub(in crate::engines) claim: Statement,
    /// Takes a lock that is free and has no queue; returns no row otherwise.
    pub(in crate::engines) lean_claim: Statement,
    pub(in crate::engines) release: Statement,
    /// Frees a lock that has no queue; returns no row where it is not held, or has one.
    pub(in crate::engines) lean_release: Statement,
    pub(in crate::engines) renew: Statement,
    pub(in crate::engines) claim_all: Statement,
    pub(in crate::engines) amend: Statement,
    pub(in crate::engines) adopt: Statement,
    pub(in crate::engines) force_release: Statement,
    pub(in crate::engines) show: Statement,
    pub(in crate::engines) write_history: Statement,
    pub(in crate::engines) read_history: Statement,
    pub(in crate::engines) note_tick: Statement,
    pub(in crate::engines) read_ticks: Statement,
    pub(in crate::engines) list_ticks: Statement,
    pub(in crate::engines) listen_sign: Statement,
    /// Returns the schema's version and the server's clock.
    pub(in crate::engines) greet: Statement,
    /// Returns the oldest version whose clients can use the schema.
    pub(in crate::engines) compatible_from: Statement,
    pub(in crate::engines) clock: Statement,
}

const T: Type = Type::TEXT;
const TS: Type = Type::TEXT_ARRAY;
const B: Type = Type::INT8;
const BS: Type = Type::INT8_ARRAY;
const I: Type = Type::INT4;

impl Statements {
    pub(in crate::engines) fn of(schema: &Schema) -> Statements {
        let call = |function: &str, types: &'static [Type]| {
            let places: Vec<_> = (1..=types.len()).map(|number| format!("${number}")).collect();
            let text = format!("SELECT * FROM {schema}.{function}({})", places.join(", "));
            Statement { text, types }
        };
        let plain = |text: String, types: &'static [Type]| Statement { text, types };
        Statements {
            claim: call("claim", &[T, B, TS, TS, TS, BS, BS, BS, TS]),
            lean_claim: plain(
                format!(
                    "UPDATE {schema}.lean_claim SET name = $1, attempt = $2, lease_ms = $3, not_after = $4, channel = $5, \
                     record = $6 RETURNING token"
                ),
                &[T, T, B, B, T, T],
            ),
            lean_release: plain(
                format!("UPDATE {schema}.lean_release SET name = $1, attempt = $2 RETURNING is_released"),
                &[T, T],
            ),
            release: call("release", &[T, TS, TS]),
            renew: call("renew", &[TS, TS, BS]),
            claim_all: call("claim_all", &[T, B, TS, TS, BS, BS, TS]),
            amend: call("amend", &[T, T, T]),
            adopt: call("adopt", &[T, B, T, T, B, T, T, B, T]),
            force_release: call("force_release", &[T, B]),
            show: call("show", &[T, T, I]),
            write_history: call("write_history", &[TS, TS, I, I]),
            read_history: call("read_history", &[T, I, I]),
            note_tick: call("note_tick", &[T, T, T, B, Type::BOOL, T, I]),
            read_ticks: call("read_ticks", &[T, T, I]),
            list_ticks: call("list_ticks", &[T, T, T, I]),
            listen_sign: plain(format!("SELECT pg_advisory_lock({schema}._sign($1))"), &[T]),
            greet: plain(format!("SELECT {schema}.version(), {schema}._us(clock_timestamp())"), &[]),
            compatible_from: plain(format!("SELECT {schema}.compatible_from()"), &[]),
            clock: plain(format!("SELECT {schema}._us(clock_timestamp())"), &[]),
        }
    }
}

/// Returns a column of a row.
///
/// # Errors
/// Kind `Unknown`: what the server replied is not understood, so it may have done anything.
pub(in crate::engines) fn column<'a, T: FromSql<'a>>(row: &'a Row, number: usize) -> Result<T> {
    row.try_get(number).map_err(|_| garbled())
}

/// Returns the error of a reply that is not understood.
pub(in crate::engines) fn garbled() -> Error {
    Error::unknown("postgres: the reply was not understood")
}
