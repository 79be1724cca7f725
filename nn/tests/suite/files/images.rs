//! Folders of images.

use std::sync::Arc;

use super::Folder;
use crate::common::cpu;
use image::{ImageBuffer, Luma, Rgb};
use trefoil_nn::data::{Channels, ImageFolder, ItemSource, Loader, Source};
use trefoil_nn::{DType, NnError, Result};

/// Two classes: `cat` with a red PNG, a gray PNG of another size and a broken file, `dog` with a blue JPEG.
fn folder(name: &str) -> Folder {
    let f = Folder::new(name);
    std::fs::create_dir_all(f.at("dog")).unwrap();
    std::fs::create_dir_all(f.at("cat")).unwrap();
    let red = ImageBuffer::from_fn(3, 2, |x, y| Rgb([200 + x as u8, y as u8, 7]));
    red.save(f.at("cat/a.png")).unwrap();
    ImageBuffer::from_pixel(6, 4, Luma([100u8])).save(f.at("cat/b.png")).unwrap();
    std::fs::write(f.at("cat/c.png"), b"\x89PNG\r\n\x1a\nnot more").unwrap();
    std::fs::write(f.at("cat/readme.txt"), b"text").unwrap();
    ImageBuffer::from_pixel(3, 2, Rgb([0u8, 0, 255])).save(f.at("dog/d.jpeg")).unwrap();
    f
}

#[test]
fn folders_of_images() {
    let f = folder("images");
    let data = ImageFolder::open(&f.0).unwrap();
    assert_eq!(
        (data.len(), data.classes(), data.class_names()),
        (4, 2, &["cat".to_string(), "dog".into()][..])
    );
    let item = data.item(0).unwrap();
    assert_eq!((item.x.dtype, item.x.shape.as_slice()), (DType::U8, &[3, 2, 3][..]));
    assert_eq!(item.x.bytes, [200, 201, 202, 200, 201, 202, 0, 0, 0, 1, 1, 1, 7, 7, 7, 7, 7, 7]);
    let dog = data.item(3).unwrap();
    assert_eq!(dog.y.to_vec::<i64>().unwrap(), [1]);
    assert!(dog.x.bytes[12..].iter().all(|&b| b > 240) && dog.x.bytes[..6].iter().all(|&r| r < 15));
    match data.item(2) {
        Err(NnError::Data { path, .. }) => assert_eq!(path, f.at("cat/c.png")),
        other => panic!("{other:?}"),
    }
    let small = data.clone().channels(Channels::Gray).resize(2, 2).unwrap();
    assert_eq!(small.item(1).unwrap().x.bytes, [100; 4]);
    assert!(data.item(4).is_err() && data.clone().resize(0, 1).is_err());
    assert!(matches!(ImageFolder::open(f.at("cat")), Err(NnError::Data { .. })));
}

#[test]
fn broken_images_are_fatal_or_counted() {
    let f = folder("broken");
    let data = Arc::new(ImageFolder::open(&f.0).unwrap().resize(2, 2).unwrap());
    for threads in [1, 3] {
        let loader = Loader::new(data.clone(), &cpu()).threads(threads);
        let all: Vec<_> = loader.epoch(None, 2).unwrap().collect();
        assert!(matches!(all.last(), Some(Err(NnError::Data { .. }))));
        let loader = loader.skip_malformed();
        let batches: Vec<_> = loader.epoch(None, 1).unwrap().map(Result::unwrap).collect();
        assert_eq!((batches.len(), loader.skipped()), (3, 1));
        let batches: Vec<_> = loader.epoch(None, 2).unwrap().map(Result::unwrap).collect();
        assert_eq!((batches[0].len, batches[1].len, loader.skipped()), (2, 1, 2));
        assert_eq!((batches[1].x.shape(), batches[1].x.dtype()), (&[1, 3, 2, 2][..], DType::F32));
        assert_eq!(batches[1].y.to_vec::<i64>().unwrap(), [1]);
    }
    // Images of unequal size without a common one are no malformed items.
    let loader = Loader::new(Arc::new(ImageFolder::open(&f.0).unwrap()), &cpu()).skip_malformed();
    assert!(loader.epoch(None, 4).unwrap().next().unwrap().is_err());
}
