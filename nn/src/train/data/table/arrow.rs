//! Tables in Parquet and Arrow: batches of typed columns.

use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Decimal128Type, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::ipc::Ipc;
use super::reading::{Cell, Fault, Kind, Reader};
use crate::core::error::{At, NnError, Result};

const PARQUET: &str = "a Parquet file";
const ARROW: &str = "an Arrow IPC file or stream (Feather version 2)";
/// Rows of Parquet that are decoded at a time.
const ROWS: usize = 4096;
/// Bytes by which formats are told apart.
const START: usize = 8;

/// What the reader of a format answers. What it refuses is an error of the file, and so is a panic, which it should not have on any file.
fn guarded<T, E: Display>(
    path: &Path,
    format: &str,
    f: impl FnOnce() -> std::result::Result<T, E>,
) -> Result<T> {
    let fail = |found: String| Err(NnError::data(path, At::File, format!("{format} that is whole"), found));
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => fail(format!("a damaged one ({e})")),
        Err(_) => fail("a damaged one, which its reader does not get along with".into()),
    }
}

/// What a column holds, by its type.
fn kind(name: &str, of: &DataType) -> Kind {
    use DataType::*;
    match of {
        Null | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 => Kind::Number,
        Float16 | Float32 | Float64 | Decimal128(..) => Kind::Number,
        Boolean => Kind::Boolean,
        Utf8 | LargeUtf8 | Utf8View => Kind::Text,
        Dictionary(_, values) => kind(name, values),
        Date32 | Date64 | Timestamp(..) | Time32(_) | Time64(_) | Duration(_) | Interval(_) => {
            Kind::Other(format!(
                "`{name}` holds dates or times ({of}): write it as a number, such as the days since a first one, or leave it out with data.drop"
            ))
        }
        _ => Kind::Other(format!(
            "`{name}` holds {of}: write it as columns of numbers or texts, or leave it out with data.drop"
        )),
    }
}

/// A cell of a column of one of the kinds above.
fn cell(array: &dyn Array, i: usize) -> Cell<'_> {
    macro_rules! value {
        ($t:ty) => {
            array.as_primitive::<$t>().value(i)
        };
    }
    let number = |x: f64| if x.is_nan() { Cell::Missing } else { Cell::Number(x) };
    if array.is_null(i) {
        return Cell::Missing;
    }
    match array.data_type() {
        DataType::Boolean => Cell::Boolean(array.as_boolean().value(i)),
        DataType::Int8 => Cell::Integer(value!(Int8Type).into()),
        DataType::Int16 => Cell::Integer(value!(Int16Type).into()),
        DataType::Int32 => Cell::Integer(value!(Int32Type).into()),
        DataType::Int64 => Cell::Integer(value!(Int64Type)),
        DataType::UInt8 => Cell::Integer(value!(UInt8Type).into()),
        DataType::UInt16 => Cell::Integer(value!(UInt16Type).into()),
        DataType::UInt32 => Cell::Integer(value!(UInt32Type).into()),
        DataType::UInt64 => {
            let n = value!(UInt64Type);
            i64::try_from(n).map_or(Cell::Number(n as f64), Cell::Integer)
        }
        DataType::Float16 => number(value!(Float16Type).into()),
        DataType::Float32 => number(value!(Float32Type).into()),
        DataType::Float64 => number(value!(Float64Type)),
        DataType::Decimal128(_, scale) => {
            number(value!(Decimal128Type) as f64 / 10f64.powi(i32::from(*scale)))
        }
        DataType::Utf8 => Cell::Text(array.as_string::<i32>().value(i)),
        DataType::LargeUtf8 => Cell::Text(array.as_string::<i64>().value(i)),
        DataType::Utf8View => Cell::Text(array.as_string_view().value(i)),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            match cell(dictionary.keys(), i) {
                Cell::Integer(key) => cell(dictionary.values(), key as usize),
                _ => Cell::Missing,
            }
        }
        // Of nulls; other types are refused before.
        _ => Cell::Missing,
    }
}

/// Whether pandas made a column of an index that has no name.
fn is_index(name: &str) -> bool {
    let number = name.strip_prefix("__index_level_").and_then(|n| n.strip_suffix("__"));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

type Next = Box<dyn FnMut() -> std::result::Result<Option<RecordBatch>, ArrowError>>;

/// A file that gives its rows in batches.
pub(super) struct Batches<'a> {
    path: &'a Path,
    format: &'static str,
    names: Vec<String>,
    kinds: Vec<Kind>,
    /// Where each column is among those of the file, and then of a batch.
    places: Vec<usize>,
    /// A Parquet file, until it is known which columns are read.
    parquet: Option<ParquetRecordBatchReaderBuilder<File>>,
    next: Next,
    batch: RecordBatch,
    /// The row after the present one, in the batch and in the file.
    ahead: usize,
    row: usize,
}

