//! Tables of kinds: from a name and its options to what they make.

use serde_json::{Map, Value};

use crate::core::error::{NnError, Result};
use crate::core::options::{Key, join, known, object};

/// One kind: its name, its options, and what makes it of them.
pub(super) struct Row<T> {
    pub(super) name: &'static str,
    pub(super) keys: &'static [Key],
    pub(super) read: fn(&str, Map<String, Value>) -> Result<T>,
}

/// Names of a table, in its order.
pub(super) fn names<T>(table: &[Row<T>]) -> Vec<&'static str> {
    table.iter().map(|r| r.name).collect()
}

/// Names of a table with the options of each, in its order.
pub(super) fn kinds<T>(table: &[Row<T>]) -> Vec<(&'static str, &'static [Key])> {
    table.iter().map(|r| (r.name, r.keys)).collect()
}

/// `{ "type": name, options }`, or the name alone, looked up in a table. Errors: an unknown type or option, a value that does not fit.
pub(super) fn kind<T>(
    path: &str,
    what: &str,
    json: Value,
    table: &'static [Row<T>],
) -> Result<(&'static str, T)> {
    let mut keys = match json {
        Value::String(name) => Map::from_iter([("type".to_string(), Value::String(name))]),
        json => object(path, json, &format!("the name of {what} or an object with a `type`"))?,
    };
    let at = join(path, "type");
    let name = match keys.remove("type") {
        Some(Value::String(name)) => name,
        Some(v) => {
            return Err(NnError::config(at, format!("invalid type: expected the name of {what}, got {v}")));
        }
        None => return Err(NnError::config(at, "is missing")),
    };
    let Some(row) = table.iter().find(|r| r.name == name) else {
        let what = format!("expected {what}, got `{name}`; {}", known(&name, names(table)));
        return Err(NnError::config(at, what));
    };
    Ok((row.name, (row.read)(path, keys)?))
}

/// A row of a table: `"name" { option: type = default, LIMIT; .. } |path| what it makes`, with the [options](crate::core::options::options)
/// as variables. What is `null` has its default.
macro_rules! row {
    ($name:literal { $($key:ident : $t:ty $(= $default:expr)? $(, $limit:ident)?;)* } |$path:ident| $body:expr) => {{
        $crate::core::options::options!(Options { $($key: $t $(= $default)? $(, $limit)?;)* });
        $crate::train::config::kind::Row {
            name: $name,
            keys: Options::KEYS,
            read: |$path, mut keys| {
                $crate::core::options::drop_nulls(&mut keys);
                let Options { $($key,)* } = Options::take($path, $name, keys)?;
                Ok($body)
            },
        }
    }};
}
pub(super) use row;
