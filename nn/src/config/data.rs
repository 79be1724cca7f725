//! `data`: what a run trains and tests on.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use trefoil::DType;

use super::{check, one};
use crate::data::{CsvOptions, Dataset, HostSource, Label, ResidentSource, Source, read_csv};
use crate::error::Result;
use crate::tensor::Device;

/// Which CSV file and which of its rows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// The file.
    pub csv: PathBuf,
    /// Whether its first line is a header; found out if absent.
    #[serde(default)]
    pub header: Option<bool>,
    /// Target column: `"last"` or its position from 0.
    #[serde(default)]
    pub label: Column,
    /// What the target column holds.
    #[serde(default)]
    pub target: TargetKind,
    /// Factor of the features.
    #[serde(default = "one")]
    pub scale: f64,
    /// Shape of one item's features; by default a vector.
    #[serde(default)]
    pub item_shape: Option<Vec<usize>>,
    /// The first rows train; by default all that do not test.
    #[serde(default)]
    pub train_rows: Option<usize>,
    /// The last rows test; none by default.
    #[serde(default)]
    pub test_rows: usize,
    /// Keep the data on the device if it takes at most this many bytes, otherwise upload batches ahead of use. Default 1 GiB.
    #[serde(default = "gib")]
    pub resident_bytes: usize,
}

fn gib() -> usize {
    1 << 30
}

/// A column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub enum Column {
    /// The last.
    #[default]
    Last,
    /// This one, from 0.
    At(usize),
}

impl TryFrom<serde_json::Value> for Column {
    type Error = String;
    fn try_from(v: serde_json::Value) -> Result<Self, String> {
        match (v.as_str(), v.as_u64()) {
            (Some("last"), _) => Ok(Column::Last),
            (_, Some(n)) => Ok(Column::At(n as usize)),
            _ => Err(format!("expected \"last\" or a column number from 0, got {v}")),
        }
    }
}

/// Meaning of targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// Class ids.
    #[default]
    Class,
    /// Real numbers.
    Value,
}

impl DataConfig {
    pub(super) fn check(&self) -> Result<()> {
        check(self.scale.is_finite(), "data.scale", "a finite number", self.scale)?;
        check(self.train_rows != Some(0), "data.train_rows", "at least 1", 0)?;
        if let Some(s) = &self.item_shape {
            check(
                !s.is_empty() && !s.contains(&0),
                "data.item_shape",
                "sizes of at least 1",
                format!("{s:?}"),
            )?;
        }
        Ok(())
    }

    /// Training and test data. Errors: of the file, and rows that it does not have.
    pub fn datasets(&self) -> Result<(Dataset, Option<Dataset>)> {
        let d = self;
        let label = match (d.target, d.label) {
            (TargetKind::Class, Column::Last) => Label::LastClass,
            (TargetKind::Class, Column::At(c)) => Label::Class(c),
            (TargetKind::Value, Column::Last) => Label::LastValue,
            (TargetKind::Value, Column::At(c)) => Label::Value(c),
        };
        let mut all =
            read_csv(&d.csv, &CsvOptions { header: d.header, label, scale: d.scale as f32, separator: ',' })?;
        if let Some(shape) = &d.item_shape {
            let key = "data.item_shape";
            let have = all.features().len() / all.len();
            check(
                shape.iter().product::<usize>() == have,
                key,
                &format!("{have} elements"),
                format!("{shape:?}"),
            )?;
            all = Dataset::new(all.features().to_vec(), shape, all.targets().clone())?;
        }
        let n = all.len();
        let rest = format!("fewer than the file's {n} rows");
        check(d.test_rows < n, "data.test_rows", &rest, d.test_rows)?;
        let train = d.train_rows.unwrap_or(n - d.test_rows);
        check(
            train <= n - d.test_rows,
            "data.train_rows",
            &format!("at most {} rows", n - d.test_rows),
            train,
        )?;
        let test = if d.test_rows > 0 { Some(all.slice(n - d.test_rows, d.test_rows)?) } else { None };
        Ok((all.slice(0, train)?, test))
    }

    /// A data set as batches on a device: resident if it is small enough, uploaded ahead of use otherwise.
    pub fn source(&self, data: Dataset, device: &Device) -> Result<Box<dyn Source>> {
        if data.bytes() <= self.resident_bytes {
            return Ok(Box::new(ResidentSource::new(&data, device, DType::F32)?));
        }
        Ok(Box::new(HostSource::new(Arc::new(data), device, DType::F32, 2)))
    }
}
