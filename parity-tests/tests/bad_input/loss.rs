//! Losses of elements, classes, rows, batches, sequences and spectrograms.

use super::*;
use trefoil::ops::loss::{
    BatchLoss, BatchLossBwd, BatchLossFwd, CrossEntropy, CrossEntropyBwd, CrossEntropyFwd, Loss, LossFwd,
    Reduction, RowLoss, RowLossBwd, RowLossFwd, SeqLoss, SeqLossFwd, StftLossBwd, StftLossFwd,
    StftResolution,
};

pub(super) fn loss(t: &mut Bed<'_>) {
    let (p, q, l, l2) = (t.f32(12), t.f32(8), t.f32(1), t.f32(2));
    let (m, ids) = (t.buf(DType::U8, 8), t.ids(&[0, 1, 2]));
    let fwd = |p, t, mask, loss| LossFwd::new(p, t, loss).mask(mask);
    t.refuse("mse of two shapes", &[&l], |g| {
        g.loss(Loss::Mse, Reduction::Mean, fwd(p.view(), q.view(), None, l.alias_mut()))
    });
    t.refuse("mse into two elements", &[&l2], |g| {
        g.loss(Loss::Mse, Reduction::Mean, fwd(p.view(), p.view(), None, l2.alias_mut()))
    });
    t.refuse("a mask of another shape", &[&l], |g| {
        g.loss(Loss::Mse, Reduction::Sum, fwd(p.view(), p.view(), Some(m.view()), l.alias_mut()))
    });
    let x = sh(&p, &[3, 4]);
    let ce = |target, weight, loss| CrossEntropyFwd::new(x, target, loss).weight(weight);
    let plain = CrossEntropy::new();
    t.refuse("cross entropy with two ids for three rows", &[&l], |g| {
        g.cross_entropy(&plain, ce(ids.view().range(0, 2)?, None, l.alias_mut()))
    });
    t.refuse("cross entropy with weights of another size", &[&l], |g| {
        g.cross_entropy(&plain, ce(ids.view(), Some(q.view()), l.alias_mut()))
    });
    t.refuse("label smoothing of 1.5", &[&l], |g| {
        g.cross_entropy(&plain.label_smoothing(1.5), ce(ids.view(), None, l.alias_mut()))
    });
    let dx = t.f32(12);
    t.refuse("cross entropy gradient of the mean without denominator", &[&dx], |g| {
        let io =
            CrossEntropyBwd::new(l.view(), x, ids.view(), q.view().range(0, 3)?, out(&dx, &[3, 4]).into());
        g.cross_entropy_bwd(&plain, io)
    });
}

pub(super) fn rows(t: &mut Bed<'_>) {
    let (a, b, l, items) = (t.f32(12), t.f32(8), t.f32(1), t.f32(3));
    let ids = t.ids(&[0, 1, 2]);
    let x = sh(&a, &[3, 4]);
    let io = |x, ids, loss| RowLossFwd::new(x, loss).ids(ids);
    let nll = RowLoss::Nll { floor: None, ignore_index: -100 };
    t.refuse("operands of two shapes", &[&l], |g| {
        let q = sh(&b, &[2, 4]);
        let x = [Some(x), Some(q), None, None];
        g.row_loss(RowLoss::Cosine { eps: 1e-8, scale: 1.0 }, Reduction::Mean, io(x, None, l.alias_mut()))
    });
    t.refuse("a row loss without its second operand", &[&l], |g| {
        let x = [Some(x), None, None, None];
        g.row_loss(RowLoss::Cosine { eps: 1e-8, scale: 1.0 }, Reduction::Mean, io(x, None, l.alias_mut()))
    });
    t.refuse("nll without ids", &[&l], |g| {
        g.row_loss(nll, Reduction::Mean, io([Some(x), None, None, None], None, l.alias_mut()))
    });
    t.refuse("two ids for three rows", &[&l], |g| {
        let ids = ids.view().range(0, 2)?;
        g.row_loss(nll, Reduction::Mean, io([Some(x), None, None, None], Some(ids), l.alias_mut()))
    });
    t.refuse("a mean into three elements", &[&items], |g| {
        let ids = Some(ids.view());
        g.row_loss(nll, Reduction::Mean, io([Some(x), None, None, None], ids, items.alias_mut()))
    });
    t.refuse("root mean square of every item", &[&items], |g| {
        let x = [Some(x), Some(x), None, None];
        g.row_loss(RowLoss::Rmse, Reduction::None, io(x, None, items.alias_mut()))
    });
    let dx = t.f32(12);
    t.refuse("the gradient of a target that has none", &[&dx], |g| {
        let dx = [None, Some(out(&dx, &[3, 4]).into()), None, None];
        let x = [Some(x), Some(x), None, None];
        let io = RowLossBwd::new(l.view(), x).dx(dx);
        g.row_loss_bwd(RowLoss::Rmse, Reduction::Mean, io)
    });
}

