//! Tables of kinds: from a name and its options to what they make.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::core::error::{NnError, Result};

/// `path.key`.
pub(super) fn join(path: &str, key: &str) -> String {
    match (path, key) {
        ("", _) => key.to_string(),
        (_, "" | ".") => path.to_string(),
        _ if key.starts_with('[') => format!("{path}{key}"),
        _ => format!("{path}.{key}"),
    }
}

/// A value of a known type. Errors: [`NnError::Config`] with its path, what was expected and what is there.
pub(super) fn read<T: DeserializeOwned>(path: &str, value: Value) -> Result<T> {
    serde_path_to_error::deserialize(value)
        .map_err(|e| NnError::config(join(path, &e.path().to_string()), e.inner().to_string()))
}

/// The keys of an object.
pub(super) fn object(path: &str, value: Value, expected: &str) -> Result<Map<String, Value>> {
    match value {
        Value::Object(keys) => Ok(keys),
        v => Err(NnError::config(path, format!("invalid type: expected {expected}, got {v}"))),
    }
}

/// One kind: its name, its options, and what makes it of them.
pub(super) struct Row<T> {
    pub(super) name: &'static str,
    pub(super) keys: &'static [&'static str],
    pub(super) read: fn(&str, Value) -> Result<T>,
}

/// Names of a table, in its order.
pub(super) fn names<T>(table: &[Row<T>]) -> Vec<&'static str> {
    table.iter().map(|r| r.name).collect()
}

/// Error unless all keys are known.
pub(super) fn check_keys(path: &str, keys: &Map<String, Value>, known: &[&str], of: &str) -> Result<()> {
    let Some(key) = keys.keys().find(|k| !known.contains(&k.as_str())) else { return Ok(()) };
    let known = if known.is_empty() { "none".into() } else { known.join(", ") };
    Err(NnError::config(join(path, key), format!("unknown field `{key}` of `{of}`; known are {known}")))
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
        let known = names(table).join(", ");
        return Err(NnError::config(at, format!("expected {what}, got `{name}`; known are {known}")));
    };
    check_keys(path, &keys, row.keys, row.name)?;
    Ok((row.name, (row.read)(path, Value::Object(keys))?))
}

/// Numbers that an option may have.
pub(super) struct Limit {
    pub(super) ok: fn(f64) -> bool,
    pub(super) says: &'static str,
}

/// Above 0.
pub(super) const POSITIVE: Limit = Limit { ok: |x| x > 0.0 && x.is_finite(), says: "a value above 0" };
/// At least 0.
pub(super) const NOT_NEGATIVE: Limit =
    Limit { ok: |x| x >= 0.0 && x.is_finite(), says: "a value of at least 0" };
/// Decays.
pub(super) const BELOW_ONE: Limit = Limit { ok: |x| (0.0..1.0).contains(&x), says: "a value in [0, 1)" };
/// Probabilities.
pub(super) const SHARE: Limit = Limit { ok: |x| (0.0..=1.0).contains(&x), says: "a value in [0, 1]" };
/// Neither end of the unit interval.
pub(super) const BETWEEN: Limit = Limit { ok: |x| x > 0.0 && x < 1.0, says: "a value between 0 and 1" };
/// Counts.
pub(super) const COUNT: Limit = Limit { ok: |x| x >= 1.0, says: "at least 1" };
/// No infinity.
pub(super) const FINITE: Limit = Limit { ok: f64::is_finite, says: "a finite number" };

/// What a [`Limit`] can be held against.
pub(super) trait Numbers {
    fn numbers(&self) -> Vec<f64>;
}

impl Numbers for f64 {
    fn numbers(&self) -> Vec<f64> {
        vec![*self]
    }
}

impl Numbers for u64 {
    fn numbers(&self) -> Vec<f64> {
        vec![*self as f64]
    }
}

impl Numbers for u32 {
    fn numbers(&self) -> Vec<f64> {
        vec![(*self).into()]
    }
}

impl Numbers for usize {
    fn numbers(&self) -> Vec<f64> {
        vec![*self as f64]
    }
}

impl<T: Numbers> Numbers for Option<T> {
    fn numbers(&self) -> Vec<f64> {
        self.iter().flat_map(T::numbers).collect()
    }
}

impl<T: Numbers> Numbers for Vec<T> {
    fn numbers(&self) -> Vec<f64> {
        self.iter().flat_map(T::numbers).collect()
    }
}

impl<T: Numbers, const N: usize> Numbers for [T; N] {
    fn numbers(&self) -> Vec<f64> {
        self.iter().flat_map(T::numbers).collect()
    }
}

/// Error unless all numbers are within the limit.
pub(super) fn within(path: &str, key: &str, x: &impl Numbers, limit: &Limit) -> Result<()> {
    match x.numbers().into_iter().find(|&x| !(limit.ok)(x)) {
        Some(bad) => Err(NnError::config(join(path, key), format!("expected {}, got {bad}", limit.says))),
        None => Ok(()),
    }
}

/// An option that was given, or its default. Errors: neither.
pub(super) fn given<T>(path: &str, key: &str, value: Option<T>, default: Option<fn() -> T>) -> Result<T> {
    match (value, default) {
        (Some(v), _) => Ok(v),
        (None, Some(d)) => Ok(d()),
        (None, None) => Err(NnError::config(join(path, key), "is missing")),
    }
}

/// The default of an option in [`row`].
macro_rules! default {
    () => {
        None
    };
    ($d:expr) => {
        Some(|| $d)
    };
}
pub(super) use default;

/// A row of a table: `"name" { option: type = default, LIMIT; .. } |path| what it makes`, with the options as variables. Options without a
/// default are required.
macro_rules! row {
    ($name:literal { $($key:ident : $t:ty $(= $default:expr)? $(, $limit:ident)?;)* } |$path:ident| $body:expr) => {
        $crate::train::config::kind::Row {
            name: $name,
            keys: &[$(stringify!($key)),*],
            read: |$path, options| {
                #[derive(serde::Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Options {
                    $($key: Option<$t>,)*
                }
                #[allow(unused_variables)]
                let o: Options = $crate::train::config::kind::read($path, options)?;
                $(
                    let $key: $t = $crate::train::config::kind::given(
                        $path, stringify!($key), o.$key, $crate::train::config::kind::default!($($default)?),
                    )?;
                    $($crate::train::config::kind::within($path, stringify!($key), &$key, &$limit)?;)?
                )*
                Ok($body)
            },
        }
    };
}
pub(super) use row;
