//! `data`: the files that items come from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use trefoil::DType;

use super::data::{Common, OnError, TargetKind};
use super::kind::{Row, row};
use super::mapping::DataMapping;
use crate::core::error::{NnError, Result, invalid};
use crate::core::limits;
use crate::core::options::{COUNT, join};
use crate::train::data::cifar::images_and_classes;
use crate::train::data::table::{Categories, Column, Missing, Table, TableFormat, TableOptions, Target};
use crate::train::data::text::{Bytes, Characters, Encoding, read_text};
use crate::train::data::{
    Arrays, CifarLabels, Dataset, FixedInputs, GraphData, GraphOptions, HostTensor, ItemSource, MeshData,
    MeshLabels, MeshOptions, Targets, mesh_files, read_idx, read_npy,
};

/// What files hold.
pub(super) enum Content {
    /// Items with their targets.
    Items(Items),
    /// One long text for windows of `length` tokens.
    Text { text: String, encoding: Arc<dyn Encoding>, length: usize, step: usize },
}

/// Items with their targets.
pub(super) struct Items {
    pub(super) items: Arc<dyn ItemSource>,
    /// The class of every item, where items have one.
    pub(super) labels: Option<Vec<i64>>,
    /// Whether items are stored class by class, so that their order is no basis of a split.
    pub(super) sorted: bool,
    /// Factor of the features that is still to be applied.
    pub(super) scale: f64,
    /// Malformed items that were left out.
    pub(super) skipped: Vec<String>,
    /// What the network reads in every call, of which the items are parts.
    pub(super) fixed: Option<Arc<dyn FixedInputs>>,
    /// What was learned of the file.
    pub(super) mapping: DataMapping,
}

/// Reads files, with what another run has learned of its data.
pub(super) type Read = Arc<dyn Fn(&Common, Option<&DataMapping>) -> Result<Content> + Send + Sync>;

fn reader(f: impl Fn(&Common) -> Result<Items> + Send + Sync + 'static) -> Read {
    Arc::new(move |common, _| f(common).map(Content::Items))
}

/// Keys that hold paths.
pub(super) const PATHS: &[&str] = &[
    "csv",
    "parquet",
    "arrow",
    "npy",
    "npz",
    "idx",
    "cifar",
    "images",
    "text",
    "graph",
    "meshes",
    "labels",
    "nodes",
    "targets",
    "tokenizer",
];

/// What integer features are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Features {
    Values,
    Ids,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChannelKind {
    Gray,
    Rgb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EncodingKind {
    Characters,
    Bytes,
    Tokenizer,
}

/// `"refuse"`, `"auto"`, or a list of columns.
struct CategoriesKind(Categories);

impl<'de> Deserialize<'de> for CategoriesKind {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let v = Value::deserialize(d)?;
        Ok(CategoriesKind(match (v.as_str(), v.as_array()) {
            (Some("refuse"), _) => Categories::Refuse,
            (Some("auto"), _) => Categories::Auto,
            (_, Some(list)) => {
                let columns =
                    list.iter().cloned().map(Column::try_from).collect::<std::result::Result<_, _>>();
                Categories::Columns(columns.map_err(serde::de::Error::custom)?)
            }
            _ => {
                let text = format!("expected \"refuse\", \"auto\" or a list of columns, got {v}");
                return Err(serde::de::Error::custom(text));
            }
        }))
    }
}

/// `"refuse"`, `"skip"`, `"mean"`, or a number.
struct MissingKind(Missing);

impl<'de> Deserialize<'de> for MissingKind {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let v = Value::deserialize(d)?;
        Ok(MissingKind(match (v.as_str(), v.as_f64()) {
            (Some("refuse"), _) => Missing::Refuse,
            (Some("skip"), _) => Missing::Skip,
            (Some("mean"), _) => Missing::Mean,
            (_, Some(x)) if (x as f32).is_finite() => Missing::Value(x as f32),
            _ => {
                let text = format!("expected \"refuse\", \"skip\", \"mean\" or a number, got {v}");
                return Err(serde::de::Error::custom(text));
            }
        }))
    }
}

/// One file or several.
struct Files(Vec<PathBuf>);

