//! Arrays of NumPy, IDX and CIFAR files.

use std::path::Path;

use super::{Folder, fixture, values};
use crate::common::cpu;
use trefoil_nn::data::{CifarLabels, ItemSource, read_cifar, read_idx, read_idx_pair, read_npy, read_npz};
use trefoil_nn::{At, DType, HostTensor, NnError};

#[test]
fn arrays_of_numpy() {
    let all = read_npz(fixture("arrays.npz"), None);
    match all {
        Err(NnError::Data { found, .. }) => {
            assert!(found.contains("<u8") || found.contains("<U1"), "{found}")
        }
        other => panic!("{other:?}"),
    }
    let names =
        ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "bool", "big", "big_int", "fortran"];
    let arrays = read_npz(fixture("arrays.npz"), Some(&names)).unwrap();
    for (name, dtype) in names.iter().zip([
        DType::F16,
        DType::F32,
        DType::F64,
        DType::I32,
        DType::I32,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::F32,
        DType::I64,
        DType::F32,
    ]) {
        let t = &arrays[*name];
        assert_eq!((t.dtype, t.shape.as_slice()), (dtype, &[2, 3][..]), "{name}");
        let want: Vec<f64> = match *name {
            "bool" => vec![0.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            n if n.starts_with('u') => (0..6).map(f64::from).collect(),
            n if n.starts_with("big") => (0..6).map(f64::from).collect(),
            _ => (-2..4).map(f64::from).collect(),
        };
        assert_eq!(values(t), want, "{name}");
    }
    let scalar = &read_npz(fixture("arrays.npz"), Some(&["scalar"])).unwrap()["scalar"];
    assert_eq!((scalar.shape.len(), scalar.to_vec::<f64>().unwrap()), (0, vec![7.5]));
    match read_npz(fixture("arrays.npz"), Some(&["other"])) {
        Err(NnError::Data { at: At::Entry(name), .. }) => assert_eq!(name, "other"),
        other => panic!("{other:?}"),
    }
    let t = read_npy(fixture("fortran.npy")).unwrap();
    assert_eq!(t.to_vec::<f32>().unwrap(), [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]);
    let stored = read_npz(fixture("stored.npz"), None).unwrap();
    assert_eq!(stored["y"].to_vec::<i64>().unwrap(), [1, 0]);
}

#[test]
fn idx_files_plain_and_packed() {
    let data = read_idx_pair(fixture("images.idx"), fixture("labels.idx.gz")).unwrap();
    assert_eq!((data.len(), data.classes(), data.x().dtype), (3, 3, DType::U8));
    let item = data.item(1).unwrap();
    assert_eq!((item.x.shape.as_slice(), item.x.bytes.as_slice()), (&[2, 2][..], &[4, 5, 6, 7][..]));
    assert_eq!((item.y.shape.len(), item.y.to_vec::<i64>().unwrap()), (0, vec![0]));
    let set = data.dataset(0.5).unwrap();
    assert_eq!((set.item_shape(), set.classes(), set.features()[11]), (&[2, 2][..], 3, 5.5));
    let floats = read_idx(fixture("floats.idx")).unwrap();
    assert_eq!((floats.shape.as_slice(), values(&floats)[5]), (&[2, 3][..], 2.5));
    assert!(matches!(read_idx_pair(fixture("images.idx"), fixture("images.idx")), Err(NnError::Data { .. })));
    assert!(data.item(3).is_err());
}

