//! A network that runs.

use trefoil::{DType, GpuError};

use super::build::Entry;
use super::config::{NetworkConfig, Plan, Source, Step};
use super::shapes::{Item, batches, zeros};
use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result, invalid};
use crate::core::options::join;
use crate::core::tensor::Tensor;
use crate::layers::{Adapters, Input, LoraConfig};
use crate::module::hooks;
use crate::module::{InitContext, Layer, LayerExt, Visitor};

/// A network made of its description: a graph of layers.
///
/// State: that of each layer under its name, or its position in the file; see [`NetworkConfig`].
#[derive(Debug)]
pub struct Network {
    inputs: Vec<(String, Option<Input>)>,
    /// As in the file.
    nodes: Vec<Node>,
    /// Positions of layers in the order in which they run, and the layers whose outputs are not read afterwards.
    order: Vec<(usize, Vec<usize>)>,
    outputs: Vec<(String, Source)>,
    /// The inputs of a network on the nodes of one graph, or on meshes.
    fixed: Option<Vec<Tensor>>,
    adapters: Option<Adapters>,
}

#[derive(Debug)]
struct Node {
    name: String,
    layer: Box<dyn Layer>,
    sources: Vec<Source>,
    numbered: bool,
}

impl Network {
    /// Makes the layers in the order of the file. Nothing is allocated on the device unless everything fits: the network is made, and run
    /// if the sizes of its inputs are declared, without a device before. Then all parameters exist; otherwise lazy layers get theirs in the
    /// first forward.
    ///
    /// Errors: [`NnError::Config`](crate::NnError::Config) with the path of the value, or of the layer whose inputs do not fit; those of
    /// the device.
    pub fn new(cx: &InitContext, config: &NetworkConfig) -> Result<Self> {
        let inputs = Plan::new(config, "")?.trial_inputs(cx.param_dtype());
        Self::make(cx, config, "", inputs.as_deref(), None)
    }

    /// As [`new`](Self::new) for inputs (in the order of their names) whose items have these shapes and element types, and a network that
    /// stands at `path` in its file: `model`. Errors: also items that differ from what is declared.
    pub fn for_items(
        cx: &InitContext,
        config: &NetworkConfig,
        path: &str,
        items: &[(&[usize], DType)],
    ) -> Result<Self> {
        let items: Vec<Item> = items.iter().map(|(s, d)| (s.to_vec(), *d)).collect();
        Self::make(cx, config, path, Some(&batches(&items)), None)
    }

    /// As [`for_items`](Self::for_items), as a function of the nodes of one graph, or of meshes: the inputs (features of all nodes, edges and so
    /// on) are these from now on, and a call takes ids of nodes, or of meshes, i32 or i64 `[n]`, to their rows of the outputs. Errors: also an
    /// input that is not there; what is there and no input is left out.
    pub fn on_nodes(
        cx: &InitContext,
        config: &NetworkConfig,
        path: &str,
        inputs: &[(&str, Tensor)],
    ) -> Result<Self> {
        let find = |name: &str| {
            inputs.iter().find(|(n, _)| *n == name).map(|(_, t)| t.detach()).ok_or_else(|| {
                let known: Vec<&str> = inputs.iter().map(|(n, _)| *n).collect();
                let what = format!("expected an input of the data ({}), got `{name}`", known.join(", "));
                NnError::config(join(path, &format!("inputs.{name}")), what)
            })
        };
        let plan = Plan::new(config, path)?;
        let fixed = plan.inputs.iter().map(|(name, _)| find(name)).collect::<Result<Vec<_>>>()?;
        let shapes: Vec<Item> = fixed.iter().map(|t| (t.shape().to_vec(), t.dtype())).collect();
        let network = Self::make(cx, config, path, Some(&shapes), Some(&fixed))?;
        Ok(Network { fixed: Some(fixed), ..network })
    }