pub(super) fn margins(t: &mut Bed<'_>) {
    let (a, b, l, one) = (t.f32(12), t.f32(12), t.f32(1), t.f32(2));
    let ids = t.ids(&[0, 1, 2]);
    let (x, y) = (sh(&a, &[3, 4]), sh(&b, &[3, 4]));
    let io = |x, ids, loss| RowLossFwd::new(x, loss).ids(ids);
    let circle = RowLoss::Circle { scale: 8.0, margin: 0.25, detach: true };
    t.refuse("circle with ids and pairs", &[&l], |g| {
        let x = [Some(x), Some(y), None, None];
        g.row_loss(circle, Reduction::Mean, io(x, Some(ids.view()), l.alias_mut()))
    });
    t.refuse("circle with neither", &[&l], |g| {
        g.row_loss(circle, Reduction::Mean, io([Some(x), None, None, None], None, l.alias_mut()))
    });
    let kto = RowLoss::Kto { beta: 0.1, desirable: 1.0, undesirable: 1.0 };
    t.refuse("kto without labels", &[&l], |g| {
        g.row_loss(kto, Reduction::Mean, io([Some(x), Some(y), None, None], None, l.alias_mut()))
    });
    t.refuse("two divergences", &[&l], |g| {
        let x = [Some(x), Some(y), Some(y), Some(one.view())];
        g.row_loss(kto, Reduction::Mean, io(x, None, l.alias_mut()))
    });
    let dx = t.f32(12);
    t.refuse("the gradient of a reference", &[&dx], |g| {
        let dx = [None, Some(out(&dx, &[3, 4]).into()), None, None];
        let x = [Some(x), Some(y), Some(y), None];
        g.row_loss_bwd(kto, Reduction::Mean, RowLossBwd::new(l.view(), x).dx(dx))
    });
}

pub(super) fn batch(t: &mut Bed<'_>) {
    let (a, b, l) = (t.f32(12), t.f32(8), t.f32(1));
    let ids = t.ids(&[0, 1, 2]);
    let x = sh(&a, &[3, 4]);
    let io = |x, ids, loss| BatchLossFwd::new(x, loss).ids(ids);
    t.refuse("views of two batch sizes", &[&l], |g| {
        let x = [Some(x), Some(sh(&b, &[2, 4])), None];
        g.batch_loss(BatchLoss::NtXent { tau: 0.1 }, io(x, None, l.alias_mut()))
    });
    t.refuse("a temperature of 0", &[&l], |g| {
        g.batch_loss(BatchLoss::NtXent { tau: 0.0 }, io([Some(x), Some(x), None], None, l.alias_mut()))
    });
    t.refuse("labels where the loss has none", &[&l], |g| {
        let x = [Some(x), Some(x), None];
        g.batch_loss(BatchLoss::Barlow { lambda: 0.1 }, io(x, Some(ids.view()), l.alias_mut()))
    });
    t.refuse("no labels where the loss has some", &[&l], |g| {
        g.batch_loss(BatchLoss::SupCon { tau: 0.1 }, io([Some(x), None, None], None, l.alias_mut()))
    });
    let d = t.f32(3);
    t.refuse("the gradient of a relevance", &[&d], |g| {
        let s = a.view().range(0, 3)?;
        let dx = [None, Some(d.alias_mut().into()), None];
        let io = BatchLossBwd::new(l.view(), [Some(s), Some(s), None]).dx(dx);
        g.batch_loss_bwd(BatchLoss::PairwiseRanking, io)
    });
}