#[test]
fn cifar_files_of_10_and_100_classes() {
    let folder = Folder::new("cifar");
    let record = |labels: &[u8], first: u8| {
        [labels.to_vec(), (0..3072).map(|i| first.wrapping_add((i / 1024) as u8)).collect()].concat()
    };
    let (a, b) = (folder.at("data_batch_1.bin"), folder.at("data_batch_2.bin"));
    std::fs::write(&a, [record(&[9], 10), record(&[0], 20)].concat()).unwrap();
    std::fs::write(&b, record(&[3], 30)).unwrap();
    let set = read_cifar(&[&a, &b], CifarLabels::Cifar10).unwrap();
    assert_eq!((set.len(), set.x().shape.as_slice()), (3, &[3, 3, 32, 32][..]));
    let item = set.item(1).unwrap();
    assert_eq!([item.x.bytes[0], item.x.bytes[1024], item.x.bytes[3071]], [20, 21, 22]);
    assert_eq!(set.y().to_vec::<i64>().unwrap(), [9, 0, 3]);

    let wide = folder.at("train.bin");
    std::fs::write(&wide, [record(&[19, 99], 1), record(&[4, 20], 2)].concat()).unwrap();
    let ids = |labels| read_cifar(&[&wide], labels).unwrap().y().to_vec::<i64>().unwrap();
    assert_eq!((ids(CifarLabels::Cifar100), ids(CifarLabels::Cifar100Coarse)), (vec![99, 20], vec![19, 4]));

    let refused = |files: &[&Path], labels| read_cifar(files, labels).unwrap_err().to_string();
    let text = refused(&[&a, &wide], CifarLabels::Cifar10);
    assert!(text.contains("train.bin") && text.contains("3073") && text.contains("6148 bytes"), "{text}");
    std::fs::write(&b, [record(&[3], 30), record(&[10], 30)].concat()).unwrap();
    let text = refused(&[&b], CifarLabels::Cifar10);
    assert!(
        text.contains("data_batch_2.bin") && text.contains("3073") && text.contains("a class below 10"),
        "{text}"
    );
    std::fs::write(&b, []).unwrap();
    assert!(refused(&[&b], CifarLabels::Cifar10).contains("0 bytes"));
    assert!(read_cifar::<&Path>(&[], CifarLabels::Cifar10).is_err());
}

#[test]
fn host_tensors_convert_as_devices_do() {
    let edge = [
        0.0,
        -0.0,
        1.5,
        -1.5,
        255.0,
        256.0,
        65504.0,
        65520.0,
        1e-8,
        3.3,
        1e10,
        -1e30,
        f64::INFINITY,
        f64::NAN,
    ];
    let ints = [0i64, -1, 255, 256, 1 << 31, -(1 << 40), 16_777_217, i64::MAX];
    for t in [HostTensor::from_slice(&edge, &[14]).unwrap(), HostTensor::from_slice(&ints, &[8]).unwrap()] {
        let on_device = t.to_device(&cpu()).unwrap();
        for dtype in DType::ALL {
            let host = t.to_dtype(dtype).unwrap();
            assert_eq!(host.dtype, dtype);
            let want = on_device.to_dtype(dtype).unwrap().to_bytes().unwrap();
            assert_eq!(host.bytes, want, "{} to {dtype}", t.dtype);
        }
    }
    assert!(HostTensor::new(DType::F32, &[2], vec![0; 7]).is_err());
    assert!(HostTensor::from_slice(&[1f32], &[2]).is_err());
    let t = HostTensor::from_slice(&[1f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    assert!(t.to_vec::<f64>().is_err() && t.rows(&[2]).is_err());
    assert_eq!(t.rows(&[1, 1, 0]).unwrap().to_vec::<f32>().unwrap(), [3.0, 4.0, 3.0, 4.0, 1.0, 2.0]);
    let wrong = HostTensor { dtype: DType::F32, shape: vec![3, usize::MAX], bytes: vec![0; 4] };
    assert!(wrong.rows(&[2]).is_err() && wrong.to_device(&cpu()).is_err());
    assert!(HostTensor::stack(&[]).is_err());
    assert!(HostTensor::stack(&[&t, &t.rows(&[0]).unwrap()]).is_err());
    assert_eq!(HostTensor::stack(&[&t, &t]).unwrap().shape, [2, 2, 2]);
}
