//! CSV files, data sets, batches.

use std::sync::Arc;

use crate::common::{close, cpu, devices};
use trefoil::DType;
use trefoil_nn::data::text::{Bytes, Characters, Encoding, ResidentText, Windows, read_text};
use trefoil_nn::data::transform::{Mixup, Normalize, OneHot, RandomCrop, RandomErase, RandomFlip};
use trefoil_nn::data::{
    Arrays, CsvOptions, Dataset, HostSource, Item, ItemSource, Label, Loader, Order, ResidentSource, Sampler,
    Source, Targets, Transformed, read_csv, read_csv_skipping,
};
use trefoil_nn::layers::{Dense, Flatten, Sequential};
use trefoil_nn::trainer::{Objective, TrainOptions};
use trefoil_nn::{
    At, CrossEntropyLoss, Device, HostTensor, InitContext, LayerExt, NnError, Optimizer, Result, Tensor,
    Trainer,
};

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

/// Items that know their thread's work: slow where `i % 5 == 0`, so that threads finish out of order; malformed from `bad` on.
struct Slow {
    n: usize,
    bad: usize,
}

impl ItemSource for Slow {
    fn len(&self) -> usize {
        self.n
    }
    fn classes(&self) -> usize {
        self.n
    }
    fn item(&self, i: usize) -> Result<Item> {
        if i.is_multiple_of(5) {
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        assert!(i != 666, "an item source of a test panics");
        if i >= self.bad {
            let (expected, found) = ("a good item".into(), "a bad one".into());
            return Err(NnError::Data { path: "slow".into(), at: At::Item(i as u64), expected, found });
        }
        let x = HostTensor::from_slice(&[i as f32, -(i as f32)], &[2])?;
        Ok(Item { x, y: HostTensor::from_slice(&[i as i64], &[])? })
    }
}

#[test]
fn loaders_serve_the_same_whatever_their_threads() {
    let resident = ResidentSource::new(&numbered(23), &cpu(), DType::F32).unwrap();
    for order in [None, Some(Order { seed: 3, epoch: 0 }), Some(Order { seed: 5, epoch: 2 })] {
        let want = ids(&resident, order, 4);
        for threads in [1, 2, 3, 8] {
            for ahead in [0, 1, 7] {
                let loader =
                    Loader::new(Arc::new(Slow { n: 23, bad: 99 }), &cpu()).threads(threads).ahead(ahead);
                assert_eq!(ids(&loader, order, 4), want, "{threads} threads, {ahead} ahead");
            }
        }
    }
    for d in devices() {
        let loader = Loader::new(Arc::new(Slow { n: 23, bad: 99 }), &d).threads(2);
        assert_eq!(ids(&loader, None, 10), ids(&resident, None, 10));
        let all = ResidentSource::from_items(&Slow { n: 23, bad: 99 }, &d, DType::F32).unwrap();
        assert_eq!(
            ids(&all, Some(Order { seed: 3, epoch: 1 }), 5),
            ids(&resident, Some(Order { seed: 3, epoch: 1 }), 5)
        );
    }
    // Leaving early ends the threads.
    let loader = Loader::new(Arc::new(Slow { n: 23, bad: 99 }), &cpu()).threads(3);
    assert_eq!(loader.epoch(None, 2).unwrap().next().unwrap().unwrap().len, 2);
}

#[test]
fn loaders_stop_at_malformed_items_or_skip_them() {
    let loader = Loader::new(Arc::new(Slow { n: 12, bad: 7 }), &cpu()).threads(2);
    let mut batches = loader.epoch(None, 3).unwrap();
    assert!(batches.next().unwrap().is_ok() && batches.next().unwrap().is_ok());
    assert!(matches!(batches.next(), Some(Err(NnError::Data { at: At::Item(7), .. }))));
    assert!(batches.next().is_none());
    drop(batches);
    let loader = loader.skip_malformed();
    assert_eq!(ids(&loader, None, 3), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
    assert_eq!(loader.skipped(), 5);
    // A panic in the source is an error of the epoch, not its silent end.
    let loader = Loader::new(Arc::new(Slow { n: 700, bad: 999 }), &cpu()).threads(2);
    let last = loader.epoch(None, 50).unwrap().last().unwrap();
    assert!(matches!(last, Err(NnError::Gpu(_))));
}

fn served(s: Sampler, n: usize, epoch: u64) -> Vec<usize> {
    s.rows(&cpu(), n, Some(Order { seed: 1, epoch })).unwrap()
}

#[test]
fn samplers() {
    let weights = vec![0.0, 1.0, 3.0, 0.0];
    let rows = served(Sampler::Weighted { weights: weights.clone(), draws: 40_000 }, 4, 0);
    let share = |rows: &[usize], i| rows.iter().filter(|&&r| r == i).count() as f64 / rows.len() as f64;
    assert_eq!((share(&rows, 0), share(&rows, 3)), (0.0, 0.0));
    // Four standard deviations of a share of a quarter among 40000.
    assert!((share(&rows, 1) - 0.25).abs() < 0.0087, "{}", share(&rows, 1));
    assert_ne!(rows, served(Sampler::Weighted { weights: weights.clone(), draws: 40_000 }, 4, 1));

    let rows = served(Sampler::Uniform { draws: 40_000 }, 10, 0);
    for i in 0..10 {
        assert!((share(&rows, i) - 0.1).abs() < 0.006, "{i}: {}", share(&rows, i));
    }

    for (n, world) in [(10, 3), (9, 3), (2, 5)] {
        for drop_last in [false, true] {
            let of = |rank| Sampler::Distributed { rank, world, drop_last };
            if drop_last && n < world {
                assert!(of(0).rows(&cpu(), n, None).is_err());
                continue;
            }
            let shares: Vec<_> = (0..world).map(|rank| served(of(rank), n, 4)).collect();
            let size = if drop_last { n / world } else { n.div_ceil(world) };
            assert!(shares.iter().all(|s| s.len() == size && of(0).count(n) == size));
            // Read across, the shares are the common order, cut or filled up from its start.
            let across: Vec<usize> = (0..size).flat_map(|i| shares.iter().map(move |s| s[i])).collect();
            let all = served(Sampler::All, n, 4);
            let want: Vec<usize> = (0..size * world).map(|i| all[i % n]).collect();
            assert_eq!(across, want);
        }
    }
    assert_eq!(
        Sampler::Distributed { rank: 1, world: 2, drop_last: false }.rows(&cpu(), 5, None).unwrap(),
        [1, 3, 0]
    );

    let data = numbered(4);
    let bad = [
        Sampler::Weighted { weights: vec![1.0; 3], draws: 5 },
        Sampler::Weighted { weights: vec![0.0; 4], draws: 5 },
        Sampler::Weighted { weights: vec![1.0, f64::NAN, 1.0, 1.0], draws: 5 },
        Sampler::Weighted { weights: vec![1.0, -1.0, 1.0, 1.0], draws: 5 },
        Sampler::Uniform { draws: 0 },
        Sampler::Distributed { rank: 2, world: 2, drop_last: false },
        Sampler::Distributed { rank: 0, world: 5, drop_last: true },
    ];
    for s in bad {
        assert!(Loader::new(Arc::new(data.clone()), &cpu()).sampler(s.clone()).is_err(), "{s:?}");
    }
    assert!(Sampler::Uniform { draws: 2 }.rows(&cpu(), 4, None).is_err());

    // The same through both kinds of source, and on every device.
    let order = Some(Order { seed: 2, epoch: 0 });
    for s in [
        Sampler::Weighted { weights, draws: 9 },
        Sampler::Distributed { rank: 0, world: 2, drop_last: false },
    ] {
        let want = s.rows(&cpu(), 4, order).unwrap();
        for d in devices() {
            let loader = Loader::new(Arc::new(data.clone()), &d).sampler(s.clone()).unwrap();
            let resident = ResidentSource::new(&data, &d, DType::F32).unwrap().sampler(s.clone()).unwrap();
            for source in [&loader as &dyn Source, &resident] {
                assert_eq!(source.items(), want.len());
                let got: Vec<usize> = ids(source, order, 2).concat().iter().map(|&i| i as usize).collect();
                assert_eq!(got, want);
            }
        }
    }
}

/// Images `[n, 2, 5, 6]` with element i = i + 1.
fn images(n: usize) -> Arrays {
    let pixels: Vec<f32> = (0..n * 60).map(|i| i as f32 + 1.0).collect();
    let y: Vec<i64> = (0..n as i64).map(|i| i % 3).collect();
    Arrays::new(
        HostTensor::from_slice(&pixels, &[n, 2, 5, 6]).unwrap(),
        HostTensor::from_slice(&y, &[n]).unwrap(),
    )
    .unwrap()
}

fn source(d: &Device, n: usize) -> ResidentSource {
    ResidentSource::from_items(&images(n), d, DType::F32).unwrap()
}

fn first(s: &dyn Source, order: Option<Order>) -> (Tensor, Vec<f32>) {
    let b = s.epoch(order, 64).unwrap().next().unwrap().unwrap();
    let x = b.x.to_vec::<f32>().unwrap();
    (b.y, x)
}

#[test]
fn transforms_repeat_by_seed_epoch_and_step() {
    for d in devices() {
        let make = |seed| {
            Transformed::new(source(&d, 12), seed)
                .then(RandomCrop::new((4, 4), 1).unwrap())
                .then(RandomFlip::horizontal(0.5).unwrap())
                .then(RandomErase::default())
                .then(OneHot { classes: 3, dtype: DType::F32 })
                .then(Mixup::new(0.4).unwrap())
        };
        let all = |seed, epoch| -> Vec<Vec<f32>> {
            let s = make(seed);
            let batches = s.epoch(Some(Order { seed: 1, epoch }), 6).unwrap();
            batches.map(|b| b.unwrap().x.to_vec::<f32>().unwrap()).collect()
        };
        let a = all(1, 0);
        assert_eq!(a, all(1, 0));
        assert!(a != all(1, 1) && a != all(2, 0));
        // The same draws on every device.
        let s = Transformed::new(source(&cpu(), 12), 1)
            .then(RandomCrop::new((4, 4), 1).unwrap())
            .then(RandomFlip::horizontal(0.5).unwrap());
        let t = Transformed::new(source(&d, 12), 1)
            .then(RandomCrop::new((4, 4), 1).unwrap())
            .then(RandomFlip::horizontal(0.5).unwrap());
        assert_eq!(first(&s, None).1, first(&t, None).1);
    }
}

#[test]
fn flips_mirror_some_items() {
    for d in devices() {
        for (flip, axis) in [(RandomFlip::horizontal(0.5), 3), (RandomFlip::vertical(0.5), 2)] {
            let s = Transformed::new(source(&d, 40), 3).then(flip.unwrap());
            let (_, got) = first(&s, None);
            let mut mirrored = 0;
            for n in 0..40 {
                let at = |c: usize, h: usize, w: usize| (n * 60 + c * 30 + h * 6 + w) as f32 + 1.0;
                let item = &got[n * 60..(n + 1) * 60];
                let plain: Vec<f32> = (0..60).map(|i| at(i / 30, i / 6 % 5, i % 6)).collect();
                let turned: Vec<f32> = (0..60)
                    .map(|i| {
                        let (h, w) = (i / 6 % 5, i % 6);
                        if axis == 3 { at(i / 30, h, 5 - w) } else { at(i / 30, 4 - h, w) }
                    })
                    .collect();
                assert!(item == plain || item == turned);
                mirrored += usize::from(item == turned);
            }
            assert!((8..=32).contains(&mirrored), "{mirrored} of 40");
        }
        let (_, all) =
            first(&Transformed::new(source(&d, 2), 3).then(RandomFlip::horizontal(1.0).unwrap()), None);
        assert_eq!(all[..6], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]);
        let (_, none) =
            first(&Transformed::new(source(&d, 2), 3).then(RandomFlip::horizontal(0.0).unwrap()), None);
        assert_eq!(none[..3], [1.0, 2.0, 3.0]);
    }
    assert!(RandomFlip::vertical(1.5).is_err());
}

#[test]
fn crops_are_windows_of_the_padded_images() {
    let (n, p, th, tw) = (50, 1, 4, 3);
    for d in devices() {
        let (_, got) =
            first(&Transformed::new(source(&d, n), 7).then(RandomCrop::new((th, tw), p).unwrap()), None);
        let mut places = std::collections::BTreeSet::new();
        for i in 0..n {
            let item = &got[i * 2 * th * tw..(i + 1) * 2 * th * tw];
            let at = |c: usize, h: usize, w: usize| {
                let inside = (p..5 + p).contains(&h) && (p..6 + p).contains(&w);
                if inside { (i * 60 + c * 30 + (h - p) * 6 + (w - p)) as f32 + 1.0 } else { 0.0 }
            };
            let window = |top: usize, left: usize| -> Vec<f32> {
                (0..2 * th * tw).map(|k| at(k / (th * tw), top + k / tw % th, left + k % tw)).collect()
            };
            let place = (0..=7 - th)
                .flat_map(|t| (0..=8 - tw).map(move |l| (t, l)))
                .find(|&(t, l)| item == window(t, l));
            places.insert(place.unwrap_or_else(|| panic!("item {i} is no window: {item:?}")));
        }
        assert!(places.len() > 12, "{places:?}");
        for edge in [0, 3] {
            assert!(places.iter().any(|&(t, _)| t == edge), "{places:?}");
        }
    }
    assert!(RandomCrop::new((0, 1), 0).is_err() && RandomCrop::new((1, 1), usize::MAX).is_err());
    let large = Transformed::new(source(&cpu(), 2), 7).then(RandomCrop::new((6, 6), 0).unwrap());
    assert!(large.epoch(None, 2).unwrap().next().unwrap().is_err());
}

#[test]
fn erased_rectangles() {
    for d in devices() {
        let erase = RandomErase { p: 0.7, area: (0.1, 0.5), value: -1.0, ..RandomErase::default() };
        let (_, got) = first(&Transformed::new(source(&d, 60), 5).then(erase), None);
        let mut erased = 0;
        for i in 0..60 {
            let gone = |c: usize, h: usize, w: usize| {
                let at = i * 60 + c * 30 + h * 6 + w;
                assert!(got[at] == -1.0 || got[at] == at as f32 + 1.0);
                got[at] == -1.0
            };
            let cells: Vec<(usize, usize)> =
                (0..5).flat_map(|h| (0..6).map(move |w| (h, w))).filter(|&(h, w)| gone(0, h, w)).collect();
            assert!((0..5).all(|h| (0..6).all(|w| gone(0, h, w) == gone(1, h, w))));
            let Some(&(top, left)) = cells.first() else { continue };
            let &(bottom, right) = cells.last().unwrap();
            assert_eq!(cells.len(), (bottom - top + 1) * (right - left + 1), "a full rectangle");
            // Sides are rounded: an area of 3 to 15 cells can become 2 to 20.
            assert!((2..=20).contains(&cells.len()), "{}", cells.len());
            erased += 1;
        }
        assert!((30..=54).contains(&erased), "{erased} of 60");
        let bad = RandomErase { area: (0.5, 0.1), ..erase };
        assert!(
            Transformed::new(source(&d, 2), 5).then(bad).epoch(None, 2).unwrap().next().unwrap().is_err()
        );
    }
}

#[test]
fn normalised_one_hot_and_mixed_batches() {
    for d in devices() {
        let norm = Normalize::new(&d, DType::F32, &[1.0, 31.0], &[2.0, 0.5]).unwrap();
        let (_, got) = first(&Transformed::new(source(&d, 2), 0).then(norm), None);
        let want: Vec<f64> = (0..120)
            .map(|i| if i / 30 % 2 == 0 { f64::from(i) / 2.0 } else { f64::from(i - 30) * 2.0 })
            .collect();
        close(&got.iter().map(|&v| v.into()).collect::<Vec<_>>(), &want, 1e-5, "normalised");
        let wrong = Normalize::new(&d, DType::F32, &[0.0; 3], &[1.0; 3]).unwrap();
        assert!(
            Transformed::new(source(&d, 2), 0).then(wrong).epoch(None, 2).unwrap().next().unwrap().is_err()
        );

        let hot = OneHot { classes: 3, dtype: DType::F32 };
        let (y, x) = first(&Transformed::new(source(&d, 4), 0).then(hot), None);
        assert_eq!(y.to_vec::<f32>().unwrap(), [1., 0., 0., 0., 1., 0., 0., 0., 1., 1., 0., 0.]);
        assert_eq!(x[..2], [1.0, 2.0]);

        // A blend of item i with item j at one common weight, features and targets alike.
        let (y, x) =
            first(&Transformed::new(source(&d, 9), 0).then(hot).then(Mixup::new(1.0).unwrap()), None);
        let y = y.to_vec::<f32>().unwrap();
        let mut partners = vec![];
        // An item blended with itself tells nothing about the weight; the others agree on it.
        let mut lambda = None::<f64>;
        for round in 0..2 {
            for i in 0..9 {
                let shift = f64::from(x[i * 60]) - (i * 60) as f64 - 1.0;
                if round == 0 && lambda.is_none() && shift.abs() > 1.0 {
                    // shift = (1 - lambda) * 60 * (j - i): found by the targets, which are 0 or 1 before the blend.
                    lambda = (0..3)
                        .map(|c| f64::from(y[i * 3 + c]))
                        .find(|v| *v > 1e-4 && *v < 1.0 - 1e-4)
                        .map(|v| {
                            let own = f64::from(y[i * 3 + i % 3]);
                            assert!((own - v).abs() < 1e-6 || (own + v - 1.0).abs() < 1e-6);
                            own
                        });
                }
                if let (1, Some(l)) = (round, lambda) {
                    let j = i as f64 + shift / (60.0 * (1.0 - l));
                    assert!((j - j.round()).abs() < 1e-3, "item {i} is blended with {j}");
                    partners.push(j.round() as usize);
                }
            }
        }
        assert!(lambda.is_some());
        partners.sort_unstable();
        assert_eq!(partners, (0..9).collect::<Vec<_>>());
        assert!(y.chunks(3).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-6));
        let ids = Transformed::new(source(&d, 4), 0).then(Mixup::new(1.0).unwrap());
        assert!(ids.epoch(None, 4).unwrap().next().unwrap().is_err());
    }
    assert!(Mixup::new(0.0).is_err());
    assert!(Normalize::new(&cpu(), DType::F32, &[0.0], &[0.0]).is_err());
    assert!(Normalize::new(&cpu(), DType::F32, &[0.0], &[]).is_err());
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

#[test]
fn text_as_ids() {
    let c = Characters::of("hello wörld");
    assert_eq!(c.chars(), [' ', 'd', 'e', 'h', 'l', 'o', 'r', 'w', 'ö']);
    let ids = c.encode("höll").unwrap();
    assert_eq!((ids.as_slice(), c.decode(&ids).unwrap().as_str(), c.size()), (&[3, 8, 4, 4][..], "höll", 9));
    let e = c.encode("hex").unwrap_err().to_string();
    assert!(e.contains("'x' at byte 2"), "{e}");
    assert!(c.decode(&[9]).is_err());
    assert_eq!(Bytes.encode("hö").unwrap(), [104, 0xc3, 0xb6]);
    assert_eq!(Bytes.decode(&[104, 0xc3, 0xb6]).unwrap(), "hö");
    assert!(Bytes.decode(&[256]).is_err());
    assert_eq!(file("text".as_bytes(), |p| read_text(p)).unwrap(), "text");
    match file(b"ab\xffc", |p| read_text(p)) {
        Err(NnError::Data { at: At::Byte(2), .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn windows_of_a_token_stream() {
    let stream: Vec<u32> = (0..23).map(|i| i * 7 % 23).collect();
    let windows = |step| Windows::new(stream.clone(), 5, 23).unwrap().step(step).unwrap();
    // 23 tokens: inputs of 5 with a target for the last one.
    assert_eq!((windows(5).len(), windows(1).len(), windows(100).len()), (4, 18, 1));
    let exact = Windows::new(stream[..6].to_vec(), 5, 23).unwrap();
    assert_eq!((exact.len(), exact.item(1).is_err()), (1, true));
    let item = windows(5).item(3).unwrap();
    let at = |r: std::ops::Range<usize>| stream[r].iter().map(|&t| i64::from(t)).collect::<Vec<_>>();
    assert_eq!((item.x.to_vec::<i64>().unwrap(), item.y.to_vec::<i64>().unwrap()), (at(15..20), at(16..21)));

    for d in devices() {
        for (step, sampler) in [(5, Sampler::All), (1, Sampler::All), (1, Sampler::Uniform { draws: 7 })] {
            let w = windows(step);
            let host = Loader::new(Arc::new(w.clone()), &d).threads(2).sampler(sampler.clone()).unwrap();
            let resident = ResidentText::new(w.clone(), &d).unwrap().sampler(sampler.clone()).unwrap();
            assert_eq!((host.items(), host.classes()), (resident.items(), resident.classes()));
            let mut orders = vec![Some(Order { seed: 1, epoch: 0 }), Some(Order { seed: 1, epoch: 1 })];
            if sampler == Sampler::All {
                orders.push(None);
            }
            for order in orders {
                let rows = sampler.rows(&cpu(), w.len(), order).unwrap();
                let mut served = 0;
                for (a, b) in host.epoch(order, 3).unwrap().zip(resident.epoch(order, 3).unwrap()) {
                    let (a, b) = (a.unwrap(), b.unwrap());
                    assert_eq!((a.len, a.x.shape(), a.x.dtype()), (b.len, &[b.len, 5][..], DType::I64));
                    let want = w.items(&rows[served..served + a.len]).unwrap();
                    for (got, want) in [(&a.x, &want.x), (&b.x, &want.x), (&a.y, &want.y), (&b.y, &want.y)] {
                        assert_eq!(got.to_bytes().unwrap(), want.bytes);
                    }
                    served += a.len;
                }
                assert_eq!(served, resident.items());
            }
        }
        // Batches of a resident stream transfer nothing.
        let text = ResidentText::new(windows(5), &d).unwrap();
        let before = d.counters();
        assert_eq!(
            text.epoch(Some(Order { seed: 1, epoch: 0 }), 2).unwrap().map(|b| b.unwrap().len).sum::<usize>(),
            4
        );
        let after = d.counters();
        assert_eq!((after.uploads, after.downloads), (before.uploads, before.downloads));
    }
    assert!(Windows::new(vec![0; 5], 5, 1).is_err());
    assert!(Windows::new(vec![0; 5], 0, 1).is_err());
    assert!(Windows::new(vec![0, 1, 2], 1, 2).is_err());
    assert!(windows(5).step(0).is_err());
}

/// Classes told by the brightest quarter of an image `[1, 6, 6]`.
fn quarters(n: usize) -> Arrays {
    let noise = crate::common::noise(5, n * 36);
    let pixels: Vec<u8> = (0..n * 36)
        .map(|i| {
            let (class, h, w) = (i / 36 % 4, i / 6 % 6, i % 6);
            let lit = (h >= 3, w >= 3) == (class >= 2, class % 2 == 1);
            (100.0 + 50.0 * noise[i] + if lit { 80.0 } else { 0.0 }) as u8
        })
        .collect();
    let y: Vec<i64> = (0..n as i64).map(|i| i % 4).collect();
    let x = HostTensor::new(DType::U8, &[n, 1, 6, 6], pixels).unwrap();
    Arrays::new(x, HostTensor::from_slice(&y, &[n]).unwrap()).unwrap()
}

fn classifier(d: &Device, inputs: usize) -> Sequential {
    Sequential::new().push(Flatten::default()).push(Dense::new(&InitContext::new(d, 3), inputs, 4).unwrap())
}

/// Trains on a source; the weights' bytes and the last accuracy.
fn fit(d: &Device, s: &dyn Source, epochs: u64) -> (Vec<u8>, Option<f64>) {
    let m = classifier(d, 36);
    let o = Optimizer::adam(&m, 0.05).unwrap();
    let options = TrainOptions { epochs, batch_size: 10, seed: 4, ..TrainOptions::default() };
    let mut t = Trainer::new(&m, o, Objective::Classify(CrossEntropyLoss::default()), d, options).unwrap();
    let report = t.fit(s, None, &mut |_| true).unwrap();
    let bytes = m.state_dict().unwrap().values().flat_map(|t| t.to_bytes().unwrap()).collect();
    (bytes, report.history.last().unwrap().train_accuracy)
}

#[test]
fn a_trainer_learns_the_same_from_every_source() {
    let data = quarters(64);
    for d in devices() {
        let norm = || Normalize::new(&d, DType::F32, &[120.0], &[50.0]).unwrap();
        let resident = ResidentSource::from_items(&data, &d, DType::F32).unwrap();
        let (want, accuracy) = fit(&d, &Transformed::new(resident, 1).then(norm()), 8);
        assert!(accuracy.unwrap() > 0.95, "{accuracy:?}");
        for threads in [1, 3] {
            let loader = Loader::new(Arc::new(data.clone()), &d).threads(threads);
            assert!(fit(&d, &Transformed::new(loader, 1).then(norm()), 8).0 == want, "{threads} threads");
        }
        let host = HostSource::new(Arc::new(data.dataset(1.0).unwrap()), &d, DType::F32, 3);
        assert!(fit(&d, &Transformed::new(host, 1).then(norm()), 8).0 == want);
    }
}

#[test]
fn steps_on_transformed_resident_data_transfer_and_allocate_nothing() {
    for d in devices() {
        let resident = ResidentSource::from_items(&quarters(60), &d, DType::F32).unwrap();
        let data = Transformed::new(resident, 1)
            .then(Normalize::new(&d, DType::F32, &[120.0], &[50.0]).unwrap())
            .then(RandomCrop::new((5, 5), 1).unwrap())
            .then(RandomFlip::horizontal(0.5).unwrap())
            .then(RandomErase::default())
            .then(OneHot { classes: 4, dtype: DType::F32 })
            .then(Mixup::new(0.2).unwrap());
        let m = classifier(&d, 25);
        let o = Optimizer::adam(&m, 0.05).unwrap();
        let objective = Objective::Classify(CrossEntropyLoss::default());
        let mut t = Trainer::new(&m, o, objective, &d, TrainOptions::default()).unwrap();
        let mut warm = None;
        for (i, b) in data.epoch(Some(Order { seed: 1, epoch: 0 }), 10).unwrap().enumerate() {
            let b = b.unwrap();
            t.step(&b.x, &b.y).unwrap();
            // The third step is recorded and keeps its memory; the fourth finds other blocks for what is made beside it.
            if i == 3 {
                warm = Some(d.counters());
            }
        }
        let quiet =
            |c: trefoil::ops::core::Counters| (c.uploads, c.downloads, c.syncs, c.allocations, c.compiles);
        assert_eq!(quiet(warm.unwrap()), quiet(d.counters()), "on {}", crate::common::id(&d));
    }
}
