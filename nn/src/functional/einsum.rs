//! Sums of products in Einstein's notation, as a sequence of contractions of two tensors each.

use std::fmt;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

const OP: &str = "einsum";

/// A label of an axis: a letter, or one of the axes that `...` stands for.
type Label = char;

/// What a step of an [`EinsumPath`] computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EinsumStep {
    /// Labels are summed: a batched matrix product of `batch` times `[m, k]` by `[k, n]`.
    Product {
        /// Elements of the labels that both operands have and the result keeps.
        batch: usize,
        /// Elements of the labels of the first operand alone.
        m: usize,
        /// Elements of the summed labels.
        k: usize,
        /// Elements of the labels of the second operand alone.
        n: usize,
    },
    /// No label is summed: an elementwise product with broadcasting.
    Elementwise,
}

/// A contraction of two tensors.
#[derive(Debug, Clone)]
struct Contraction {
    /// Places in the list of tensors; the second is removed, the result takes the place of the first.
    at: [usize; 2],
    /// Labels of both operands, and of the result.
    labels: [Vec<Label>; 3],
    batch: Vec<Label>,
    summed: Vec<Label>,
    /// Labels of one operand alone.
    own: [Vec<Label>; 2],
    step: EinsumStep,
}

/// How [`Tensor::einsum`] computes an equation: which two tensors it contracts first, and by what. A function of equation and shapes alone;
/// `Display` prints a step per line.
#[derive(Debug, Clone)]
pub struct EinsumPath {
    inputs: Vec<Vec<Label>>,
    /// Sizes of the labels.
    sizes: Vec<(Label, usize)>,
    /// Labels of each input that no other tensor and no output has; they are summed first.
    alone: Vec<Vec<Label>>,
    contractions: Vec<Contraction>,
    output: Vec<Label>,
}

impl EinsumPath {
    /// The plan for operands of these shapes. The cheapest pair by multiplications comes first, of equals the leftmost. Errors: `Invalid` for
    /// an equation that is none, another number of operands or axes than it names, sizes of a label that differ.
    pub fn new(equation: &str, shapes: &[&[usize]]) -> Result<Self> {
        let (inputs, output) = parse(equation, shapes)?;
        let sizes = sizes_of(&inputs, shapes)?;
        // Repeated labels of one operand become its diagonal.
        let inputs: Vec<Vec<Label>> = inputs.into_iter().map(|labels| unique(&labels)).collect();
        let elsewhere = |i: usize, l: &Label| {
            output.contains(l) || inputs.iter().enumerate().any(|(j, other)| j != i && other.contains(l))
        };
        let alone: Vec<Vec<Label>> = (0..inputs.len())
            .map(|i| inputs[i].iter().copied().filter(|l| !elsewhere(i, l)).collect())
            .collect();
        let mut now: Vec<Vec<Label>> =
            inputs.iter().zip(&alone).map(|(labels, gone)| without(labels, gone)).collect();
        let mut path = EinsumPath { inputs, sizes, alone, contractions: vec![], output };
        while now.len() > 1 {
            let pairs = (0..now.len()).flat_map(|i| (i + 1..now.len()).map(move |j| [i, j]));
            let cost = |&[i, j]: &[usize; 2]| path.elements(&union(&now[i], &now[j]));
            let best = pairs.min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or([0, 1]);
            let made = path.contraction(&now, best);
            now[best[0]] = made.labels[2].clone();
            now.remove(best[1]);
            path.contractions.push(made);
        }
        Ok(path)
    }

