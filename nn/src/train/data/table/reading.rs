//! Reading the lines of a table: cells, names, numbers.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::{Categories, Column, ColumnRole, Missing, Table, TableColumn, TableOptions, TableSchema, Target};
use crate::core::error::{NnError, Result};
use crate::core::limits;

/// Whether a cell stands for a missing value.
fn is_missing(cell: &str) -> bool {
    cell.is_empty() || cell == "?" || ["na", "nan", "null"].contains(&cell.to_ascii_lowercase().as_str())
}

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

/// Most different texts in a column of categories or of classes.
const MOST_NAMES: usize = 4096;

/// Texts with ids in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: HashMap<String, u32>,
}

impl Names {
    pub(super) fn id(&mut self, name: &str) -> u32 {
        let next = self.ids.len() as u32;
        *self.ids.entry(name.to_string()).or_insert(next)
    }

    /// These texts, in their order.
    pub(super) fn all(&mut self, texts: &[String]) {
        for text in texts {
            self.id(text);
        }
    }

    /// The id of a text in column `c`. Errors: another text where they are fixed, too many of them.
    fn of(&mut self, c: usize, text: &str, fixed: bool, known: &str) -> std::result::Result<u32, Fault> {
        match self.ids.get(text) {
            Some(&id) => Ok(id),
            None if fixed => Err((c + 1, format!("`{text}` is none of {known}"))),
            None if self.ids.len() >= MOST_NAMES => Err((
                c + 1,
                format!(
                    "more than {MOST_NAMES} different texts, which are no categories; leave the column out with data.drop"
                ),
            )),
            None => Ok(self.id(text)),
        }
    }

    /// The texts in alphabetical order, and for each id the place there.
    fn sorted(self) -> (Vec<String>, Vec<u32>) {
        let all: BTreeMap<String, u32> = self.ids.into_iter().collect();
        let mut place = vec![0; all.len()];
        for (i, &id) in all.values().enumerate() {
            place[id as usize] = i as u32;
        }
        (all.into_keys().collect(), place)
    }
}

/// A column while it is read.
#[derive(Debug)]
pub(super) enum Reading {
    /// Sum and number of the cells.
    Number {
        sum: f64,
        count: u64,
        fill: Option<f32>,
    },
    /// Texts that come, or those that a schema has.
    Category {
        names: Names,
        fixed: bool,
        optional: bool,
    },
    Dropped,
    ClassId,
    ClassName {
        names: Names,
        fixed: bool,
    },
    Value,
}

/// A row's cells as numbers: of features (NaN where missing; of categories the id), of the target.
struct Row {
    features: Vec<f32>,
    target: f64,
    skip: bool,
}

/// What is malformed: the column from 1, and what.
type Fault = (usize, String);

impl Reading {
    /// A number for a cell in column `c`. Errors: malformed cells.
    fn cell(
        &mut self,
        c: usize,
        cell: &str,
        missing: Missing,
        row: &mut Row,
    ) -> std::result::Result<(), Fault> {
        let fail = |what: String| Err((c + 1, what));
        let number = |cell: &str| match cell.parse::<f32>() {
            Err(_) => Err((c + 1, format!("`{cell}` is not a number"))),
            Ok(x) if !x.is_finite() => Err((c + 1, format!("`{cell}` is not finite"))),
            Ok(x) => Ok(x),
        };
        let allowed = match self {
            Reading::Number { fill, .. } => fill.is_some() || missing != Missing::Refuse,
            Reading::Category { optional, .. } => *optional || missing != Missing::Refuse,
            _ => false,
        };
        let gone = is_missing(cell);
        match self {
            Reading::Dropped => {}
            Reading::Number { .. } | Reading::Category { .. } if gone && allowed => {
                row.skip |= missing == Missing::Skip;
                row.features.push(f32::NAN);
            }
            _ if cell.is_empty() => return fail("missing value".into()),
            Reading::Number { sum, count, .. } => {
                let x = number(cell)?;
                (*sum, *count) = (*sum + f64::from(x), *count + 1);
                row.features.push(x);
            }
            Reading::Category { names, fixed, .. } => {
                row.features.push(names.of(c, cell, *fixed, "the column's known categories")? as f32);
            }
            Reading::ClassId => {
                let x = number(cell)?;
                if x < 0.0 || x.fract() != 0.0 || x > 16_777_216.0 {
                    return fail(format!("`{cell}` is not a class id (0, 1, 2, ...)"));
                }
                row.target = x.into();
            }
            Reading::ClassName { names, fixed } => {
                row.target = names.of(c, cell, *fixed, "the known classes")?.into();
            }
            Reading::Value => row.target = number(cell)?.into(),
        }
        Ok(())
    }
}

