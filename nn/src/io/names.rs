//! Rules that turn the names of one naming scheme into those of another.

use std::collections::BTreeMap;

use crate::core::error::{Result, invalid};

/// A rule on names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Prefix(String, String),
    Exact(String, String),
    Drop(String),
}

/// Rules that turn one naming into another. They are applied one after the other, each to what the one before it gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NameMap(Vec<Rule>);

impl NameMap {
    /// Names as they are.
    pub fn new() -> Self {
        NameMap::default()
    }

    /// Replaces a prefix; an empty `from` puts `to` in front of every name.
    pub fn prefix(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.0.push(Rule::Prefix(from.into(), to.into()));
        self
    }

    /// Replaces one name.
    pub fn rename(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.0.push(Rule::Exact(from.into(), to.into()));
        self
    }

    /// Leaves out names with a prefix.
    pub fn drop(mut self, prefix: impl Into<String>) -> Self {
        self.0.push(Rule::Drop(prefix.into()));
        self
    }

    /// The new name; `None` if it is left out.
    pub fn apply(&self, name: &str) -> Option<String> {
        let mut name = name.to_string();
        for rule in &self.0 {
            match rule {
                Rule::Prefix(from, to) => {
                    if let Some(rest) = name.strip_prefix(from.as_str()) {
                        name = format!("{to}{rest}");
                    }
                }
                Rule::Exact(from, to) if name == *from => name.clone_from(to),
                Rule::Drop(prefix) if name.starts_with(prefix.as_str()) => return None,
                _ => {}
            }
        }
        Some(name)
    }

    /// New names with their old ones. Errors: two names that become one.
    pub(crate) fn apply_all<'a>(
        &self,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<BTreeMap<String, &'a str>> {
        let mut out = BTreeMap::new();
        for old in names {
            let Some(new) = self.apply(old) else { continue };
            if let Some(other) = out.insert(new.clone(), old.as_str()) {
                let got = format!("`{other}` and `{old}` as `{new}`");
                return Err(invalid("NameMap", "names", "one new name for each name", got));
            }
        }
        Ok(out)
    }
}
