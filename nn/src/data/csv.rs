//! Numbers from CSV files.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::{Dataset, Targets};
use crate::error::{NnError, Result};

/// Which column is the target and what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Label {
    /// The last column holds a class id.
    #[default]
    LastClass,
    /// This column (from 0) holds a class id.
    Class(usize),
    /// The last column holds a value.
    LastValue,
    /// This column (from 0) holds a value.
    Value(usize),
}

/// How a CSV file is read.
#[derive(Debug, Clone, PartialEq)]
pub struct CsvOptions {
    /// Whether the first line names the columns; `None`: it does if none of its cells is a number.
    pub header: Option<bool>,
    /// Target column.
    pub label: Label,
    /// Factor of the features.
    pub scale: f32,
    /// Between cells.
    pub separator: char,
}

impl Default for CsvOptions {
    fn default() -> Self {
        CsvOptions { header: None, label: Label::default(), scale: 1.0, separator: ',' }
    }
}

fn clean(cell: &str) -> &str {
    let c = cell.trim();
    c.strip_prefix('"').and_then(|c| c.strip_suffix('"')).unwrap_or(c).trim()
}

/// Reads a file of numbers, one item per line. Blank lines are skipped. Errors: [`NnError::Io`]; [`NnError::Csv`] with row and column for
/// a missing cell, a cell that is no finite number, a label that is no class id, or a line with another number of cells.
pub fn read_csv(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Dataset> {
    let path = path.as_ref();
    let file = File::open(path).map_err(NnError::io("open", path))?;
    let fail =
        |row: usize, column: usize, what: String| NnError::Csv { path: path.into(), row, column, what };

    let (mut features, mut classes, mut values) = (vec![], vec![], vec![]);
    let mut width = None;
    for (i, line) in BufReader::new(file).lines().enumerate() {
        let (row, line) = (i + 1, line.map_err(NnError::io("read", path))?);
        let line = if i == 0 { line.trim_start_matches('\u{feff}') } else { line.as_str() };
        if line.trim().is_empty() {
            continue;
        }
        let cells: Vec<&str> = line.split(options.separator).map(clean).collect();
        if i == 0 && options.header.unwrap_or_else(|| cells.iter().all(|c| c.parse::<f32>().is_err())) {
            width = Some(cells.len());
            continue;
        }
        let want = *width.get_or_insert(cells.len());
        if cells.len() != want {
            let at = cells.len().min(want) + 1;
            return Err(fail(row, at, format!("expected {want} cells, found {}", cells.len())));
        }
        let (target, class) = match options.label {
            Label::LastClass => (want - 1, true),
            Label::Class(c) => (c, true),
            Label::LastValue => (want - 1, false),
            Label::Value(c) => (c, false),
        };
        if target >= want || want < 2 {
            return Err(fail(
                row,
                target + 1,
                format!("no such label column next to features in {want} columns"),
            ));
        }
        for (c, cell) in cells.iter().enumerate() {
            let column = c + 1;
            if cell.is_empty() {
                return Err(fail(row, column, "missing value".into()));
            }
            let x: f32 = cell.parse().map_err(|_| fail(row, column, format!("`{cell}` is not a number")))?;
            if !x.is_finite() {
                return Err(fail(row, column, format!("`{cell}` is not finite")));
            }
            match (c == target, class) {
                (false, _) => features.push(x * options.scale),
                (true, false) => values.push(x),
                (true, true) if x < 0.0 || x.fract() != 0.0 || x > 16_777_216.0 => {
                    return Err(fail(row, column, format!("`{cell}` is not a class id (0, 1, 2, ...)")));
                }
                (true, true) => classes.push(x as i64),
            }
        }
    }
    let items = classes.len() + values.len();
    if items == 0 {
        return Err(fail(1, 1, "the file has no items".into()));
    }
    let item = features.len() / items;
    let targets = if values.is_empty() {
        Targets::Classes(classes)
    } else {
        Targets::Values { data: values, shape: vec![1] }
    };
    Dataset::new(features, &[item], targets)
}
