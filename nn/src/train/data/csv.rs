//! Numbers from CSV files.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::{Dataset, Targets};
use crate::core::error::{NnError, Result};
use crate::core::limits;

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
    /// All columns are features: targets are no values.
    None,
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

pub(super) fn clean(cell: &str) -> &str {
    let c = cell.trim();
    c.strip_prefix('"').and_then(|c| c.strip_suffix('"')).unwrap_or(c).trim()
}

/// The numbers of a line, or the column that is malformed and why.
fn line_numbers(
    cells: &[&str],
    want: usize,
    target: Option<usize>,
    class: bool,
) -> std::result::Result<Vec<f32>, (usize, String)> {
    if cells.len() != want {
        let at = cells.len().min(want) + 1;
        return Err((at, format!("expected {want} cells, found {}", cells.len())));
    }
    let number = |(c, cell): (usize, &&str)| {
        let fail = |what: String| Err((c + 1, what));
        if cell.is_empty() {
            return fail("missing value".into());
        }
        match cell.parse::<f32>() {
            Err(_) => fail(format!("`{cell}` is not a number")),
            Ok(x) if !x.is_finite() => fail(format!("`{cell}` is not finite")),
            Ok(x) if Some(c) == target && class && (x < 0.0 || x.fract() != 0.0 || x > 16_777_216.0) => {
                fail(format!("`{cell}` is not a class id (0, 1, 2, ...)"))
            }
            Ok(x) => Ok(x),
        }
    };
    cells.iter().enumerate().map(number).collect()
}

/// Reads a file of numbers, one item per line. Blank lines are skipped. Errors: [`NnError::Io`]; [`NnError::Table`] with row and column for
/// a missing cell, a cell that is no finite number, a label that is no class id, or a line with another number of cells.
pub fn read_csv(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Dataset> {
    read_csv_each(path, options, &mut Err)
}

/// As [`read_csv`], but leaves malformed lines out and returns how many they are; each is logged. The first line that is not the header
/// sets the number of cells. Errors: [`NnError::Io`]; [`NnError::Table`] for a file without a good line.
pub fn read_csv_skipping(path: impl AsRef<Path>, options: &CsvOptions) -> Result<(Dataset, u64)> {
    let mut skipped = 0;
    let data = read_csv_each(path, options, &mut |e| {
        log::warn!("left out: {e}");
        skipped += 1;
        Ok(())
    })?;
    Ok((data, skipped))
}

/// As [`read_csv`], but asks about every malformed line: it is left out unless the answer is an error, which ends the reading. Errors: as
/// [`read_csv_skipping`], and the answer.
pub fn read_csv_each(
    path: impl AsRef<Path>,
    options: &CsvOptions,
    malformed: &mut dyn FnMut(NnError) -> Result<()>,
) -> Result<Dataset> {
    let path = path.as_ref();
    let file = File::open(path).map_err(NnError::io("open", path))?;
    let fail =
        |row: usize, column: usize, what: String| NnError::Table { path: path.into(), row, column, what };

    let (mut features, mut classes, mut values) = (vec![], vec![], vec![]);
    let (mut width, mut items) = (None, 0usize);
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
        let (target, class) = match options.label {
            Label::LastClass => (Some(want.saturating_sub(1)), true),
            Label::Class(c) => (Some(c), true),
            Label::LastValue => (Some(want.saturating_sub(1)), false),
            Label::Value(c) => (Some(c), false),
            Label::None => (None, false),
        };
        if let Some(target) = target
            && (target >= want || want < 2)
        {
            let what = format!("no such label column next to features in {want} columns");
            return Err(fail(row, target + 1, what));
        }
        match line_numbers(&cells, want, target, class) {
            Ok(numbers) => {
                items += 1;
                for (c, x) in numbers.into_iter().enumerate() {
                    match (Some(c) == target, class) {
                        (false, _) => limits::push(&mut features, x * options.scale)?,
                        (true, false) => limits::push(&mut values, x)?,
                        (true, true) => limits::push(&mut classes, x as i64)?,
                    }
                }
            }
            Err((column, what)) => malformed(fail(row, column, what))?,
        }
    }
    if items == 0 {
        return Err(fail(1, 1, "the file has no items".into()));
    }
    let item = features.len() / items;
    let targets = match options.label {
        Label::LastClass | Label::Class(_) => Targets::Classes(classes),
        Label::LastValue | Label::Value(_) => Targets::Values { data: values, shape: vec![1] },
        Label::None => Targets::Values { data: vec![], shape: vec![0] },
    };
    Dataset::new(features, &[item], targets)
}
