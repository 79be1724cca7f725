//! Tables in Parquet and Arrow, as pyarrow, pandas and Polars write them, and damaged ones. `files/tables/gen.py` writes the fixtures.

use std::path::{Path, PathBuf};

use crate::common::cpu;
use serde_json::json;
use trefoil_nn::NnError;
use trefoil_nn::config::{Config, SavedRun};
use trefoil_nn::data::table::{
    Categories, Column, ColumnRole, Missing, Table, TableFormat, TableOptions, Target,
};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/tables").join(name)
}

fn named(name: &str) -> Column {
    Column::Named(name.into())
}

/// Options of a file with texts and gaps, by its extension.
fn options(path: &Path, target: Target) -> TableOptions {
    let format = TableFormat::of(path).unwrap_or_default();
    let (categories, missing) = (Categories::Auto, Missing::Mean);
    TableOptions { format, target, categories, missing, ..TableOptions::default() }
}

fn read(name: &str, change: impl Fn(&mut TableOptions)) -> Result<Table, NnError> {
    let path = file(name);
    let mut o = options(&path, Target::Class(Column::Last));
    change(&mut o);
    Table::read(&path, &o, &mut Err)
}

fn refused(name: &str, change: impl Fn(&mut TableOptions)) -> String {
    read(name, change).unwrap_err().to_string()
}

#[test]
fn columns_have_the_types_that_pandas_gives_them() {
    for name in ["pandas.parquet", "pandas.feather"] {
        let t = read(name, |_| {}).unwrap();
        // Area, built and garden with their means, the price, three districts in alphabetical order; the index is no column.
        let want = [
            [95., 1931., 310.5, 1., 0., 1., 0.],
            [94., 1980., 99.25, 0., 0., 0., 1.],
            [64., 1975., 120., 0., 0., 0., 1.],
            [120., 1958., 405.75, 1., 0., 1., 0.],
            [41., 1999., 88., 0.6, 1., 0., 0.],
            [150., 1905., 500., 1., 0., 0., 0.],
        ];
        assert_eq!(t.features, want.concat(), "{name}");
        assert_eq!((t.rows, t.classes), (6, vec![1, 0, 0, 1, 0, 1]), "{name}");
        assert_eq!(t.schema.classes.as_deref().unwrap(), ["flat", "house"]);
        let names: Vec<_> = t.schema.columns.iter().map(|c| c.name.as_deref().unwrap()).collect();
        assert_eq!(names, ["area", "built", "price", "garden", "district", "kind"], "{name}");
        assert_eq!(Some(t.schema.format), TableFormat::of(name));

        // Values, classes of booleans, classes in an order, rows with gaps left out, a number as a category.
        let t = read(name, |o| o.target = Target::Value(named("price"))).unwrap();
        assert_eq!(t.values, [310.5, 99.25, 120., 405.75, 88., 500.]);
        let garden = |o: &mut TableOptions| {
            o.target = Target::Class(named("garden"));
            o.drop = vec![named("area"), named("built"), named("district")];
        };
        let e = refused(name, garden);
        assert!(e.contains("row 5, column 4: missing value (column `garden`)"), "{e}");
        let mut skipped = vec![];
        let mut o = options(&file(name), Target::Class(named("kind")));
        garden(&mut o);
        let t = Table::read(file(name), &o, &mut |e| {
            skipped.push(e.to_string());
            Ok(())
        });
        let t = t.unwrap();
        assert_eq!((t.classes, t.rows, skipped.len()), (vec![1, 0, 0, 1, 1], 5, 1));
        assert_eq!(t.schema.classes.as_deref().unwrap(), ["false", "true"]);
        let t = read(name, |o| {
            o.target = Target::Classes(named("kind"), vec!["house".into(), "flat".into()]);
            o.missing = Missing::Skip;
            o.categories = Categories::Columns(vec![named("district"), named("built")]);
        });
        let t = t.unwrap();
        assert_eq!((t.classes, t.rows), (vec![0, 1], 2));
        let years = ["1931", "1975"].map(String::from);
        let built = |c: &ColumnRole| match c {
            ColumnRole::Category { values, .. } => values.clone(),
            _ => vec![],
        };
        assert!(years.iter().all(|y| built(&t.schema.columns[1].role).contains(y)), "{:?}", t.schema);
    }
    // What CSV refuses is refused here.
    let e = refused("pandas.parquet", |o| o.missing = Missing::Refuse);
    assert!(e.contains("row 2, column 1: missing value (column `area`)"), "{e}");
    let e = refused("pandas.feather", |o| o.categories = Categories::Refuse);
    assert!(e.contains("row 1, column 5: `north, old` is not a number"), "{e}");
    let e = refused("pandas.feather", |o| o.target = Target::Class(named("price")));
    assert!(e.contains("`310.5` is not a class id"), "{e}");
    let e = refused("pandas.feather", |o| o.target = Target::Class(named("species")));
    assert!(e.contains("no column `species`") && e.contains("district, kind"), "{e}");
}

