//! Text as ids and as windows of a stream.

use std::sync::Arc;

use super::file;
use crate::common::{cpu, devices};
use trefoil::DType;
use trefoil_nn::data::text::{Bytes, Characters, Encoding, ResidentText, Windows, read_text};
use trefoil_nn::data::{ItemSource, Loader, Order, Sampler, Source};
use trefoil_nn::{At, NnError};

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