impl<'de> Deserialize<'de> for Files {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a file or a list of files")]
        enum Given {
            One(PathBuf),
            Several(Vec<PathBuf>),
        }
        Ok(Files(match Given::deserialize(d)? {
            Given::One(file) => vec![file],
            Given::Several(files) => files,
        }))
    }
}

/// The kinds of files. The first key of a row, of its name, is the file.
pub(super) static FILES: &[Row<Read>] = &[
    row!("csv" {
        csv: PathBuf;
        header: Option<bool> = null;
        label: Column = "last";
        separator: char = ",";
        categorical: CategoriesKind = "refuse";
        missing: MissingKind = "refuse";
        classes: Option<Vec<String>> = null;
        drop: Vec<Column> = [];
    } |path| {
        let columns = TableOptions { header, separator, ..columns(categorical, missing, drop) };
        of_table(path, csv, label, classes, columns)?
    }),
    row!("parquet" {
        parquet: PathBuf;
        label: Column = "last";
        categorical: CategoriesKind = "refuse";
        missing: MissingKind = "refuse";
        classes: Option<Vec<String>> = null;
        drop: Vec<Column> = [];
    } |path| {
        let columns = TableOptions { format: TableFormat::Parquet, ..columns(categorical, missing, drop) };
        of_table(path, parquet, label, classes, columns)?
    }),
    row!("arrow" {
        arrow: PathBuf;
        label: Column = "last";
        categorical: CategoriesKind = "refuse";
        missing: MissingKind = "refuse";
        classes: Option<Vec<String>> = null;
        drop: Vec<Column> = [];
    } |path| {
        let columns = TableOptions { format: TableFormat::Arrow, ..columns(categorical, missing, drop) };
        of_table(path, arrow, label, classes, columns)?
    }),
    row!("npy" { npy: PathBuf; targets: Option<PathBuf> = null; features: Features = "values"; } |_path| {
        reader(move |c| {
            let y = targets.as_ref().map(read_npy).transpose()?;
            arrays(read_npy(&npy)?, y, features, c)
        })
    }),
    row!("npz" {
        npz: PathBuf;
        x: String = "x";
        y: String = "y";
        features: Features = "values";
    } |_path| reader(move |c| {
        let alone = c.target == Some(TargetKind::Input);
        let names = [x.as_str(), y.as_str()];
        let mut all = open_npz(&npz, if alone { &names[..1] } else { &names })?;
        let features_of = all.get(&x).cloned().ok_or_else(|| invalid("npz", "x", "an array", "none"))?;
        arrays(features_of, all.remove(&y), features, c)
    })),
    row!("idx" { idx: PathBuf; targets: Option<PathBuf> = null; } |_path| reader(move |c| {
        let y = targets.as_ref().map(read_idx).transpose()?;
        arrays(read_idx(&idx)?, y, Features::Values, c)
    })),
    row!("cifar" { cifar: Files; dataset: CifarLabels = "cifar10"; } |_path| reader(move |c| {
        let [x, y] = images_and_classes(&cifar.0, dataset)?;
        arrays(x, Some(y), Features::Values, c)
    })),
    row!("images" {
        images: PathBuf;
        channels: ChannelKind = "rgb";
        size: Option<[u32; 2]> = null, COUNT;
    } |_path| reader(move |c| folder(&images, channels == ChannelKind::Gray, size, c))),
    row!("text" {
        text: PathBuf;
        length: usize, COUNT;
        step: Option<usize> = null, COUNT;
        encoding: EncodingKind = "characters";
        tokenizer: Option<PathBuf> = null;
    } |path| {
        if (encoding == EncodingKind::Tokenizer) != tokenizer.is_some() {
            let what = "expected a file with the encoding \"tokenizer\", and only with it";
            return Err(NnError::config(join(path, "tokenizer"), what));
        }
        Arc::new(move |_, mapping| {
            let written = read_text(&text)?;
            let encoding: Arc<dyn Encoding> = match (encoding, &tokenizer) {
                (EncodingKind::Characters, _) if let Some(known) = mapping.and_then(|m| m.vocabulary.as_ref()) => {
                    Arc::new(Characters::of(known))
                }
                (EncodingKind::Bytes, _) => Arc::new(Bytes),
                (EncodingKind::Tokenizer, Some(file)) => open_tokenizer(file)?,
                _ => Arc::new(Characters::of(&written)),
            };
            Ok(Content::Text { text: written, encoding, length, step: step.unwrap_or(length) })
        })
    }),
    row!("graph" {
        graph: PathBuf;
        labels: PathBuf;
        nodes: Option<PathBuf> = null;
        undirected: bool = false;
        weighted: bool = false;
        header: Option<bool> = null;
        separator: char = ",";
    } |_path| reader(move |c| {
        let options = GraphOptions { header, separator, undirected, weighted, scale: c.scale as f32 };
        let graph = GraphData::read_csv(&graph, nodes.as_deref(), &options)?;
        let items = graph.labels(&labels, &options)?;
        let classes = Some(items.y().to_vec::<i64>()?);
        Ok(parts_of(graph, items, classes, DataMapping::default()))
    })),
    row!("meshes" {
        meshes: Files;
        labels: Option<PathBuf> = null;
        stacked: bool = false;
        spiral_length: Option<usize> = null, COUNT;
        header: Option<bool> = null;
        separator: char = ",";
    } |path| {
        if stacked && spiral_length.is_some() {
            let what = "expected it for vertices, which stacked meshes do not give, got both";
            return Err(NnError::config(join(path, "spiral_length"), what));
        }
        let path = path.to_string();
        Arc::new(move |c: &Common, mapping: Option<&DataMapping>| {
            let files = mesh_files(&meshes.0)?;
            if files.is_empty() {
                return Err(NnError::config(join(&path, "meshes"), "expected at least one file, got none"));
            }
            let found = match &labels {
                Some(csv) => {
                    let names = mapping.and_then(|m| m.classes.as_deref());
                    MeshLabels::read_csv(csv, &files, header, separator, names)?
                }
                None => MeshLabels::of_folders(&files)?,
            };
            if mapping.is_some_and(|m| m.classes != found.names) {
                let what = "expected the ids of classes, as in training, got names";
                return Err(NnError::config(join(&path, "labels"), what));
            }
            let options = MeshOptions { stacked, spiral_length, scale: c.scale as f32 };
            let all = MeshData::read(&files, &options)?;
            of_meshes(all, found, labels.is_none()).map(Content::Items)
        })
    }),
];

