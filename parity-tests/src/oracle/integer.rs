//! Results that are integers or masks throughout.

use trefoil::DType;

use super::{Answer, Question};

/// Whether any (or, with `every`, each) element of a u8 mask along the axes is set.
pub(crate) fn reduce_mask(q: &Question<'_>, every: bool) -> Result<Vec<Answer>, String> {
    let x = q.x("x")?;
    let rank = x.shape.len();
    let axes = q.axes("axes", rank)?;
    let keep = q.b("keepdim")?;
    let left = |i: usize| !axes.contains(&i);
    let count: usize = (0..rank).filter(|&i| left(i)).map(|i| x.shape[i]).product();
    let mut y = vec![i64::from(every); count];
    for (i, &v) in x.values.iter().enumerate() {
        let (mut rest, mut at, mut step) = (i, 0, 1);
        for axis in (0..rank).rev() {
            let k = rest % x.shape[axis];
            rest /= x.shape[axis];
            if left(axis) {
                at += k * step;
                step *= x.shape[axis];
            }
        }
        y[at] = if every { y[at] & i64::from(v != 0.0) } else { y[at] | i64::from(v != 0.0) };
    }
    let kept = (0..rank).filter(|&i| keep || left(i));
    let shape: Vec<usize> = kept.map(|i| if left(i) { x.shape[i] } else { 1 }).collect();
    Ok(vec![Answer::integers("y", DType::U8, &shape, &y)])
}

/// Rows of C numbers with a 1 at the id.
pub(crate) fn one_hot(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (ids, classes) = (q.x("ids")?, q.u("C")? as usize);
    let row = |&id: &f64| (0..classes).map(move |c| if c as f64 == id { 1.0 } else { 0.0 });
    let y: Vec<f64> = ids.values.iter().flat_map(row).collect();
    Ok(vec![Answer::exact("y", &[&ids.shape[..], &[classes]].concat(), &y)])
}

/// How often each node occurs.
pub(crate) fn degree(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let nodes = q.u("V")? as usize;
    let mut count = vec![0; nodes];
    for &node in &q.x("dst")?.values {
        *count.get_mut(node as usize).ok_or("a node out of range")? += 1;
    }
    Ok(vec![Answer::integers("deg", DType::I64, &[nodes], &count)])
}