/// Where a column stands among `width`, which may have names.
fn place(column: &Column, names: Option<&[String]>, width: usize) -> std::result::Result<usize, String> {
    match (column, names) {
        (Column::Last, _) => width.checked_sub(1).ok_or_else(|| "no columns".into()),
        (&Column::At(i), _) if i < width => Ok(i),
        (Column::At(i), _) => Err(format!("no column {i} (from 0) in {width} columns")),
        (Column::Named(name), Some(names)) => names
            .iter()
            .position(|n| n == name)
            .ok_or_else(|| format!("no column `{name}`; the first line names {}", names.join(", "))),
        (Column::Named(name), None) => Err(format!(
            "no column `{name}`: the file has no line of names (data.header says whether it has)"
        )),
    }
}

/// The columns of a new table, from its names and its first row.
pub(super) fn plan(
    options: &TableOptions,
    names: Option<&[String]>,
    first: &[String],
) -> std::result::Result<Vec<Reading>, Fault> {
    let width = first.len();
    let at = |c: &Column| place(c, names, width).map_err(|what| (1, what));
    let target = match &options.target {
        Target::Class(c) | Target::Classes(c, _) | Target::Value(c) => Some(match (c, at(c)) {
            // As for every file of numbers: columns are counted from 1.
            (Column::Last | Column::At(_), _) if width < 2 => {
                let c = if let Column::At(i) = c { *i } else { width.saturating_sub(1) };
                return Err((c + 1, format!("no such label column next to features in {width} columns")));
            }
            (&Column::At(i), Err(_)) => {
                return Err((i + 1, format!("no such label column next to features in {width} columns")));
            }
            (_, at) => at?,
        }),
        Target::None => None,
    };
    let dropped = options.drop.iter().map(at).collect::<std::result::Result<Vec<_>, _>>()?;
    let listed = match &options.categories {
        Categories::Columns(list) => list.iter().map(at).collect::<std::result::Result<Vec<_>, _>>()?,
        _ => vec![],
    };
    let fill = match options.missing {
        Missing::Mean => Some(0.0),
        Missing::Value(v) => Some(v),
        Missing::Refuse | Missing::Skip => None,
    };
    let column = |(i, cell): (usize, &String)| {
        let text = !is_missing(cell) && cell.parse::<f32>().is_err();
        if Some(i) == target {
            return match &options.target {
                Target::Classes(_, list) => {
                    let mut names = Names::default();
                    names.all(list);
                    Reading::ClassName { names, fixed: true }
                }
                Target::Value(_) => Reading::Value,
                _ if text => Reading::ClassName { names: Names::default(), fixed: false },
                _ => Reading::ClassId,
            };
        }
        if dropped.contains(&i) {
            return Reading::Dropped;
        }
        if listed.contains(&i) || (options.categories == Categories::Auto && text) {
            return Reading::Category { names: Names::default(), fixed: false, optional: false };
        }
        Reading::Number { sum: 0.0, count: 0, fill }
    };
    Ok(first.iter().enumerate().map(column).collect())
}

/// The lines of a file with their numbers, blank ones left out, as cells.
pub(super) struct Lines<'a> {
    path: &'a Path,
    lines: std::io::Lines<BufReader<File>>,
    number: usize,
    separator: char,
}

impl Lines<'_> {
    pub(super) fn fail(&self, (column, what): Fault) -> NnError {
        NnError::Csv { path: self.path.into(), row: self.number, column, what }
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
}

/// A file that is read.
pub(super) struct Reader<'a> {
    pub(super) lines: Lines<'a>,
    pub(super) names: Option<Vec<String>>,
    /// The first line that is not one of names.
    pub(super) first: Option<Vec<String>>,
}

impl<'a> Reader<'a> {
    pub(super) fn open(path: &'a Path, separator: char, header: Option<bool>) -> Result<Self> {
        let file = File::open(path).map_err(NnError::io("open", path))?;
        let mut lines = Lines { path, lines: BufReader::new(file).lines(), number: 0, separator };
        let Some(first) = lines.next()? else { return Ok(Reader { lines, names: None, first: None }) };
        let first = first.map_err(|f| lines.fail(f))?;
        let names = header.unwrap_or_else(|| first.iter().all(|c| c.parse::<f32>().is_err()));
        // Only the first line of the file can name columns.
        if names && lines.number == 1 {
            let next = match lines.next()? {
                Some(line) => Some(line.map_err(|f| lines.fail(f))?),
                None => None,
            };
            return Ok(Reader { lines, names: Some(first), first: next });
        }
        Ok(Reader { lines, names: None, first: Some(first) })
    }
}

pub(super) fn empty(path: &Path) -> NnError {
    NnError::Csv { path: path.into(), row: 1, column: 1, what: "the file has no items".into() }
}

/// Rows as numbers.
pub(super) struct Rows {
    features: Vec<f32>,
    targets: Vec<f64>,
    pub(super) count: usize,
}