/// Items that are parts of data which the network reads as a whole.
fn parts_of(
    all: impl FixedInputs + 'static,
    items: Arrays,
    labels: Option<Vec<i64>>,
    mapping: DataMapping,
) -> Items {
    let (items, fixed) = (Arc::new(items), Some(Arc::new(all) as Arc<dyn FixedInputs>));
    Items { items, labels, sorted: false, scale: 1.0, skipped: vec![], fixed, mapping }
}

/// The meshes that have a class as items; `sorted` where they stand class by class.
fn of_meshes(all: MeshData, labels: MeshLabels, sorted: bool) -> Result<Items> {
    let MeshLabels { meshes, classes, names } = labels;
    let list = |v: &[i64]| HostTensor::from_slice(v, &[v.len()]);
    let items = Arrays::new(list(&meshes)?, list(&classes)?)?;
    let mapping = DataMapping { classes: names, ..DataMapping::default() };
    Ok(Items { sorted, ..parts_of(all, items, Some(classes), mapping) })
}

#[cfg(feature = "archives")]
fn open_npz(file: &Path, names: &[&str]) -> Result<BTreeMap<String, HostTensor>> {
    crate::train::data::read_npz(file, Some(names))
}

#[cfg(not(feature = "archives"))]
fn open_npz(_file: &Path, _names: &[&str]) -> Result<BTreeMap<String, HostTensor>> {
    Err(NnError::config("data.npz", "this build reads no archives: build it with `--features archives`"))
}

#[cfg(feature = "tokenizers")]
fn open_tokenizer(file: &Path) -> Result<Arc<dyn Encoding>> {
    Ok(Arc::new(crate::train::data::text::Tokenizer::open(file)?))
}

#[cfg(not(feature = "tokenizers"))]
fn open_tokenizer(_file: &Path) -> Result<Arc<dyn Encoding>> {
    Err(NnError::config(
        "data.encoding",
        "this build has no tokenizers: build it with `--features tokenizers`",
    ))
}

/// What becomes of the columns of a table.
fn columns(categories: CategoriesKind, missing: MissingKind, drop: Vec<Column>) -> TableOptions {
    TableOptions { categories: categories.0, missing: missing.0, drop, ..TableOptions::default() }
}