    /// For inputs of these shapes, if they are known; `given` are the inputs, if those are.
    fn make(
        cx: &InitContext,
        config: &NetworkConfig,
        path: &str,
        inputs: Option<&[Item]>,
        given: Option<&[Tensor]>,
    ) -> Result<Self> {
        let (_, state) = Plan::dry_run(config, path, cx.param_dtype(), inputs)?;
        let network = Self::of(cx, Plan::new(config, path)?)?;
        if let Some(inputs) = inputs
            && network.named_state().len() < state
        {
            match given {
                Some(x) => network.make_lazy_parameters(x)?,
                None => network.make_lazy_parameters(&zeros(cx.device(), inputs)?)?,
            }
        }
        Ok(network)
    }

    /// Runs a batch on trial, after which lazy layers have their parameters and nothing else is changed.
    fn make_lazy_parameters(&self, x: &[Tensor]) -> Result<()> {
        self.set_training(false);
        let done = no_grad(|| self.forward_all(x));
        self.set_training(true);
        self.reset_state();
        done?;
        // Zeros need not be lengths or indices that the layers allow.
        match x.first().map_or(Ok(()), |x| x.device().synchronize()) {
            Err(GpuError::IndexOutOfRange { .. }) => Ok(()),
            done => Ok(done?),
        }
    }

    pub(super) fn of(cx: &InitContext, plan: Plan) -> Result<Self> {
        let mut inputs = vec![];
        for (name, known) in plan.inputs {
            let check = match known {
                Some(i) if !i.shape.is_empty() => {
                    let check = Input::new(&i.shape)?;
                    Some(match i.dtype {
                        Some(d) => check.dtype(d),
                        None => check,
                    })
                }
                _ => None,
            };
            inputs.push((name, check));
        }
        let mut nodes = vec![];
        for Step { name, path, info, options, sources, numbered } in plan.steps {
            let layer = Entry { info, path: &path, options }.build_part(cx)?;
            nodes.push(Node { name, layer, sources, numbered });
        }
        let order = releases(&plan.order, &nodes, &plan.outputs);
        Ok(Network { inputs, nodes, order, outputs: plan.outputs, fixed: None, adapters: None })
    }

    /// Freezes the network and gives it low-rank adapters, as [`Lora`](crate::layers::Lora) gives them. Their state is shown with the network's.
    /// Errors: those of [`Lora::new`](crate::layers::Lora::new).
    pub fn adapt(&mut self, cx: &InitContext, config: &LoraConfig) -> Result<()> {
        self.adapters = None;
        self.adapters = Some(Adapters::new(cx, self, config)?);
        Ok(())
    }

    /// Adds the products of the adapters to the weights, and removes the adapters; the parameters stay frozen. Nothing without adapters.
    pub fn merge_adapters(&mut self) -> Result<()> {
        self.adapters.take().map_or(Ok(()), |adapters| adapters.merge(true))
    }

