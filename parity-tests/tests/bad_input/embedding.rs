//! Embedding.

use super::*;
use trefoil::ops::embedding::EmbeddingGrad;

pub(super) fn embedding(t: &mut Bed<'_>) {
    let (table, y, ids) = (t.f32(12), t.f32(6), t.ids(&[0, 3]));
    let (h, short) = (t.buf(DType::F16, 12), t.f32(5));
    let fwd = |g: &dyn IGpuBackend, pad, ids: View<'_>, table: View<'_>, y: ViewMut<'_>| {
        g.embedding(pad, ids, table, y)
    };
    t.refuse("lookup in a table of rank 1", &[&y], |g| {
        fwd(g, None, ids.view(), table.view(), out(&y, &[2, 3]))
    });
    t.refuse("lookup with float ids", &[&y], |g| {
        fwd(g, None, sh(&short, &[5]).range(0, 2)?, sh(&table, &[4, 3]), out(&y, &[2, 3]))
    });
    t.refuse("lookup into another shape", &[&y], |g| {
        fwd(g, None, ids.view(), sh(&table, &[4, 3]), out(&y, &[3, 2]))
    });
    t.refuse("lookup into a vector", &[&y], |g| fwd(g, None, ids.view(), sh(&table, &[4, 3]), out(&y, &[6])));
    t.refuse("lookup into another dtype", &[&h], |g| {
        fwd(g, None, ids.view(), sh(&table, &[4, 3]), out(&h, &[4, 3]).range(0, 6)?.reshape(&[2, 3])?)
    });
    t.refuse("lookup into the table", &[&table], |g| {
        fwd(g, None, ids.view(), sh(&table, &[4, 3]), table.alias_mut().range(0, 6)?.reshape(&[2, 3])?)
    });
    for pad in [4, -5, i64::MAX, i64::MIN] {
        t.refuse("a padding row that does not exist", &[&y], |g| {
            fwd(g, Some(pad), ids.view(), sh(&table, &[4, 3]), out(&y, &[2, 3]))
        });
        t.refuse("gradient with a padding row that does not exist", &[&table], |g| {
            let p = EmbeddingGrad::new().padding_idx(Some(pad));
            g.embedding_bwd(&p, sh(&y, &[2, 3]), ids.view(), out(&table, &[4, 3]).into())
        });
    }
    t.accept("the last row as padding", |g| {
        fwd(g, Some(-1), ids.view(), sh(&t_table(g)?, &[4, 3]), out(&g.alloc(DType::F32, 6)?, &[2, 3]))
    });
    for (norm, p) in [(-1.0, 2.0), (f64::NAN, 2.0), (1.0, 0.0), (1.0, -1.0), (1.0, f64::NAN)] {
        t.refuse("rescaling by a norm that is none", &[&table], |g| {
            g.embedding_renorm(norm, p, ids.view(), out(&table, &[4, 3]))
        });
    }
    t.refuse("rescaling of a vector", &[&table], |g| {
        g.embedding_renorm(1.0, 2.0, ids.view(), out(&table, &[12]))
    });
    let i = t.buf(DType::I32, 12);
    t.refuse("rescaling of integers", &[&i], |g| g.embedding_renorm(1.0, 2.0, ids.view(), out(&i, &[4, 3])));
    let p = EmbeddingGrad::new();
    t.refuse("gradient of another width", &[&table], |g| {
        g.embedding_bwd(&p, sh(&y, &[2, 3]), ids.view(), out(&table, &[3, 4]).into())
    });
    t.refuse("gradient of another dtype", &[&h], |g| {
        g.embedding_bwd(&p, sh(&y, &[2, 3]), ids.view(), out(&h, &[4, 3]).into())
    });
    t.refuse("gradient of integers", &[&i], |g| {
        g.embedding_bwd(
            &p,
            sh(&i, &[4, 3]).range(0, 6)?.reshape(&[2, 3])?,
            ids.view(),
            out(&i, &[4, 3]).into(),
        )
    });
    t.refuse("gradient over its own source", &[&table], |g| {
        let dy = sh(&table, &[12]).range(0, 6)?.reshape(&[2, 3])?;
        g.embedding_bwd(&p, dy, ids.view(), out(&table, &[4, 3]).into())
    });
}

fn t_table(g: &dyn IGpuBackend) -> Result<Buffer> {
    let mut b = g.alloc(DType::F32, 12)?;
    g.fill(1.0, b.view_mut())?;
    Ok(b)
}