/// A reader of a table, with classes or values in the column `label`; `options` says the rest. Errors: names of classes that are none.
fn of_table(
    path: &str,
    file: PathBuf,
    label: Column,
    classes: Option<Vec<String>>,
    options: TableOptions,
) -> Result<Read> {
    let different = |list: &Vec<String>| list.iter().collect::<BTreeSet<_>>().len() == list.len();
    if classes.as_ref().is_some_and(|list| list.is_empty() || !different(list)) {
        let what = "expected different names of classes, got none or one twice";
        return Err(NnError::config(join(path, "classes"), what));
    }
    Ok(Arc::new(move |c, mapping| {
        let target = match (c.target, &classes) {
            (Some(TargetKind::Value), _) => Target::Value(label.clone()),
            (_, Some(list)) => Target::Classes(label.clone(), list.clone()),
            _ => Target::Class(label.clone()),
        };
        let options = TableOptions { target, scale: c.scale as f32, ..options.clone() };
        table(&file, &options, c, mapping).map(Content::Items)
    }))
}

fn table(path: &Path, options: &TableOptions, c: &Common, mapping: Option<&DataMapping>) -> Result<Items> {
    let mut skipped = vec![];
    let mut malformed = |e: NnError| match c.on_error {
        OnError::Fail => Err(e),
        OnError::Skip => limits::push(&mut skipped, e.to_string()),
    };
    let table = match mapping.and_then(|m| m.table.as_ref()) {
        Some(schema) => schema.read(path, true, &mut malformed)?,
        None => Table::read(path, options, &mut malformed)?,
    };
    items_of(table, c, skipped)
}

/// The rows of a table as items.
fn items_of(table: Table, c: &Common, skipped: Vec<String>) -> Result<Items> {
    let (width, labels) = (table.schema.features(), table.classes);
    let targets = match (labels.is_empty(), table.values.is_empty()) {
        (false, _) => Targets::Classes(limits::copy(&labels)?),
        (_, false) => Targets::Values { data: table.values, shape: vec![1] },
        _ => Targets::Values { data: limits::collect((0..table.rows).map(|_| 0.0))?, shape: vec![1] },
    };
    let mut data = Dataset::new(table.features, &[width], targets)?;
    if let Some(shape) = &c.item_shape {
        check_item(shape, width)?;
        data = data.reshaped(shape)?;
    }
    let labels = (!labels.is_empty()).then_some(labels);
    let mapping = DataMapping::of_table(table.schema);
    Ok(Items { items: Arc::new(data), labels, sorted: false, scale: 1.0, skipped, fixed: None, mapping })
}

/// Kinds of files that are tables.
const TABLES: [&str; 3] = ["csv", "parquet", "arrow"];

/// Items of a further file without targets. Errors: kinds of files whose items are no rows.
pub(super) fn inference(
    kind: &str,
    json: &Value,
    file: &Path,
    mapping: &DataMapping,
    c: &Common,
) -> Result<Items> {
    if let Some(schema) = mapping.table.as_ref().filter(|_| TABLES.contains(&kind)) {
        let mut skipped = vec![];
        let table = schema.read(file, false, &mut |e| match c.on_error {
            OnError::Fail => Err(e),
            OnError::Skip => limits::push(&mut skipped, e.to_string()),
        })?;
        return items_of(table, c, skipped);
    }
    let option = |name: &str, default: &str| json[name].as_str().unwrap_or(default).to_string();
    let features = match option("features", "values").as_str() {
        "ids" => Features::Ids,
        _ => Features::Values,
    };
    let alone = Common { target: Some(TargetKind::Input), ..c.clone() };
    match kind {
        "npy" => arrays(read_npy(file)?, None, features, &alone),
        "idx" => arrays(read_idx(file)?, None, features, &alone),
        "npz" => {
            let x = option("x", "x");
            let found = open_npz(file, &[&x])?.remove(&x);
            let found = found.ok_or_else(|| invalid("npz", "x", "an array", "none"))?;
            arrays(found, None, features, &alone)
        }
        _ => {
            let what = format!(
                "expected data of csv, parquet, arrow, npy, npz or idx, whose items are rows, got a run on `{kind}`"
            );
            Err(NnError::config("data", what))
        }
    }
}

