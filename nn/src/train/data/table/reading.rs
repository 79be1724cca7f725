//! From the cells of a file to the rows of a table: names, numbers, categories.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::{Categories, Column, ColumnRole, Missing, Table, TableColumn, TableOptions, TableSchema, Target};
use crate::core::error::{NnError, Result};
use crate::core::limits;

/// Whether a text stands for a missing value.
pub(super) fn is_missing(cell: &str) -> bool {
    cell.is_empty() || cell == "?" || ["na", "nan", "null"].iter().any(|m| cell.eq_ignore_ascii_case(m))
}

/// What is malformed: the column from 1, and what.
pub(super) type Fault = (usize, String);

/// A cell of a file. CSV has texts alone.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "parquet"), allow(dead_code))]
pub(super) enum Cell<'a> {
    Text(&'a str),
    Missing,
    Boolean(bool),
    Integer(i64),
    Number(f64),
}

impl<'a> Cell<'a> {
    fn is_missing(self) -> bool {
        match self {
            Cell::Text(text) => is_missing(text),
            cell => matches!(cell, Cell::Missing),
        }
    }

    /// The cell as a category or the name of a class.
    fn text(self) -> Cow<'a, str> {
        match self {
            Cell::Text(text) => text.into(),
            Cell::Missing => "".into(),
            Cell::Boolean(b) => if b { "true" } else { "false" }.into(),
            Cell::Integer(n) => n.to_string().into(),
            Cell::Number(x) => x.to_string().into(),
        }
    }

    /// The cell as a number. Errors: texts that are none, numbers that are not finite as f32.
    fn number(self) -> std::result::Result<f32, String> {
        let number = match self {
            Cell::Text(text) => text.parse::<f32>().ok(),
            Cell::Missing => None,
            Cell::Boolean(b) => Some(f32::from(u8::from(b))),
            Cell::Integer(n) => Some(n as f32),
            Cell::Number(x) => Some(x as f32),
        };
        match number {
            None => Err(format!("`{}` is not a number", self.text())),
            Some(x) if !x.is_finite() => Err(format!("`{}` is not finite", self.text())),
            Some(x) => Ok(x),
        }
    }
}

/// What the cells of a column are: of CSV by its first cell, otherwise by its type.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(not(feature = "parquet"), allow(dead_code))]
pub(super) enum Kind {
    Number,
    Text,
    Boolean,
    /// Neither, such as dates: why, and what to do.
    Other(String),
}

impl Kind {
    /// Errors: a column `at` that holds neither numbers nor texts.
    pub(super) fn check(&self, at: usize) -> std::result::Result<(), Fault> {
        match self {
            Kind::Other(why) => Err((at + 1, why.clone())),
            _ => Ok(()),
        }
    }
}