    /// Names of the inputs, in the order of `forward_all`.
    pub fn input_names(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|(n, _)| n.as_str())
    }

    /// Names of the outputs, in the order of `forward_all`.
    pub fn output_names(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().map(|(n, _)| n.as_str())
    }

    /// The layer of a name or position in the file.
    pub fn layer(&self, name: &str) -> Option<&dyn Layer> {
        self.nodes.iter().find(|n| n.name == name).map(|n| &*n.layer)
    }

    /// Runs on inputs by name. Errors: names that are not those of the inputs; else as [`forward_all`](Layer::forward_all).
    pub fn forward_named(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>> {
        let find = |name: &str| inputs.iter().find(|(n, _)| *n == name).map(|(_, t)| (*t).clone());
        let found: Vec<Tensor> = self.input_names().filter_map(find).collect();
        if found.len() != self.inputs.len() || inputs.len() != self.inputs.len() {
            let got: Vec<&str> = inputs.iter().map(|(n, _)| *n).collect();
            return Err(invalid("Network", "inputs", self.input_list(), format!("{got:?}")));
        }
        self.forward_all(&found)
    }

    fn input_list(&self) -> String {
        let names: Vec<&str> = self.input_names().collect();
        format!("the inputs {}", names.join(", "))
    }

    /// The outputs for all inputs.
    fn evaluate(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match &self.adapters {
            Some(adapters) => adapters.run(|| self.run_all(inputs)),
            None => self.run_all(inputs),
        }
    }

    fn run_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        if inputs.len() != self.inputs.len() {
            return Err(invalid("Network", "inputs", self.input_list(), format!("{} tensors", inputs.len())));
        }
        for ((name, check), x) in self.inputs.iter().zip(inputs) {
            if let Some(check) = check {
                check.forward(x).map_err(|e| e.within(name, check.kind(), || vec![x.shape().to_vec()]))?;
            }
        }
        let mut values: Vec<Vec<Tensor>> = vec![vec![]; self.nodes.len()];
        for (at, free) in &self.order {
            let node = &self.nodes[*at];
            let x: Vec<Tensor> =
                node.sources.iter().map(|s| self.value(*s, inputs, &values)).collect::<Result<_>>()?;
            values[*at] = self.run(node, &x)?;
            free.iter().for_each(|&i| values[i].clear());
        }
        self.outputs.iter().map(|(_, s)| self.value(*s, inputs, &values)).collect()
    }

    /// Outputs of one layer.
    fn run(&self, node: &Node, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] if !node.numbered => Ok(vec![hooks::layer(&node.name, &*node.layer, x)?]),
            _ => hooks::layers(&node.name, &*node.layer, inputs),
        }
    }

    /// The tensor that a source names.
    fn value(&self, source: Source, inputs: &[Tensor], values: &[Vec<Tensor>]) -> Result<Tensor> {
        match source {
            Source::Input(i) => Ok(inputs[i].clone()),
            Source::Layer(i, k) => values[i].get(k).cloned().ok_or_else(|| {
                let (name, n) = (&self.nodes[i].name, values[i].len());
                invalid(
                    "Network",
                    "inputs",
                    format!("an output of `{name}` below {n}"),
                    format!("{name}.{k}"),
                )
            }),
        }
    }
}

/// The order, with the layers whose outputs are not read after each step.
fn releases(order: &[usize], nodes: &[Node], outputs: &[(String, Source)]) -> Vec<(usize, Vec<usize>)> {
    let mut kept = vec![false; nodes.len()];
    for (_, s) in outputs {
        if let Source::Layer(i, _) = s {
            kept[*i] = true;
        }
    }
    let mut steps: Vec<(usize, Vec<usize>)> = vec![];
    for &at in order.iter().rev() {
        let mut free = vec![];
        for s in &nodes[at].sources {
            if let Source::Layer(i, _) = s
                && !std::mem::replace(&mut kept[*i], true)
            {
                free.push(*i);
            }
        }
        steps.push((at, free));
    }
    steps.reverse();
    steps
}

impl Layer for Network {
    /// Errors beside those of the layers: several inputs or outputs.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut y = self.forward_all(std::slice::from_ref(x))?;
        match (y.pop(), y.is_empty()) {
            (Some(y), true) => Ok(y),
            _ => {
                let names: Vec<&str> = self.output_names().collect();
                Err(invalid("Network", "outputs", "one output, or forward_all", names.join(", ")))
            }
        }
    }

    /// The inputs in the order of their names to the outputs; on the nodes of a graph, or on meshes, `[ids]` to their rows of the outputs. Errors: another
    /// number of inputs, shapes that do not fit ([`NnError::Layer`](crate::NnError::Layer)).
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match (&self.fixed, inputs) {
            (None, _) => self.evaluate(inputs),
            (Some(fixed), [ids]) => self.evaluate(fixed)?.iter().map(|y| y.index_select(0, ids)).collect(),
            _ => Err(invalid("Network", "inputs", "the ids of items", format!("{} tensors", inputs.len()))),
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for node in &self.nodes {
            v.child(&node.name, &*node.layer);
        }
        if let Some(adapters) = &self.adapters {
            adapters.visit(v);
        }
    }
}
