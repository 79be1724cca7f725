//! Tables of a model's layers.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use crate::autograd::no_grad;
use crate::error::Result;
use crate::layer::{Layer, LayerExt, Snapshot};
use crate::tensor::Tensor;
use crate::trace::{self, Observer};

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
}

#[derive(Default)]
struct Table {
    rows: RefCell<Vec<Row>>,
    open: RefCell<Vec<usize>>,
}

fn bytes(t: &Tensor) -> usize {
    t.numel() * t.dtype().size()
}

impl Observer for Table {
    fn enter(&self, path: &[String], layer: &dyn Layer) {
        let (mut rows, mut open) = (self.rows.borrow_mut(), self.open.borrow_mut());
        if let Some(&parent) = open.last() {
            rows[parent].parts = true;
        }
        open.push(rows.len());
        rows.push(Row {
            name: trace::join(path),
            kind: layer.kind().to_string(),
            depth: path.len().saturating_sub(1),
            outputs: vec![],
            parameters: 0,
            output_bytes: 0,
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

/// Runs a model on trial and tells what its layers made of the inputs. Nothing changes except that lazy layers get their parameters.
pub fn summary(model: &dyn Layer, inputs: &[Tensor]) -> Result<Summary> {
    let before = Snapshot::take(model)?;
    let table = Rc::new(Table::default());
    let done = no_grad(|| trace::observe(table.clone(), || trace::layers("", model, inputs)));
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
        activation_bytes: rows.iter().filter(|r| !r.parts).map(|r| r.output_bytes).sum(),
        rows,
    })
}

/// A number of bytes for people.
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
        let mut lines = vec![["Layer", "Output shape", "Parameters", "Output"].map(String::from)];
        for r in &self.rows {
            let name = if r.name.is_empty() { r.kind.clone() } else { format!("{} ({})", r.name, r.kind) };
            let shapes: Vec<String> = r.outputs.iter().map(|s| format!("{s:?}")).collect();
            let name = format!("{}{name}", "  ".repeat(r.depth));
            lines.push([name, shapes.join(" "), r.parameters.to_string(), size(r.output_bytes)]);
        }
        let width = |i: usize| lines.iter().map(|l| l[i].chars().count()).max().unwrap_or(0);
        let (a, b, c, d) = (width(0), width(1), width(2), width(3));
        for (i, l) in lines.iter().enumerate() {
            writeln!(f, "{:a$}  {:b$}  {:>c$}  {:>d$}", l[0], l[1], l[2], l[3])?;
            if i == 0 {
                writeln!(f, "{}", "-".repeat(a + b + c + d + 6))?;
            }
        }
        writeln!(
            f,
            "{} parameters in {}, buffers {}",
            self.parameters,
            size(self.parameter_bytes),
            size(self.buffer_bytes)
        )?;
        write!(f, "inputs {}, outputs of layers {}", size(self.input_bytes), size(self.activation_bytes))
    }
}
