//! Tables of a model's layers.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use crate::core::autograd::no_grad;
use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::module::hooks::{self, Observer, OpObserver};
use crate::module::{Layer, LayerExt, Snapshot};
use crate::report::flops;
use crate::report::plot::escape;

/// One layer of a [`Summary`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its name, as in the state dictionary; empty for the model itself.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Number of layers around it.
    pub depth: usize,
    /// Shapes of its outputs.
    pub outputs: Vec<Vec<usize>>,
    /// Trainable scalars, its parts' included.
    pub parameters: usize,
    /// Memory of its outputs.
    pub output_bytes: usize,
    /// Multiply-accumulates of its products (matrices, convolutions, attention, recurrences), its parts' included.
    pub macs: u64,
    /// Its arithmetic: two per multiply-accumulate, one per element that any other operation computes.
    pub flops: u64,
    /// Whether it has parts in the table.
    pub parts: bool,
}

/// What a forward pass makes of a model, from [`summary`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Layers in the order in which they begin, each before its parts.
    pub rows: Vec<Row>,
    /// Trainable scalars; shared ones count once.
    pub parameters: usize,
    /// Memory of the parameters. Training takes as much again for gradients and for each state of the optimizer.
    pub parameter_bytes: usize,
    /// Memory of the buffers.
    pub buffer_bytes: usize,
    /// Memory of the inputs.
    pub input_bytes: usize,
    /// Memory of the outputs of all layers without parts: what training keeps at least.
    pub activation_bytes: usize,
    /// Multiply-accumulates of a forward.
    pub macs: u64,
    /// Arithmetic of a forward; a backward takes about twice as much.
    pub flops: u64,
}

#[derive(Default)]
struct Table {
    rows: RefCell<Vec<Row>>,
    open: RefCell<Vec<usize>>,
}

fn bytes(t: &Tensor) -> usize {
    t.numel() * t.dtype().size()
}

impl OpObserver for Table {
    fn op(&self, _: &[String], op: &'static str, inputs: &[&Tensor], outputs: &[Tensor]) {
        let cost = flops::of(op, inputs, outputs);
        for &at in self.open.borrow().iter() {
            let row = &mut self.rows.borrow_mut()[at];
            row.macs = row.macs.saturating_add(cost.macs);
            row.flops = row.flops.saturating_add(cost.flops);
        }
    }
}

impl Observer for Table {
    fn enter(&self, path: &[String], layer: &dyn Layer) {
        let (mut rows, mut open) = (self.rows.borrow_mut(), self.open.borrow_mut());
        if let Some(&parent) = open.last() {
            rows[parent].parts = true;
        }
        open.push(rows.len());
        rows.push(Row {
            name: hooks::join(path),
            kind: layer.kind().to_string(),
            depth: path.len().saturating_sub(1),
            outputs: vec![],
            parameters: 0,
            output_bytes: 0,
            macs: 0,
            flops: 0,
            parts: false,
        });
    }

    fn leave(&self, _: &[String], layer: &dyn Layer, outputs: &[Tensor]) {
        let Some(at) = self.open.borrow_mut().pop() else { return };
        let row = &mut self.rows.borrow_mut()[at];
        row.outputs = outputs.iter().map(|t| t.shape().to_vec()).collect();
        row.output_bytes = outputs.iter().map(bytes).sum();
        // Lazy layers have their parameters only now.
        row.parameters = layer.num_parameters();
    }
}

/// Runs a model once without training it and lists what its layers make of the inputs. Nothing changes except that lazy layers get their
/// parameters.
pub fn summary(model: &dyn Layer, inputs: &[Tensor]) -> Result<Summary> {
    let before = Snapshot::take(model)?;
    let table = Rc::new(Table::default());
    let done = no_grad(|| hooks::observe(table.clone(), || hooks::layers("", model, inputs)));
    before.restore(model)?;
    done?;
    let rows = table.rows.take();
    let (params, state) = (model.named_parameters(), model.named_state());
    let parameter_bytes = params.iter().map(|(_, p)| bytes(&p.get())).sum();
    let all: usize = state.iter().map(|(_, p)| bytes(&p.get())).sum();
    Ok(Summary {
        parameters: model.num_parameters(),
        parameter_bytes,
        buffer_bytes: all - parameter_bytes,
        input_bytes: inputs.iter().map(bytes).sum(),
        macs: rows.first().map_or(0, |r| r.macs),
        flops: rows.first().map_or(0, |r| r.flops),
        activation_bytes: rows.iter().filter(|r| !r.parts).map(|r| r.output_bytes).sum(),
        rows,
    })
}

