//! Tables: files of CSV, Parquet and Arrow with columns of numbers and of texts, missing cells, classes by name. What was learned of the columns
//! (categories, means, classes) is a [`TableSchema`], with which further files are read in the same way.

#[cfg(feature = "parquet")]
mod arrow;
mod csv;
#[cfg(feature = "parquet")]
mod ipc;
mod reading;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::csv::Csv;
use self::reading::{Expand, Names, Reader, Reading, plan, rows};
use crate::core::error::{NnError, Result};

/// The format of a table's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableFormat {
    /// Lines of cells.
    #[default]
    Csv,
    /// Apache Parquet. Needs the feature `parquet`.
    Parquet,
    /// The IPC format of Apache Arrow: files, which are those of Feather version 2, and streams. Needs the feature `parquet`.
    Arrow,
}

impl TableFormat {
    /// The format that the extension of a file says: `csv`; `parquet`, `pq`; `arrow`, `arrows`, `feather`, `ipc`.
    pub fn of(path: impl AsRef<Path>) -> Option<TableFormat> {
        match path.as_ref().extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" => Some(TableFormat::Csv),
            "parquet" | "pq" => Some(TableFormat::Parquet),
            "arrow" | "arrows" | "feather" | "ipc" => Some(TableFormat::Arrow),
            _ => None,
        }
    }

    /// Opens a file. `header` and `separator` are those of CSV.
    fn open(self, path: &Path, header: Option<bool>, separator: char) -> Result<Box<dyn Reader + '_>> {
        match self {
            TableFormat::Csv => Ok(Box::new(Csv::open(path, separator, header)?)),
            #[cfg(feature = "parquet")]
            TableFormat::Parquet => Ok(Box::new(arrow::Batches::parquet(path)?)),
            #[cfg(feature = "parquet")]
            TableFormat::Arrow => Ok(Box::new(arrow::Batches::ipc(path)?)),
            #[cfg(not(feature = "parquet"))]
            TableFormat::Parquet | TableFormat::Arrow => {
                let what = "this build reads CSV tables alone: build it with `--features parquet`";
                Err(NnError::config(format!("data.{}", format!("{self:?}").to_lowercase()), what))
            }
        }
    }
}

/// A column of a table; in JSON `"last"`, a number or a name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "Value")]
pub enum Column {
    /// The last.
    #[default]
    Last,
    /// This one, from 0.
    At(usize),
    /// The one of this name.
    Named(String),
}

impl TryFrom<Value> for Column {
    type Error = String;
    fn try_from(v: Value) -> Result<Self, String> {
        match (v.as_str(), v.as_u64()) {
            (Some("last"), _) => Ok(Column::Last),
            (Some(name), _) if !name.is_empty() => Ok(Column::Named(name.to_string())),
            (_, Some(n)) => Ok(Column::At(n as usize)),
            _ => Err(format!("expected \"last\", the name of a column or its number from 0, got {v}")),
        }
    }
}

impl std::fmt::Display for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Column::Last => f.write_str("the last column"),
            Column::At(i) => write!(f, "column {i} (from 0)"),
            Column::Named(name) => write!(f, "column `{name}`"),
        }
    }
}

/// What becomes of texts in columns of features.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Categories {
    /// They are malformed.
    #[default]
    Refuse,
    /// A column of texts (of CSV: whose first cell is a text) holds categories.
    Auto,
    /// These columns hold categories, whatever their cells look like.
    Columns(Vec<Column>),
}

/// What becomes of missing cells of features: nulls, empty ones, `NA`, `NaN`, `null` and `?`. A missing category has none of the columns of its categories;
/// a missing target is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Missing {
    /// They are malformed.
    #[default]
    Refuse,
    /// Their rows are left out.
    Skip,
    /// The mean of the column's other cells.
    Mean,
    /// This value.
    Value(f32),
}

/// What the targets of a table are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Classes: ids from 0 where the column holds numbers (of CSV: where its first cell is one), names otherwise, which are numbered in alphabetical
    /// order.
    Class(Column),
    /// Classes of these names, numbered in this order.
    Classes(Column, Vec<String>),
    /// Values.
    Value(Column),
    /// None: all columns are features.
    None,
}