/// Error unless items have as many elements as the shape.
fn check_item(shape: &[usize], have: usize) -> Result<()> {
    if shape.iter().product::<usize>() == have {
        return Ok(());
    }
    let what = format!("expected a shape of {have} elements, got {shape:?}");
    Err(NnError::config("data.item_shape", what))
}

fn arrays(mut x: HostTensor, y: Option<HostTensor>, features: Features, c: &Common) -> Result<Items> {
    let n = x.shape.first().copied().unwrap_or(0);
    if let Some(shape) = &c.item_shape {
        check_item(shape, x.numel().checked_div(n).unwrap_or(0))?;
        x.shape = [&[n], shape.as_slice()].concat();
    }
    x = match (features, x.dtype) {
        (Features::Ids, DType::F16 | DType::F32 | DType::F64) => {
            let what = format!("expected integers for \"ids\", got an array of {}", x.dtype);
            return Err(NnError::config("data.features", what));
        }
        (Features::Ids, _) => x.to_dtype(DType::I64)?,
        // Bytes stay bytes until they are on the device.
        (Features::Values, DType::U8) => x,
        (Features::Values, _) => x.to_dtype(DType::F32)?,
    };
    let y = match (c.target, y) {
        (Some(TargetKind::Input), _) => {
            HostTensor::new(DType::F32, &[n, 1], limits::zeroed(limits::tensor_bytes(DType::F32, n)?)?)?
        }
        (_, None) => {
            let what = "expected \"input\" for features without targets, or a file of targets, got neither";
            return Err(NnError::config("data.target", what));
        }
        (Some(TargetKind::Class), Some(y)) => y.to_dtype(DType::I64)?,
        (Some(TargetKind::Value), Some(y)) => y.to_dtype(DType::F32)?,
        (None, Some(y)) if y.dtype.is_float() => y.to_dtype(DType::F32)?,
        (None, Some(y)) => y.to_dtype(DType::I64)?,
    };
    let y = match (y.dtype.is_float(), y.shape.as_slice()) {
        // One value per item is a vector of one, as from tables.
        (true, &[n]) => HostTensor { shape: vec![n, 1], ..y },
        _ => y,
    };
    let labels = if y.shape.len() == 1 { Some(y.to_vec::<i64>()?) } else { None };
    let scale = if features == Features::Ids { 1.0 } else { c.scale };
    Ok(Items {
        items: Arc::new(Arrays::new(x, y)?),
        labels,
        sorted: false,
        scale,
        skipped: vec![],
        fixed: None,
        mapping: DataMapping::default(),
    })
}

#[cfg(feature = "images")]
fn folder(root: &Path, gray: bool, size: Option<[u32; 2]>, c: &Common) -> Result<Items> {
    use crate::train::data::{Channels, ImageFolder};
    let mut images = ImageFolder::open(root)?.channels(if gray { Channels::Gray } else { Channels::Rgb });
    if let Some([h, w]) = size {
        images = images.resize(h, w)?;
    }
    let labels = limits::collect((0..images.len()).map(|i| images.class(i).unwrap_or(0)))?;
    let mapping = DataMapping { classes: Some(images.class_names().to_vec()), ..DataMapping::default() };
    Ok(Items {
        items: Arc::new(images),
        labels: Some(labels),
        sorted: true,
        scale: c.scale,
        skipped: vec![],
        fixed: None,
        mapping,
    })
}

#[cfg(not(feature = "images"))]
fn folder(_root: &Path, _gray: bool, _size: Option<[u32; 2]>, _c: &Common) -> Result<Items> {
    Err(NnError::config("data.images", "this build reads no images: build it with `--features images`"))
}

/// Makes relative paths relative to a folder.
pub(super) fn rebase(json: &mut Value, folder: &Path) {
    let Value::Object(keys) = json else { return };
    for (key, v) in keys {
        match v {
            v if PATHS.contains(&key.as_str()) => rebase_path(v, folder),
            v if key == "test" => rebase(v, folder),
            _ => {}
        }
    }
}

/// A path, or a list of them.
fn rebase_path(json: &mut Value, folder: &Path) {
    match json {
        Value::String(path) => *path = folder.join(&*path).to_string_lossy().into_owned(),
        Value::Array(files) => files.iter_mut().for_each(|f| rebase_path(f, folder)),
        _ => {}
    }
}