#[test]
fn numbers_have_every_width() {
    let t = read("numbers.arrows", |o| {
        o.missing = Missing::Value(-1.0);
        o.categories = Categories::Auto;
    });
    let t = t.unwrap();
    let width = t.schema.features();
    let row = |i: usize| &t.features[i * width..][..width];
    let two = |e: i32| 2f32.powi(e);
    let low = [-128., -two(15), -two(31), -two(63), 0., 0., 0., 0., -2.5, -1.5, -0.25, 9.];
    let high = [127., 32767., two(24), two(24), 255., 65535., two(31), two(63), 65504., two(100), 1e-3, 7.];
    assert_eq!(row(0)[..12], low);
    assert_eq!(row(1)[..12], high);
    assert_eq!(row(2)[..12], [-1.0; 12]);
    // Large strings u and v, views of three texts.
    assert_eq!(
        [0, 1, 2].map(|i| row(i)[12..].to_vec()),
        [vec![1., 0., 0., 1., 0.], vec![0., 0., 0., 0., 1.], vec![0., 1., 1., 0., 0.]]
    );
    assert_eq!(t.classes, [2, 0, 1]);
}

#[test]
fn dates_lists_and_bytes_are_refused_by_name() {
    for name in ["odd.parquet", "odd.arrow"] {
        let mut drop = vec![];
        for (column, words) in [
            ("day", "holds dates or times (Date32): write it as a number"),
            ("sold", "holds dates or times (Timestamp"),
            ("tags", "holds List"),
            ("raw", "holds Binary"),
            ("place", "holds Struct"),
        ] {
            let e = refused(name, |o| o.drop = drop.clone());
            assert!(e.contains(&format!("`{column}` {words}")) && e.contains("data.drop"), "{name}: {e}");
            assert!(matches!(read(name, |o| o.drop = drop.clone()), Err(NnError::Table { .. })));
            drop.push(named(column));
        }
        let t = read(name, |o| o.drop = drop.clone()).unwrap();
        assert_eq!((t.features, t.classes), (vec![1., 0., 2., 0., 3., 0.], vec![1, 0, 1]));
        let e = refused(name, |o| {
            o.target = Target::Class(named("day"));
            o.drop = drop.clone();
        });
        assert!(e.contains("`day` holds dates"), "{e}");
    }
}

#[test]
fn files_are_compressed_and_have_parts() {
    let parquet = ["none", "snappy", "gzip", "zstd", "lz4", "polars"].map(|n| format!("{n}.parquet"));
    let arrow = ["uncompressed.feather", "lz4.feather", "zstd.feather", "polars.arrow"];
    for name in parquet.iter().map(String::as_str).chain(arrow) {
        let t = read(name, |_| {}).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((t.rows, t.features.len()), (300, 300), "{name}");
        assert!(t.features.iter().enumerate().all(|(i, x)| *x == i as f32), "{name}");
        assert!(t.classes.iter().enumerate().all(|(i, c)| *c == i as i64 % 3), "{name}");
    }
    let e = refused("brotli.parquet", |_| {});
    assert!(e.to_lowercase().contains("brotli"), "{e}");
    // Files of other formats say what they are.
    let of = |name: &str, format| refused(name, |o| o.format = format);
    let e = of("none.parquet", TableFormat::Arrow);
    assert!(e.contains("a Parquet file, which the key `parquet` reads"), "{e}");
    let e = of("odd.arrow", TableFormat::Parquet);
    assert!(e.contains("an Arrow file, which the key `arrow` reads"), "{e}");
    let e = of("version1.feather", TableFormat::Arrow);
    assert!(e.contains("Feather version 1: write it as version 2"), "{e}");
    for format in [TableFormat::Parquet, TableFormat::Arrow] {
        let e = of("gen.py", format);
        assert!(e.contains("a file of another format"), "{e}");
        assert!(matches!(read("absent", |o| o.format = format), Err(NnError::Io { .. })));
    }
}