/// How a table is read.
#[derive(Debug, Clone, PartialEq)]
pub struct TableOptions {
    /// Format of the file.
    pub format: TableFormat,
    /// Of CSV, whether the first line names the columns; `None`: it does if none of its cells is a number.
    pub header: Option<bool>,
    /// Of CSV, what is between cells. Cells may stand in double quotes, which then hold separators and, doubled, quotes.
    pub separator: char,
    /// The target.
    pub target: Target,
    /// Texts in columns of features.
    pub categories: Categories,
    /// Missing cells.
    pub missing: Missing,
    /// Columns that are neither features nor targets.
    pub drop: Vec<Column>,
    /// Factor of numbers.
    pub scale: f32,
}

impl Default for TableOptions {
    fn default() -> Self {
        TableOptions {
            format: TableFormat::Csv,
            header: None,
            separator: ',',
            target: Target::Class(Column::Last),
            categories: Categories::Refuse,
            missing: Missing::Refuse,
            drop: vec![],
            scale: 1.0,
        }
    }
}

/// What a column of a table is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "role", deny_unknown_fields)]
pub enum ColumnRole {
    /// A number, one feature.
    Number {
        /// What stands for a missing cell (before the factor), if cells may be missing.
        fill: Option<f32>,
    },
    /// A category: a feature of 0 or 1 for each of these values.
    Category {
        /// The values, in alphabetical order.
        values: Vec<String>,
        /// Whether cells may be missing.
        optional: bool,
    },
    /// Neither a feature nor the target.
    Dropped,
    /// A class, as a number or as one of the schema's names.
    Class,
    /// A value.
    Value,
}

/// A column of a table with its name, where the file has names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableColumn {
    /// Its name.
    pub name: Option<String>,
    /// What it is.
    #[serde(flatten)]
    pub role: ColumnRole,
}

/// What was learned of a table's columns. Further files are read with it: by the names of their columns, in any order, where both have names, and by
/// position otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableSchema {
    /// The columns, in the order of the file.
    pub columns: Vec<TableColumn>,
    /// Names of the classes, by id; none where the file has ids.
    pub classes: Option<Vec<String>>,
    /// Format of the file.
    #[serde(default)]
    pub format: TableFormat,
    /// Of CSV, whether the first line names the columns, as [`TableOptions::header`].
    pub header: Option<bool>,
    /// Of CSV, what is between cells.
    pub separator: char,
    /// Factor of numbers.
    pub scale: f32,
}

/// The rows of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Features in row-major order.
    pub features: Vec<f32>,
    /// Class ids, where the target is a class.
    pub classes: Vec<i64>,
    /// Values, where it is one.
    pub values: Vec<f32>,
    /// Number of rows.
    pub rows: usize,
    /// What the columns are.
    pub schema: TableSchema,
}

impl Table {
    /// Reads a file, one item per row; blank lines of CSV are skipped. `malformed` is asked about every malformed row: it is left out unless the
    /// answer is an error, which ends the reading. Of a table that pandas wrote, columns of its index (`__index_level_0__`) are left out. Errors:
    /// [`NnError::Io`]; [`NnError::Data`] and [`NnError::Format`] for a file that is not of the format or damaged; [`NnError::Table`] with row and
    /// column for a column that is not there or holds neither numbers nor texts (dates, lists, bytes) and a file without a good row; the answer for
    /// a missing cell, a cell that is no finite number or no known category, a label that is no class, or a row with another number of cells.
    pub fn read(
        path: impl AsRef<Path>,
        options: &TableOptions,
        malformed: &mut dyn FnMut(NnError) -> Result<()>,
    ) -> Result<Table> {
        let path = path.as_ref();
        let mut file = options.format.open(path, options.header, options.separator)?;
        let mut columns = plan(options, file.names(), file.kinds()).map_err(|fault| file.fail(fault))?;
        let order: Vec<Option<usize>> = (0..columns.len()).map(Some).collect();
        let rows = rows(&mut *file, path, &order, &mut columns, options.missing, malformed)?;
        let names = file.names().map(<[String]>::to_vec);
        rows.table(columns, names, options)
    }
}