/// Reads the rows from `first` on. `order` says for each column of the plan in which of the file's it is; none where the file has none.
pub(super) fn rows(
    lines: &mut Lines<'_>,
    first: Vec<String>,
    width: usize,
    order: &[Option<usize>],
    columns: &mut [Reading],
    missing: Missing,
    malformed: &mut dyn FnMut(NnError) -> Result<()>,
) -> Result<Rows> {
    let mut all = Rows { features: vec![], targets: vec![], count: 0 };
    let mut next = Some(Ok(first));
    while let Some(line) = next {
        match line.and_then(|cells| row(&cells, width, order, columns, missing)) {
            Ok(row) if !row.skip => {
                row.features.iter().try_for_each(|&x| limits::push(&mut all.features, x))?;
                limits::push(&mut all.targets, row.target)?;
                all.count += 1;
            }
            Ok(_) => {}
            Err(fault) => malformed(lines.fail(fault))?,
        }
        next = lines.next()?;
    }
    Ok(all)
}

fn row(
    cells: &[String],
    width: usize,
    order: &[Option<usize>],
    columns: &mut [Reading],
    missing: Missing,
) -> std::result::Result<Row, Fault> {
    if cells.len() != width {
        let at = cells.len().min(width) + 1;
        return Err((at, format!("expected {width} cells, found {}", cells.len())));
    }
    let mut row = Row { features: vec![], target: 0.0, skip: false };
    for (at, column) in order.iter().zip(columns.iter_mut()) {
        if let Some(at) = at {
            column.cell(*at, &cells[*at], missing, &mut row)?;
        }
    }
    Ok(row)
}

/// Places of sorted names for the ids that a column's cells have; none for numbers.
pub(super) enum Expand {
    Number { fill: f32 },
    Category { place: Vec<u32>, width: usize },
}

impl Rows {
    pub(super) fn table(
        self,
        columns: Vec<Reading>,
        names: Option<Vec<String>>,
        options: &TableOptions,
    ) -> Result<Table> {
        let (mut expand, mut roles, mut classes, mut place) = (vec![], vec![], None, None);
        for column in columns {
            roles.push(match column {
                Reading::Number { sum, count, fill } => {
                    let mean = if count > 0 { (sum / count as f64) as f32 } else { 0.0 };
                    let fill = if options.missing == Missing::Mean { Some(mean) } else { fill };
                    expand.push(Expand::Number { fill: fill.unwrap_or(0.0) });
                    ColumnRole::Number { fill }
                }
                Reading::Category { names, .. } => {
                    let (values, place) = names.sorted();
                    expand.push(Expand::Category { place, width: values.len() });
                    ColumnRole::Category {
                        values,
                        optional: matches!(options.missing, Missing::Mean | Missing::Value(_)),
                    }
                }
                Reading::Dropped => ColumnRole::Dropped,
                Reading::ClassId => ColumnRole::Class,
                Reading::ClassName { names, fixed } => {
                    let (sorted, at) = names.sorted();
                    match &options.target {
                        Target::Classes(_, list) if fixed => classes = Some(list.clone()),
                        _ => (classes, place) = (Some(sorted), Some(at)),
                    }
                    ColumnRole::Class
                }
                Reading::Value => ColumnRole::Value,
            });
        }
        let names = names.map_or_else(|| vec![None; roles.len()], |n| n.into_iter().map(Some).collect());
        let columns = names.into_iter().zip(roles).map(|(name, role)| TableColumn { name, role }).collect();
        let schema = TableSchema {
            columns,
            classes,
            header: options.header,
            separator: options.separator,
            scale: options.scale,
        };
        self.finish(&expand, place.as_deref(), schema)
    }

    /// Numbers with their factor, missing ones filled; categories as 0 and 1.
    pub(super) fn finish(
        self,
        expand: &[Expand],
        place: Option<&[u32]>,
        schema: TableSchema,
    ) -> Result<Table> {
        let width: usize =
            expand.iter().map(|e| if let Expand::Category { width, .. } = e { *width } else { 1 }).sum();
        let mut features = vec![];
        limits::reserve(&mut features, self.count.saturating_mul(width))?;
        for row in self.features.chunks_exact(expand.len().max(1)) {
            for (&x, e) in row.iter().zip(expand) {
                match e {
                    Expand::Number { fill } => {
                        features.push(if x.is_nan() { *fill } else { x } * schema.scale)
                    }
                    Expand::Category { place, width } => {
                        let at = (!x.is_nan()).then(|| place[x as usize] as usize);
                        features.extend((0..*width).map(|i| if Some(i) == at { 1.0 } else { 0.0 }));
                    }
                }
            }
        }
        let is = |role: &ColumnRole| schema.columns.iter().any(|c| c.role == *role);
        let (mut classes, mut values) = (vec![], vec![]);
        if is(&ColumnRole::Class) {
            let id = |&t: &f64| place.map_or(t as i64, |p| i64::from(p[t as usize]));
            classes = limits::collect(self.targets.iter().map(id))?;
        } else if is(&ColumnRole::Value) {
            values = limits::collect(self.targets.iter().map(|&t| t as f32))?;
        }
        Ok(Table { features, classes, values, rows: self.count, schema })
    }
}