/// Files that are cut off, and files with a changed byte: errors of the file, or rows of finite numbers.
#[test]
fn damaged_files_are_errors() {
    let folder = std::env::temp_dir().join(format!("trefoil-damaged-tables-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (mut cut, mut changed) = (0, 0);
    for name in ["pandas.parquet", "zstd.parquet", "pandas.feather", "lz4.feather", "numbers.arrows"] {
        let bytes = std::fs::read(file(name)).unwrap();
        let path = folder.join(name);
        let o = TableOptions { missing: Missing::Value(0.0), ..options(&path, Target::Class(Column::Last)) };
        let attempt = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            match Table::read(&path, &o, &mut Err) {
                Ok(t) => {
                    assert!(t.rows > 0 && t.features.iter().all(|x| x.is_finite()), "{name}");
                    true
                }
                Err(NnError::Data { .. } | NnError::Format { .. } | NnError::Table { .. }) => false,
                Err(e) => panic!("{name}: {e:?}"),
            }
        };
        assert!(attempt(&bytes), "{name}");
        let step = (bytes.len() / 150).max(1);
        for n in (0..bytes.len()).step_by(step) {
            // A stream without its last mark is whole.
            let whole = attempt(&bytes[..n]);
            assert!(!whole || (name.ends_with("arrows") && n + 8 >= bytes.len()), "{name}: {n} bytes");
            cut += 1;
        }
        for i in (0..bytes.len()).step_by(step) {
            for with in [0x00, 0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[i] ^= with;
                attempt(&damaged);
                damaged[i] = with;
                attempt(&damaged);
                changed += 2;
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(cut > 500 && changed > 4000, "{cut} {changed}");
}

/// A run on a Parquet table, whose folder reads further tables in any format.
#[test]
fn runs_train_on_parquet_and_predict_from_any_table() {
    let folder = std::env::temp_dir().join(format!("trefoil-typed-run-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let run = folder.join("run");
    let json = json!({
        "data": { "parquet": file("snappy.parquet"), "label": "rest", "scale": 0.01, "split": "random", "test_share": 0.2 },
        "model": { "layers": [{ "type": "dense", "out_features": 3 }] },
        "train": { "epochs": 1, "run": run }
    });
    let device = cpu();
    let config = Config::from_value(json).unwrap();
    let data = config.data.open().unwrap();
    assert_eq!((data.train_items(), data.test_items(), data.classes()), (240, 60, 3));
    let sources = config.sources(&data, &device).unwrap();
    let model = config.model(&device, &sources).unwrap();
    let mut trainer = config.trainer(&model, &data, &sources, &device).unwrap();
    trainer.fit(&*sources.train, sources.test.as_deref(), &mut |_| true).unwrap();
    drop(trainer);

    let saved = SavedRun::open(&run).unwrap();
    assert_eq!(saved.mapping.classes.as_deref().unwrap(), ["r0", "r1", "r2"]);
    assert_eq!(saved.data().unwrap().train_items(), 240);
    let csv = folder.join("new.csv");
    std::fs::write(&csv, "x\n7\n").unwrap();
    for (path, rows) in [(csv, 1), (file("zstd.feather"), 300), (file("polars.parquet"), 300)] {
        let data = saved.config.data.inference(&path, &saved.mapping).unwrap();
        assert_eq!(data.test_items(), rows, "{path:?}");
        let sources = saved.config.sources(&data, &device).unwrap();
        let x = sources.test.as_deref().unwrap().epoch(None, 300).unwrap().next().unwrap().unwrap().x;
        let first = if rows == 1 { 0.07 } else { 0.0 };
        assert_eq!(x.to_vec::<f32>().unwrap()[0], first, "{path:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();

    // Keys of CSV alone, and a key that says another format than the file has.
    let wrong = |data: serde_json::Value| {
        let json = json!({ "data": data, "model": { "layers": [{ "type": "dense", "out_features": 3 }] } });
        match Config::from_value(json) {
            Ok(config) => config.data.open().unwrap_err().to_string(),
            Err(e) => e.to_string(),
        }
    };
    let e = wrong(json!({ "parquet": "a.parquet", "separator": ";" }));
    assert!(e.contains("data.separator") && e.contains("unknown field"), "{e}");
    let e = wrong(json!({ "arrow": file("snappy.parquet") }));
    assert!(e.contains("the key `parquet` reads"), "{e}");
}