/// A count with a unit: 1234, 1.23 M.
fn count(n: u64) -> String {
    let mut x = n as f64;
    for unit in ["", "k", "M", "G", "T"] {
        if x < 1000.0 {
            return if unit.is_empty() { n.to_string() } else { format!("{x:.2} {unit}") };
        }
        x /= 1000.0;
    }
    format!("{x:.2} P")
}

/// A number of bytes with a unit.
fn size(n: usize) -> String {
    let mut x = n as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if x < 1024.0 {
            return if unit == "B" { format!("{n} B") } else { format!("{x:.1} {unit}") };
        }
        x /= 1024.0;
    }
    format!("{x:.1} TiB")
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines =
            vec![["Layer", "Output shape", "Parameters", "Output", "MACs", "FLOPs"].map(String::from)];
        for r in &self.rows {
            let name = if r.name.is_empty() { r.kind.clone() } else { format!("{} ({})", r.name, r.kind) };
            let shapes: Vec<String> = r.outputs.iter().map(|s| format!("{s:?}")).collect();
            let name = format!("{}{name}", "  ".repeat(r.depth));
            let (macs, flops) = (count(r.macs), count(r.flops));
            lines.push([name, shapes.join(" "), r.parameters.to_string(), size(r.output_bytes), macs, flops]);
        }
        let width = |i: usize| lines.iter().map(|l| l[i].chars().count()).max().unwrap_or(0);
        let [a, b, c, d, e, g] = [0, 1, 2, 3, 4, 5].map(width);
        for (i, l) in lines.iter().enumerate() {
            writeln!(f, "{:a$}  {:b$}  {:>c$}  {:>d$}  {:>e$}  {:>g$}", l[0], l[1], l[2], l[3], l[4], l[5])?;
            if i == 0 {
                writeln!(f, "{}", "-".repeat(a + b + c + d + e + g + 10))?;
            }
        }
        writeln!(
            f,
            "{} parameters in {}, buffers {}",
            self.parameters,
            size(self.parameter_bytes),
            size(self.buffer_bytes)
        )?;
        writeln!(f, "inputs {}, outputs of layers {}", size(self.input_bytes), size(self.activation_bytes))?;
        write!(f, "a forward takes {} multiply-accumulates, {} FLOPs", count(self.macs), count(self.flops))
    }
}

/// Height of a layer in a picture, and how far parts are set in.
const LINE: f64 = 34.0;
const INSET: f64 = 18.0;

impl Summary {
    /// A picture of the network as SVG: a box per layer with its name, type, output shapes and parameters, in the order in which the layers run, parts
    /// within the layer that they belong to.
    pub fn picture(&self) -> String {
        use fmt::Write;
        let deepest = self.rows.iter().map(|r| r.depth).max().unwrap_or(0) as f64;
        let (width, height) = (520.0 + 2.0 * INSET * deepest, 20.0 + LINE * self.rows.len() as f64 + 10.0);
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="12">
<rect width="{width}" height="{height}" fill="#ffffff"/>"##
        );
        for (i, row) in self.rows.iter().enumerate() {
            let parts = self.rows[i + 1..].iter().take_while(|r| r.depth > row.depth).count() as f64;
            let (x, y) = (10.0 + INSET * row.depth as f64, 10.0 + LINE * i as f64);
            let (w, h) = (width - 2.0 * x, LINE * (parts + 1.0) - 6.0 + if parts > 0.0 { 3.0 } else { 0.0 });
            let shapes: Vec<String> = row.outputs.iter().map(|s| format!("{s:?}")).collect();
            let name = if row.name.is_empty() {
                "the network"
            } else {
                row.name.rsplit('.').next().unwrap_or_default()
            };
            let fill = if row.parts { "#f4f7fa" } else { "#dcebf5" };
            let _ = writeln!(
                out,
                r##"<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="5" fill="{fill}" stroke="#0072b2"/><text x="{:.1}" y="{:.1}" font-weight="bold">{}</text><text x="{:.1}" y="{:.1}" text-anchor="middle">{} {}</text><text x="{:.1}" y="{:.1}" text-anchor="end" fill="#555555">{} parameters</text>"##,
                x + 8.0,
                y + 18.0,
                escape(name),
                width / 2.0,
                y + 18.0,
                escape(&row.kind),
                escape(&shapes.join(" ")),
                x + w - 8.0,
                y + 18.0,
                row.parameters
            );
        }
        out.push_str("</svg>\n");
        out
    }
}
