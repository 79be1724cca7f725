//! Loaders with threads, and samplers.

use std::sync::Arc;

use super::{ids, numbered};
use crate::common::{cpu, devices};
use trefoil::DType;
use trefoil_nn::data::{Item, ItemSource, Loader, Order, ResidentSource, Sampler, Source};
use trefoil_nn::{At, HostTensor, NnError, Result};

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