/// A file of rows, which are read one after the other.
pub(super) trait Reader {
    /// Names of the columns, where the file has them.
    fn names(&self) -> Option<&[String]>;
    /// What the columns are.
    fn kinds(&self) -> &[Kind];
    /// Which columns' cells will be asked for, before the first row.
    fn select(&mut self, _wanted: &[bool]) -> Result<()> {
        Ok(())
    }
    /// Goes to the next row, where there is one; what is malformed about it as a whole. Errors: of the file.
    fn next(&mut self) -> Result<Option<std::result::Result<(), Fault>>>;
    /// A cell of the present row.
    fn cell(&self, column: usize) -> Cell<'_>;
    /// The error of a fault in the present row, or before the first.
    fn fail(&self, fault: Fault) -> NnError;
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
#[derive(Default)]
struct Row {
    features: Vec<f32>,
    target: f64,
    skip: bool,
}

impl Reading {
    /// A number for a cell in column `c`. Errors: malformed cells.
    fn cell(
        &mut self,
        c: usize,
        cell: Cell<'_>,
        missing: Missing,
        row: &mut Row,
    ) -> std::result::Result<(), Fault> {
        let fail = |what: String| Err((c + 1, what));
        let number = |cell: Cell<'_>| cell.number().map_err(|what| (c + 1, what));
        let allowed = match self {
            Reading::Number { fill, .. } => fill.is_some() || missing != Missing::Refuse,
            Reading::Category { optional, .. } => *optional || missing != Missing::Refuse,
            _ => false,
        };
        let gone = cell.is_missing();
        match self {
            Reading::Number { .. } | Reading::Category { .. } if gone && allowed => {
                row.skip |= missing == Missing::Skip;
                row.features.push(f32::NAN);
            }
            _ if gone && cell.text().is_empty() => return fail("missing value".into()),
            Reading::Number { sum, count, .. } => {
                let x = number(cell)?;
                (*sum, *count) = (*sum + f64::from(x), *count + 1);
                row.features.push(x);
            }
            Reading::Category { names, fixed, .. } => {
                let known = "the column's known categories";
                row.features.push(names.of(c, &cell.text(), *fixed, known)? as f32);
            }
            Reading::ClassId => {
                let x = number(cell)?;
                if x < 0.0 || x.fract() != 0.0 || x > 16_777_216.0 {
                    return fail(format!("`{}` is not a class id (0, 1, 2, ...)", cell.text()));
                }
                row.target = x.into();
            }
            Reading::ClassName { names, fixed } => {
                row.target = names.of(c, &cell.text(), *fixed, "the known classes")?.into();
            }
            Reading::Value => row.target = number(cell)?.into(),
            Reading::Dropped => {}
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

/// The columns of a new table, from their names and kinds.
pub(super) fn plan(
    options: &TableOptions,
    names: Option<&[String]>,
    kinds: &[Kind],
) -> std::result::Result<Vec<Reading>, Fault> {
    let width = kinds.len();
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
    let column = |(i, kind): (usize, &Kind)| {
        if Some(i) != target && dropped.contains(&i) {
            return Ok(Reading::Dropped);
        }
        kind.check(i)?;
        Ok(match &options.target {
            Target::Classes(_, list) if Some(i) == target => {
                let mut names = Names::default();
                names.all(list);
                Reading::ClassName { names, fixed: true }
            }
            Target::Value(_) if Some(i) == target => Reading::Value,
            _ if Some(i) == target && *kind == Kind::Number => Reading::ClassId,
            _ if Some(i) == target => Reading::ClassName { names: Names::default(), fixed: false },
            _ if listed.contains(&i) || (options.categories == Categories::Auto && *kind == Kind::Text) => {
                Reading::Category { names: Names::default(), fixed: false, optional: false }
            }
            _ => Reading::Number { sum: 0.0, count: 0, fill },
        })
    };
    kinds.iter().enumerate().map(column).collect()
}

pub(super) fn empty(path: &Path) -> NnError {
    NnError::Table { path: path.into(), row: 1, column: 1, what: "the file has no items".into() }
}

/// Rows as numbers.
pub(super) struct Rows {
    features: Vec<f32>,
    targets: Vec<f64>,
    pub(super) count: usize,
}

/// Reads all rows. `order` says for each column of the plan in which of the file's it is; none where the file has none. Errors: of the file; a
/// column that holds neither numbers nor texts; no good row; the answers of `malformed`.
pub(super) fn rows(
    file: &mut dyn Reader,
    path: &Path,
    order: &[Option<usize>],
    columns: &mut [Reading],
    missing: Missing,
    malformed: &mut dyn FnMut(NnError) -> Result<()>,
) -> Result<Rows> {
    let used = |(at, c): (&Option<usize>, &Reading)| at.filter(|_| !matches!(c, Reading::Dropped));
    let mut wanted = vec![false; file.kinds().len()];
    for at in order.iter().zip(&*columns).filter_map(used) {
        file.kinds()[at].check(at).map_err(|fault| file.fail(fault))?;
        wanted[at] = true;
    }
    file.select(&wanted)?;
    let mut all = Rows { features: vec![], targets: vec![], count: 0 };
    let mut row = Row::default();
    while let Some(found) = file.next()? {
        match found.and_then(|()| read_row(file, order, columns, missing, &mut row)) {
            Ok(()) if !row.skip => {
                row.features.iter().try_for_each(|&x| limits::push(&mut all.features, x))?;
                limits::push(&mut all.targets, row.target)?;
                all.count += 1;
            }
            Ok(()) => {}
            Err(fault) => malformed(file.fail(fault))?,
        }
    }
    if all.count == 0 { Err(empty(path)) } else { Ok(all) }
}

fn read_row(
    file: &dyn Reader,
    order: &[Option<usize>],
    columns: &mut [Reading],
    missing: Missing,
    row: &mut Row,
) -> std::result::Result<(), Fault> {
    row.features.clear();
    (row.target, row.skip) = (0.0, false);
    for (at, column) in order.iter().zip(columns.iter_mut()) {
        if let Some(at) = *at
            && !matches!(column, Reading::Dropped)
        {
            column.cell(at, file.cell(at), missing, row)?;
        }
    }
    Ok(())
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
            format: options.format,
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