impl<'a> Batches<'a> {
    fn new(path: &'a Path, format: &'static str, schema: &Schema, next: Next) -> Self {
        let fields = schema.fields().iter().enumerate().filter(|(_, f)| !is_index(f.name()));
        let (places, fields): (Vec<usize>, Vec<_>) = fields.unzip();
        Batches {
            path,
            format,
            names: fields.iter().map(|f| f.name().clone()).collect(),
            kinds: fields.iter().map(|f| kind(f.name(), f.data_type())).collect(),
            places,
            parquet: None,
            next,
            batch: RecordBatch::new_empty(SchemaRef::new(Schema::empty())),
            ahead: 0,
            row: 0,
        }
    }

    /// Opens a Parquet file. Errors: [`NnError::Io`], [`NnError::Format`], [`NnError::Data`].
    pub(super) fn parquet(path: &'a Path) -> Result<Self> {
        let (file, start) = open(path)?;
        if start.get(..4) != Some(b"PAR1") {
            return Err(foreign(path, PARQUET, &start));
        }
        let file = guarded(path, PARQUET, || ParquetRecordBatchReaderBuilder::try_new(file))?;
        let schema = file.schema().clone();
        Ok(Batches { parquet: Some(file), ..Batches::new(path, PARQUET, &schema, Box::new(|| Ok(None))) })
    }

    /// Opens a file or stream of Arrow. Errors: [`NnError::Io`], [`NnError::Format`], [`NnError::Data`].
    pub(super) fn ipc(path: &'a Path) -> Result<Self> {
        let (file, start) = open(path)?;
        // A stream begins with a mark, or as it did once with the length of its first message.
        let stream = start.starts_with(&[0xff; 4]) || (start.len() == START && start[2..4] == [0, 0]);
        let is_file = start.starts_with(b"ARROW1");
        if !is_file && !stream {
            return Err(foreign(path, ARROW, &start));
        }
        let mut file = guarded(path, ARROW, || Ipc::open(file, is_file))?;
        let schema = file.schema.clone();
        Ok(Batches::new(path, ARROW, &schema, Box::new(move || file.next())))
    }
}

/// Opens a file: it, from its start, and its first bytes.
fn open(path: &Path) -> Result<(File, Vec<u8>)> {
    let mut file = File::open(path).map_err(NnError::io("open", path))?;
    let mut start = vec![];
    (&mut file).take(START as u64).read_to_end(&mut start).map_err(NnError::io("read", path))?;
    file.rewind().map_err(NnError::io("read", path))?;
    Ok((file, start))
}

/// The error of a file of another format.
fn foreign(path: &Path, expected: &'static str, start: &[u8]) -> NnError {
    let found = match start {
        [b'P', b'A', b'R', b'1', ..] => "a Parquet file, which the key `parquet` reads",
        [b'P', b'A', b'R', b'E', ..] => "an encrypted Parquet file: write it without encryption",
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] => "an Arrow file, which the key `arrow` reads",
        [b'F', b'E', b'A', b'1', ..] => {
            "Feather version 1: write it as version 2, which `to_feather` of pandas does"
        }
        [] => "an empty file",
        _ => "a file of another format",
    };
    NnError::Format { path: path.into(), expected, found }
}

impl Reader for Batches<'_> {
    fn names(&self) -> Option<&[String]> {
        Some(&self.names)
    }

    fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    fn select(&mut self, wanted: &[bool]) -> Result<()> {
        let Some(file) = self.parquet.take() else { return Ok(()) };
        let read: Vec<usize> =
            self.places.iter().zip(wanted).filter(|(_, wanted)| **wanted).map(|(at, _)| *at).collect();
        // A batch has the columns that are read; the others are not asked for.
        for at in &mut self.places {
            *at = read.iter().position(|r| r == at).unwrap_or(usize::MAX);
        }
        let mask = ProjectionMask::roots(file.parquet_schema(), read);
        let build = || file.with_projection(mask).with_batch_size(ROWS).build();
        let mut batches = guarded(self.path, self.format, build)?;
        self.next = Box::new(move || batches.next().transpose());
        Ok(())
    }

    fn next(&mut self) -> Result<Option<std::result::Result<(), Fault>>> {
        while self.ahead == self.batch.num_rows() {
            let Some(batch) = guarded(self.path, self.format, &mut self.next)? else { return Ok(None) };
            (self.batch, self.ahead) = (batch, 0);
        }
        (self.ahead, self.row) = (self.ahead + 1, self.row + 1);
        Ok(Some(Ok(())))
    }

    fn cell(&self, column: usize) -> Cell<'_> {
        cell(self.batch.column(self.places[column]), self.ahead - 1)
    }

    fn fail(&self, (column, what): Fault) -> NnError {
        let named = self.names.get(column - 1).filter(|name| !what.contains(*name));
        let what = named.map_or(what.clone(), |name| format!("{what} (column `{name}`)"));
        NnError::Table { path: self.path.into(), row: self.row.max(1), column, what }
    }
}
