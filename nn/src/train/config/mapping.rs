//! What a run has learned of its data, kept so that other data can be read in the same way.

use serde::{Deserialize, Serialize};

use super::data::TargetKind;
use crate::train::data::table::TableSchema;
use crate::train::data::text::Encoding;

/// What features and class ids of a run's data mean. The run folder keeps it as `mapping.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataMapping {
    /// What targets are.
    pub target: Option<TargetKind>,
    /// Names of the classes, by id, where they have names.
    pub classes: Option<Vec<String>>,
    /// The characters of a text's vocabulary, by id.
    pub vocabulary: Option<String>,
    /// Columns of a table.
    pub table: Option<TableSchema>,
}

impl DataMapping {
    pub(super) fn of_table(schema: TableSchema) -> Self {
        DataMapping { classes: schema.classes.clone(), table: Some(schema), ..Self::default() }
    }

    pub(super) fn of_text(encoding: &dyn Encoding) -> Self {
        DataMapping { target: Some(TargetKind::Class), vocabulary: encoding.vocabulary(), ..Self::default() }
    }

    /// The name of a class: the id as text where classes have none.
    pub fn class_name(&self, id: usize) -> String {
        let name = self.classes.as_ref().and_then(|names| names.get(id));
        name.map_or_else(|| id.to_string(), String::clone)
    }
}