    /// The contractions, in order.
    pub fn steps(&self) -> impl Iterator<Item = EinsumStep> + '_ {
        self.contractions.iter().map(|c| c.step)
    }

    fn size(&self, label: Label) -> usize {
        self.sizes.iter().find(|(l, _)| *l == label).map_or(1, |(_, n)| *n)
    }

    /// Number of elements of some labels, which may be more than fit a `usize`.
    fn elements(&self, labels: &[Label]) -> f64 {
        labels.iter().map(|&l| self.size(l) as f64).product()
    }

    fn count(&self, labels: &[Label]) -> usize {
        labels.iter().fold(1usize, |n, &l| n.saturating_mul(self.size(l)))
    }

    fn contraction(&self, now: &[Vec<Label>], at: [usize; 2]) -> Contraction {
        let [a, b] = at.map(|i| &now[i]);
        let needed = |l: &Label| {
            let others = now.iter().enumerate().filter(|(i, _)| !at.contains(i));
            self.output.contains(l) || others.clone().any(|(_, labels)| labels.contains(l))
        };
        let (batch, summed): (Vec<Label>, Vec<Label>) =
            a.iter().copied().filter(|l| b.contains(l)).partition(needed);
        let own = [without(a, b), without(b, a)];
        let step = match summed.is_empty() {
            true => EinsumStep::Elementwise,
            false => EinsumStep::Product {
                batch: self.count(&batch),
                m: self.count(&own[0]),
                k: self.count(&summed),
                n: self.count(&own[1]),
            },
        };
        let result = [&batch[..], &own[0], &own[1]].concat();
        Contraction { at, labels: [a.clone(), b.clone(), result], batch, summed, own, step }
    }

    /// Runs the plan on operands of the shapes that it was made for.
    fn run(&self, operands: &[&Tensor]) -> Result<Tensor> {
        let mut now = vec![];
        for (i, x) in operands.iter().enumerate() {
            let x = self.expanded(x, &self.inputs[i])?;
            let gone: Vec<isize> = positions(&self.inputs[i], &self.alone[i]);
            now.push(if gone.is_empty() { x } else { x.sum_axes(&gone, false)? });
        }
        for c in &self.contractions {
            let b = now.remove(c.at[1]);
            let y = self.contract(c, &now[c.at[0]], &b)?;
            now[c.at[0]] = y;
        }
        let y = now.swap_remove(0);
        let labels = match self.contractions.last() {
            Some(c) => c.labels[2].clone(),
            None => without(&self.inputs[0], &self.alone[0]),
        };
        arranged(&y, &labels, &self.output)
    }

    /// Axes of size 1 where another operand has more of the label.
    fn expanded(&self, x: &Tensor, labels: &[Label]) -> Result<Tensor> {
        let shape: Vec<usize> = labels.iter().map(|&l| self.size(l)).collect();
        x.expand(&shape)
    }

    fn contract(&self, c: &Contraction, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let shape = |labels: &[Label]| labels.iter().map(|&l| self.size(l)).collect::<Vec<usize>>();
        let EinsumStep::Product { batch, m, k, n } = c.step else {
            // [batch, a alone, 1] times [batch, 1, b alone].
            let left = arranged(a, &c.labels[0], &[&c.batch[..], &c.own[0]].concat())?;
            let left =
                left.reshape(&[shape(&c.batch), shape(&c.own[0]), vec![1; c.own[1].len()]].concat())?;
            let right = arranged(b, &c.labels[1], &[&c.batch[..], &c.own[1]].concat())?;
            let right =
                right.reshape(&[shape(&c.batch), vec![1; c.own[0].len()], shape(&c.own[1])].concat())?;
            return left.mul(&right);
        };
        let left = arranged(a, &c.labels[0], &[&c.batch[..], &c.own[0], &c.summed].concat())?;
        let right = arranged(b, &c.labels[1], &[&c.batch[..], &c.summed, &c.own[1]].concat())?;
        let y = match c.batch.is_empty() {
            true => left.reshape(&[m, k])?.matmul(&right.reshape(&[k, n])?)?,
            false => left.reshape(&[batch, m, k])?.matmul(&right.reshape(&[batch, k, n])?)?,
        };
        y.reshape(&shape(&c.labels[2]))
    }
}