impl TableSchema {
    /// Number of features of an item.
    pub fn features(&self) -> usize {
        let width = |c: &TableColumn| match &c.role {
            ColumnRole::Number { .. } => 1,
            ColumnRole::Category { values, .. } => values.len(),
            _ => 0,
        };
        self.columns.iter().map(width).sum()
    }

    /// Reads a further file of the same columns, in the format that its extension says, or else in that of the first. Where `targets` is false, the target's column may be absent and is not read; otherwise it has to be
    /// there. Errors: as [`Table::read`]; a column that is missing; categories and classes that the schema has not.
    pub fn read(
        &self,
        path: impl AsRef<Path>,
        targets: bool,
        malformed: &mut dyn FnMut(NnError) -> Result<()>,
    ) -> Result<Table> {
        let path = path.as_ref();
        let named = self.columns.iter().all(|c| c.name.is_some());
        let format = TableFormat::of(path).unwrap_or(self.format);
        let mut file = format.open(path, self.header, self.separator)?;
        let names = if named { file.names() } else { None };
        let order = self.order(names, file.kinds().len(), targets).map_err(|what| file.fail((1, what)))?;
        let (mut readings, mut expand) = (vec![], vec![]);
        for column in &self.columns {
            let mut names = Names::default();
            readings.push(match &column.role {
                ColumnRole::Number { fill } => {
                    expand.push(Expand::Number { fill: fill.unwrap_or(0.0) });
                    Reading::Number { sum: 0.0, count: 0, fill: *fill }
                }
                ColumnRole::Category { values, optional } => {
                    names.all(values);
                    let place = (0..values.len() as u32).collect();
                    expand.push(Expand::Category { place, width: values.len() });
                    Reading::Category { names, fixed: true, optional: *optional }
                }
                ColumnRole::Dropped => Reading::Dropped,
                ColumnRole::Class | ColumnRole::Value if !targets => Reading::Dropped,
                ColumnRole::Class => match &self.classes {
                    Some(list) => {
                        names.all(list);
                        Reading::ClassName { names, fixed: true }
                    }
                    None => Reading::ClassId,
                },
                ColumnRole::Value => Reading::Value,
            });
        }
        let rows = rows(&mut *file, path, &order, &mut readings, Missing::Refuse, malformed)?;
        let mut schema = self.clone();
        if !targets {
            schema.columns.retain(|c| !matches!(c.role, ColumnRole::Class | ColumnRole::Value));
        }
        rows.finish(&expand, None, schema)
    }

    /// For each column of the schema its place in a file of `width` columns.
    fn order(
        &self,
        names: Option<&[String]>,
        width: usize,
        targets: bool,
    ) -> std::result::Result<Vec<Option<usize>>, String> {
        let is_target = |c: &TableColumn| matches!(c.role, ColumnRole::Class | ColumnRole::Value);
        let needed = |c: &TableColumn| match c.role {
            ColumnRole::Dropped => false,
            ColumnRole::Class | ColumnRole::Value => targets,
            _ => true,
        };
        if let Some(names) = names {
            let at = |c: &TableColumn| {
                let name = c.name.as_deref().unwrap_or_default();
                match names.iter().position(|n| n == name) {
                    None if needed(c) => {
                        Err(format!("no column `{name}`; the first line names {}", names.join(", ")))
                    }
                    at => Ok(at),
                }
            };
            return self.columns.iter().map(at).collect();
        }
        let without = self.columns.iter().filter(|c| !is_target(c)).count();
        if width == self.columns.len() {
            return Ok((0..width).map(Some).collect());
        }
        if width != without || targets {
            let also = if targets || without == self.columns.len() {
                String::new()
            } else {
                format!(" or, without the target, {without}")
            };
            return Err(format!(
                "expected {}{also} columns, as the training data had, found {width}",
                self.columns.len()
            ));
        }
        let mut next = 0..width;
        Ok(self.columns.iter().map(|c| if is_target(c) { None } else { next.next() }).collect())
    }
}
