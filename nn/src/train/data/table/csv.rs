//! Tables in CSV: lines of cells.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::reading::{Cell, Fault, Kind, Reader, empty, is_missing};
use crate::core::error::{NnError, Result};

/// The cells of a line. Errors: a quote that does not end.
fn cells(line: &str, separator: char) -> std::result::Result<Vec<String>, String> {
    let mut out = vec![];
    let mut rest = line;
    loop {
        let start = rest.trim_start_matches(|c: char| c.is_whitespace() && c != separator);
        let Some(mut quoted) = start.strip_prefix('"') else {
            let (cell, more) = rest.split_once(separator).map_or((rest, None), |(c, m)| (c, Some(m)));
            out.push(cell.trim().to_string());
            match more {
                Some(more) => rest = more,
                None => return Ok(out),
            }
            continue;
        };
        let mut cell = String::new();
        loop {
            let Some((part, more)) = quoted.split_once('"') else {
                return Err("a quote that does not end in its line".into());
            };
            cell.push_str(part);
            // Two quotes are one of the text.
            match more.strip_prefix('"') {
                Some(more) => {
                    cell.push('"');
                    quoted = more;
                }
                None => {
                    quoted = more;
                    break;
                }
            }
        }
        out.push(cell.trim().to_string());
        match quoted.split_once(separator) {
            Some((between, more)) if between.trim().is_empty() => rest = more,
            None if quoted.trim().is_empty() => return Ok(out),
            _ => return Err("text behind a closing quote".into()),
        }
    }
}

/// The lines of a file with their numbers, blank ones left out, as cells.
struct Lines<'a> {
    path: &'a Path,
    lines: std::io::Lines<BufReader<File>>,
    number: usize,
    separator: char,
}

impl Lines<'_> {
    fn fail(&self, (column, what): Fault) -> NnError {
        NnError::Table { path: self.path.into(), row: self.number, column, what }
    }

    /// The next line; its cells or what is malformed.
    fn next(&mut self) -> Result<Option<std::result::Result<Vec<String>, Fault>>> {
        loop {
            let Some(line) = self.lines.next() else { return Ok(None) };
            self.number += 1;
            let line = line.map_err(NnError::io("read", self.path))?;
            let line = if self.number == 1 { line.trim_start_matches('\u{feff}') } else { line.as_str() };
            if !line.trim().is_empty() {
                return Ok(Some(cells(line, self.separator).map_err(|what| (1, what))));
            }
        }
    }

    /// The next line, which has to be a good one.
    fn good(&mut self) -> Result<Option<Vec<String>>> {
        self.next()?.transpose().map_err(|fault| self.fail(fault))
    }
}

/// A CSV file, read line by line.
pub(super) struct Csv<'a> {
    lines: Lines<'a>,
    names: Option<Vec<String>>,
    kinds: Vec<Kind>,
    /// The present row.
    row: Vec<String>,
    /// Whether that is the first, which the kinds of columns are known from, and was not served yet.
    first: bool,
}

impl<'a> Csv<'a> {
    /// Opens a file and reads its first row. Errors: [`NnError::Io`]; a malformed first row, or none.
    pub(super) fn open(path: &'a Path, separator: char, header: Option<bool>) -> Result<Self> {
        let file = File::open(path).map_err(NnError::io("open", path))?;
        let mut lines = Lines { path, lines: BufReader::new(file).lines(), number: 0, separator };
        let Some(mut row) = lines.good()? else { return Err(empty(path)) };
        let mut names = None;
        // Only the first line of the file can name columns.
        if lines.number == 1 && header.unwrap_or_else(|| row.iter().all(|c| c.parse::<f32>().is_err())) {
            let Some(first) = lines.good()? else { return Err(empty(path)) };
            names = Some(std::mem::replace(&mut row, first));
        }
        let text = |cell: &str| !is_missing(cell) && cell.parse::<f32>().is_err();
        let kind =
            |cell: Option<&String>| if cell.is_some_and(|c| text(c)) { Kind::Text } else { Kind::Number };
        let width = names.as_ref().map_or(row.len(), Vec::len);
        let kinds = (0..width).map(|i| kind(row.get(i))).collect();
        Ok(Csv { lines, names, kinds, row, first: true })
    }
}

impl Reader for Csv<'_> {
    fn names(&self) -> Option<&[String]> {
        self.names.as_deref()
    }

    fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    fn next(&mut self) -> Result<Option<std::result::Result<(), Fault>>> {
        if !std::mem::take(&mut self.first) {
            match self.lines.next()? {
                None => return Ok(None),
                Some(Err(fault)) => return Ok(Some(Err(fault))),
                Some(Ok(row)) => self.row = row,
            }
        }
        let (found, width) = (self.row.len(), self.kinds.len());
        if found != width {
            return Ok(Some(Err((found.min(width) + 1, format!("expected {width} cells, found {found}")))));
        }
        Ok(Some(Ok(())))
    }

    fn cell(&self, column: usize) -> Cell<'_> {
        Cell::Text(&self.row[column])
    }

    fn fail(&self, fault: Fault) -> NnError {
        self.lines.fail(fault)
    }
}