impl fmt::Display for EinsumPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |labels: &[Label]| labels.iter().collect::<String>();
        for (i, gone) in self.alone.iter().enumerate().filter(|(_, gone)| !gone.is_empty()) {
            writeln!(f, "{}: sum over {}", text(&self.inputs[i]), text(gone))?;
        }
        for c in &self.contractions {
            let [a, b, y] = c.labels.each_ref().map(|l| text(l));
            match c.step {
                EinsumStep::Product { batch, m, k, n } => {
                    writeln!(f, "{a},{b}->{y}: {batch} matrix products [{m}, {k}] by [{k}, {n}]")?;
                }
                EinsumStep::Elementwise => writeln!(f, "{a},{b}->{y}: elementwise product")?,
            }
        }
        write!(f, "->{}", text(&self.output))
    }
}

fn without(labels: &[Label], gone: &[Label]) -> Vec<Label> {
    labels.iter().copied().filter(|l| !gone.contains(l)).collect()
}

fn union(a: &[Label], b: &[Label]) -> Vec<Label> {
    [a, &without(b, a)].concat()
}

fn unique(labels: &[Label]) -> Vec<Label> {
    let mut out = vec![];
    for &l in labels {
        if !out.contains(&l) {
            out.push(l);
        }
    }
    out
}

/// Where labels stand in a list.
fn positions(all: &[Label], of: &[Label]) -> Vec<isize> {
    of.iter().filter_map(|l| all.iter().position(|m| m == l)).map(|i| i as isize).collect()
}

/// A tensor with axes in the order `want` of those that it has.
fn arranged(x: &Tensor, have: &[Label], want: &[Label]) -> Result<Tensor> {
    if have == want { Ok(x.clone()) } else { x.permute(&positions(have, want)) }
}

/// The diagonal of every label that an operand has twice, with axes in the order in which the labels first stand.
fn diagonals(x: &Tensor, labels: &[Label]) -> Result<Tensor> {
    let (mut x, mut now) = (x.clone(), labels.to_vec());
    let twice =
        |now: &[Label]| (0..now.len()).find_map(|j| Some((now[..j].iter().position(|l| *l == now[j])?, j)));
    while let Some((i, j)) = twice(&now) {
        // Of size 1 and n, which broadcast: the first stands for both.
        if x.shape()[i] != x.shape()[j] {
            let mut shape = x.shape().to_vec();
            let n = shape[i].max(shape[j]);
            (shape[i], shape[j]) = (n, n);
            x = x.expand(&shape)?;
        }
        x = x.diagonal(0, i as isize, j as isize)?;
        let label = now.remove(j);
        now.remove(i);
        now.push(label);
    }
    arranged(&x, &now, &unique(labels))
}

