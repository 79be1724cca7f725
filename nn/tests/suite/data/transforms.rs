//! Transforms of batches.

use crate::common::{close, cpu, devices};
use trefoil::DType;
use trefoil_nn::data::transform::{Mixup, Normalize, OneHot, RandomCrop, RandomErase, RandomFlip};
use trefoil_nn::data::{Arrays, Order, ResidentSource, Source, Transformed};
use trefoil_nn::{Device, HostTensor, Tensor};

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