pub(super) fn sequence(t: &mut Bed<'_>) {
    let (a, l) = (t.f32(24), t.f32(1));
    let (labels, lengths) = (t.ids(&[1, 1, 1, 1]), t.ids(&[3, 3]));
    let io = |targets, input_lengths, loss| {
        SeqLossFwd::new(sh(&a, &[3, 2, 4]), targets, input_lengths, lengths.view(), loss)
    };
    let ctc = |blank| SeqLoss::Ctc { blank, zero_infinity: false, batch_first: false };
    t.refuse("a blank that is no class", &[&l], |g| {
        g.seq_loss(ctc(4), Reduction::Mean, io(sh(&labels, &[2, 2]), lengths.view(), l.alias_mut()))
    });
    t.refuse("targets of another batch", &[&l], |g| {
        g.seq_loss(ctc(0), Reduction::Mean, io(sh(&labels, &[4, 1]), lengths.view(), l.alias_mut()))
    });
    t.refuse("lengths of another batch", &[&l], |g| {
        let one = lengths.view().range(0, 1)?;
        g.seq_loss(ctc(0), Reduction::Mean, io(sh(&labels, &[2, 2]), one, l.alias_mut()))
    });
    t.refuse("a transducer of three axes", &[&l], |g| {
        let io = io(sh(&labels, &[2, 2]), lengths.view(), l.alias_mut());
        g.seq_loss(SeqLoss::Rnnt { blank: 0 }, Reduction::Mean, io)
    });
}

pub(super) fn spectrogram(t: &mut Bed<'_>) {
    let (a, b, l, l2, d) = (t.f32(64), t.f32(32), t.f32(1), t.f32(2), t.f32(64));
    let x = sh(&a, &[2, 32]);
    let r = StftResolution::new;
    let lists: [(&str, &[StftResolution]); 7] = [
        ("no resolution", &[]),
        ("a transform of 0", &[r(0, 1, 1)]),
        ("a step of 0", &[r(16, 0, 16)]),
        ("a window of 0", &[r(16, 4, 0)]),
        ("a window longer than the transform", &[r(16, 4, 17)]),
        ("a signal of half a transform", &[r(16, 4, 16), r(64, 4, 16)]),
        ("a transform beyond 32 bits", &[r(usize::MAX, 4, 16)]),
    ];
    for (what, list) in lists {
        t.refuse(what, &[&l], |g| g.stft_loss(list, StftLossFwd::new(x, x, l.alias_mut())));
        t.refuse(what, &[&d], |g| {
            let dp = out(&d, &[2, 32]).into();
            g.stft_loss_bwd(list, StftLossBwd::new(b.view().range(0, 1)?, x, x, dp))
        });
    }
    let list = [r(16, 4, 16)];
    t.refuse("signals of two shapes", &[&l], |g| {
        g.stft_loss(&list, StftLossFwd::new(x, b.view(), l.alias_mut()))
    });
    t.refuse("a loss of two elements", &[&l2], |g| {
        g.stft_loss(&list, StftLossFwd::new(x, x, l2.alias_mut()))
    });
    t.refuse("a gradient of another shape", &[&d], |g| {
        g.stft_loss_bwd(&list, StftLossBwd::new(b.view().range(0, 1)?, x, x, d.alias_mut().into()))
    });
    t.refuse("a gradient over its signal", &[&a], |g| {
        let dp = out(&a, &[2, 32]).into();
        g.stft_loss_bwd(&list, StftLossBwd::new(b.view().range(0, 1)?, x, x, dp))
    });
}
