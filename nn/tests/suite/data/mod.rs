//! CSV files, data sets, batches.

mod loaders;
mod text;
mod training;
mod transforms;

use std::sync::Arc;

use crate::common::{cpu, devices};
use trefoil::DType;
use trefoil_nn::data::{
    Arrays, CsvOptions, Dataset, HostSource, ItemSource, Label, Loader, Order, ResidentSource, Source,
    Targets, read_csv, read_csv_skipping,
};
use trefoil_nn::{HostTensor, NnError, Result};

fn csv(text: &str, options: &CsvOptions) -> Result<Dataset> {
    file(text.as_bytes(), |path| read_csv(path, options))
}

fn file<T>(bytes: &[u8], read: impl FnOnce(&std::path::Path) -> T) -> T {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("trefoil-csv-{}-{n}.csv", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let out = read(&path);
    std::fs::remove_file(&path).unwrap();
    out
}

#[test]
fn files_with_and_without_header() {
    let o = CsvOptions { scale: 0.5, ..CsvOptions::default() };
    for text in ["a,b,label\n1,2,0\n3, 4 ,1\n", "1,2,0\r\n\r\n\"3\",4,1", "\u{feff}1,2,0\n3,4,1\n"] {
        let d = csv(text, &o).unwrap();
        assert_eq!(d.features(), [0.5, 1.0, 1.5, 2.0]);
        assert_eq!(d.targets(), &Targets::Classes(vec![0, 1]));
        assert_eq!((d.len(), d.item_shape(), d.classes()), (2, &[2][..], 2));
    }
    let o = CsvOptions { label: Label::Value(0), ..CsvOptions::default() };
    let d = csv("1.5,2\n-2,3\n", &o).unwrap();
    assert_eq!(d.targets(), &Targets::Values { data: vec![1.5, -2.0], shape: vec![1] });
}

#[test]
fn errors_name_row_and_column() {
    let o = CsvOptions::default();
    for (text, row, column, words) in [
        ("1,2,0\n1,,0\n", 2, 2, "missing"),
        ("a,b,c\n1,2,0\n1,x,0\n", 3, 2, "`x` is not a number"),
        ("1,2,0\n1,2\n", 2, 3, "expected 3 cells, found 2"),
        ("1,2,0\n1,2,3,4\n", 2, 4, "expected 3 cells, found 4"),
        ("1,2,0\n1,2,0.5\n", 2, 3, "class id"),
        ("1,2,0\n1,2,-1\n", 2, 3, "class id"),
        ("1,inf,0\n", 1, 2, "not finite"),
        ("a,b\n", 1, 1, "no items"),
        ("1\n2\n", 1, 1, "no such label column"),
    ] {
        match csv(text, &o) {
            Err(NnError::Table { row: r, column: c, what, .. }) => {
                assert_eq!((r, c), (row, column), "{text:?}: {what}");
                assert!(what.contains(words), "{text:?}: {what}");
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }
    assert!(matches!(read_csv("/no/such/file.csv", &o), Err(NnError::Io { .. })));
}

#[test]
fn data_sets_check_their_sizes() {
    assert!(Dataset::new(vec![], &[2], Targets::Classes(vec![])).is_err());
    assert!(Dataset::new(vec![1.0; 5], &[2], Targets::Classes(vec![0, 1])).is_err());
    assert!(Dataset::new(vec![1.0; 4], &[2], Targets::Classes(vec![0])).is_err());
    assert!(Dataset::new(vec![1.0; 4], &[2], Targets::Classes(vec![0, -1])).is_err());
    let d = Dataset::new(vec![1.0; 6], &[2], Targets::Classes(vec![0, 1, 2])).unwrap();
    assert!(d.slice(2, 2).is_err() && d.slice(0, 0).is_err());
    assert!(d.item(3).is_err() && d.items(&[0, usize::MAX]).is_err() && d.items(&[2, 0]).is_ok());
    assert_eq!(d.slice(1, 2).unwrap().targets(), &Targets::Classes(vec![1, 2]));
}

fn numbered(n: usize) -> Dataset {
    let features = (0..n).flat_map(|i| [i as f32, -(i as f32)]).collect();
    Dataset::new(features, &[2], Targets::Classes((0..n as i64).collect())).unwrap()
}

fn ids(s: &dyn Source, order: Option<Order>, batch: usize) -> Vec<Vec<i64>> {
    s.epoch(order, batch)
        .unwrap()
        .map(|b| {
            let b = b.unwrap();
            let y = b.y.to_vec::<i64>().unwrap();
            let want: Vec<f32> = y.iter().flat_map(|&i| [i as f32, -(i as f32)]).collect();
            assert_eq!(b.x.to_vec::<f32>().unwrap(), want);
            assert_eq!(b.len, y.len());
            y
        })
        .collect()
}

#[test]
fn both_sources_serve_the_same_batches() {
    let data = numbered(23);
    let resident = ResidentSource::new(&data, &cpu(), DType::F32).unwrap();
    let host = HostSource::new(Arc::new(data), &cpu(), DType::F32, 2);
    assert_eq!(ids(&resident, None, 10)[2], [20, 21, 22]);
    for order in [None, Some(Order { seed: 3, epoch: 0 }), Some(Order { seed: 3, epoch: 1 })] {
        let a = ids(&resident, order, 10);
        assert_eq!(a, ids(&host, order, 10));
        let mut all = a.concat();
        all.sort_unstable();
        assert_eq!(all, (0..23).collect::<Vec<_>>());
    }
    let at = |seed, epoch| ids(&resident, Some(Order { seed, epoch }), 23).concat();
    assert_ne!(at(3, 0), at(3, 1));
    assert_ne!(at(3, 0), at(4, 0));
    assert_eq!(at(3, 0), at(3, 0));
    assert!(resident.epoch(None, 0).is_err() && host.epoch(None, 0).is_err());
    // Leaving an epoch early stops the thread; nothing hangs.
    drop(host.epoch(None, 1).unwrap());
}

#[test]
fn malformed_lines_are_left_out_and_counted() {
    let text = "a,b,c\n1,2,0\n1,x,0\n3,4,1\n5\n5,6,-1\n";
    let o = CsvOptions::default();
    let (d, skipped) = file(text.as_bytes(), |p| read_csv_skipping(p, &o)).unwrap();
    assert_eq!((d.features(), skipped), (&[1.0, 2.0, 3.0, 4.0][..], 3));
    assert!(matches!(csv(text, &o), Err(NnError::Table { row: 3, column: 2, .. })));
    assert!(file(b"x,1,1\n", |p| read_csv_skipping(p, &o)).is_err());
}

#[test]
fn bytes_travel_as_bytes() {
    let x = HostTensor::from_slice(&[0u8, 128, 255, 7], &[2, 2]).unwrap();
    let y = HostTensor::from_slice(&[0.5f64, 1.5], &[2]).unwrap();
    let data = Arrays::new(x, y).unwrap();
    for d in devices() {
        let before = d.counters().uploads;
        let loader = Loader::new(Arc::new(data.clone()), &d).dtype(DType::F16);
        let b = loader.epoch(None, 2).unwrap().next().unwrap().unwrap();
        assert_eq!((b.x.dtype(), b.y.dtype()), (DType::F16, DType::F16));
        assert_eq!(b.x.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap(), [0.0, 128.0, 255.0, 7.0]);
        assert_eq!(d.counters().uploads - before, 2);
    }
    let set = data.dataset(1.0 / 255.0).unwrap();
    assert_eq!(set.targets(), &Targets::Values { data: vec![0.5, 1.5], shape: vec![1] });
    let one = HostTensor::from_slice(&[1i64], &[1]).unwrap();
    assert!(Arrays::new(data.x().clone(), one).is_err());
    let negative = HostTensor::from_slice(&[0i32, -1], &[2]).unwrap();
    assert!(Arrays::new(data.x().clone(), negative).is_err());
}