/// Labels of the inputs and of the output. `...` becomes labels of its own, digits counted from the right.
fn parse(equation: &str, shapes: &[&[usize]]) -> Result<(Vec<Vec<Label>>, Vec<Label>)> {
    let bad = |expected: &str| Err(invalid(OP, "equation", expected, format!("`{equation}`")));
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (text.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != shapes.len() {
        let expected = format!("{} operands, as the equation `{equation}` names", terms.len());
        return Err(invalid(OP, "operands", expected, format!("{} tensors", shapes.len())));
    }
    let well_formed = |term: &str| {
        let plain = term.replacen("...", "", 1);
        plain.chars().all(|c| c.is_ascii_alphabetic())
    };
    if !terms.iter().copied().chain(right).all(well_formed) {
        return bad(
            "letters, at most one `...` in a term, `,` between terms and at most one `->`, as \"bij,bjk->bik\"",
        );
    }
    let mut inputs = vec![];
    let mut widest = 0;
    for (i, (term, shape)) in terms.iter().zip(shapes).enumerate() {
        let named = term.replacen("...", "", 1).len();
        let rest = match (term.contains("..."), shape.len().checked_sub(named)) {
            (true, Some(rest)) => rest,
            (false, Some(0)) => 0,
            _ => {
                let expected = format!("an operand {i} with the axes `{term}`");
                return Err(invalid(OP, "operands", expected, format!("shape {shape:?}")));
            }
        };
        widest = widest.max(rest);
        inputs.push(labels(term, rest));
    }
    let output = match right {
        Some(right) => labels(right, if right.contains("...") { widest } else { 0 }),
        None => implicit(&inputs, widest),
    };
    if let Some(l) = output.iter().find(|l| !inputs.iter().any(|labels| labels.contains(l))) {
        return bad(&format!("an output of labels that an operand has; `{l}` is none"));
    }
    if unique(&output).len() != output.len() {
        return bad("an output with each label once");
    }
    Ok((inputs, output))
}

/// The labels of a term in which `...` stands for `rest` axes.
fn labels(term: &str, rest: usize) -> Vec<Label> {
    // A tensor has at most 8 axes.
    let digits = |n: usize| (0..n.min(10)).rev().filter_map(|i| char::from_digit(i as u32, 10));
    match term.split_once("...") {
        Some((before, after)) => before.chars().chain(digits(rest)).chain(after.chars()).collect(),
        None => term.chars().collect(),
    }
}

/// The output of an equation without `->`: the axes of `...`, and the labels that occur once in alphabetical order.
fn implicit(inputs: &[Vec<Label>], widest: usize) -> Vec<Label> {
    let all: Vec<Label> = inputs.concat();
    let mut once: Vec<Label> = unique(&all);
    once.retain(|l| l.is_ascii_alphabetic() && all.iter().filter(|m| *m == l).count() == 1);
    once.sort_unstable();
    [labels("...", widest), once].concat()
}

/// The size of every label. Errors: sizes that differ and are not 1.
fn sizes_of(inputs: &[Vec<Label>], shapes: &[&[usize]]) -> Result<Vec<(Label, usize)>> {
    let mut sizes: Vec<(Label, usize)> = vec![];
    for (i, (labels, shape)) in inputs.iter().zip(shapes).enumerate() {
        for (&label, &n) in labels.iter().zip(*shape) {
            match sizes.iter_mut().find(|(l, _)| *l == label) {
                None => sizes.push((label, n)),
                Some((_, have)) if *have == n || n == 1 => {}
                Some((_, have)) if *have == 1 => *have = n,
                Some((_, have)) => {
                    let expected = format!("{have} elements of `{label}`, as another axis of it has");
                    return Err(invalid(OP, "operands", expected, format!("{n} in operand {i}")));
                }
            }
        }
    }
    Ok(sizes)
}

impl Tensor {
    /// The sum of products that an equation in Einstein's notation names: `"bij,bjk->bik"` is a batched matrix product, `"ii->i"` a diagonal,
    /// `"ij->j"` a sum over rows, `"i,j->ij"` an outer product. Letters name axes (a repeated one in a term: a diagonal), `...` stands for
    /// further leading axes, which broadcast, as axes of size 1 do. Without `->` the output has the labels that occur once, in alphabetical
    /// order. [`EinsumPath`] says what is computed: pairs of operands by batched matrix products or elementwise products. Gradients flow to all
    /// operands. Source `torch.einsum`. Errors: those of [`EinsumPath::new`]; operands of different devices or dtypes, integers where labels are
    /// summed over a product.
    pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
        let shapes: Vec<&[usize]> = operands.iter().map(|x| x.shape()).collect();
        let path = EinsumPath::new(equation, &shapes)?;
        let Some((first, others)) = operands.split_first() else {
            return Err(invalid(OP, "operands", "at least one tensor", "none"));
        };
        for (i, x) in others.iter().enumerate() {
            same_device(OP, first, x)?;
            if x.dtype() != first.dtype() {
                let expected = format!("dtype {}, as operand 0 has", first.dtype());
                return Err(invalid(OP, "operands", expected, format!("{} in operand {}", x.dtype(), i + 1)));
            }
        }
        if !first.dtype().is_float() && path.steps().any(|s| s != EinsumStep::Elementwise) {
            let expected = "floats where labels of two operands are summed (convert with `to_dtype`)";
            return Err(invalid(OP, "operands", expected, first.dtype().name()));
        }
        let (inputs, _) = parse(equation, &shapes)?;
        let whole = operands.iter().zip(&inputs).map(|(x, labels)| diagonals(x, labels));
        let whole = whole.collect::<Result<Vec<_>>>()?;
        path.run(&whole.iter().collect::<Vec<_>>())
    }
}
